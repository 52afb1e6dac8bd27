"""The style sheet of a run's HTML file."""

SHEET = """
:root{color-scheme:light dark;--b:#fff;--f:#1b1f24;--m:#5c6670;--l:#d5dbe1;--p:#f4f6f8;--red:#b42318;--green:#1a7f37;
--yellow:#8a5a00;--blue:#0b5cad;--magenta:#8d3ba5;--cyan:#0f6d75;--grey:#8b949e}
@media (prefers-color-scheme:dark){:root{--b:#14171a;--f:#e6e9ec;--m:#9aa4ae;--l:#343a41;--p:#1c2024;--red:#ff7b72;
--green:#56d364;--yellow:#e3b341;--blue:#79b8ff;--magenta:#d2a8ff;--cyan:#56d4dd;--grey:#768390}}
body{background:var(--b);color:var(--f);font:14px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1200px;padding:16px}
h1{font-size:20px;overflow-wrap:anywhere}h2{font-size:16px;margin:24px 0 8px}
pre{background:var(--p);border:1px solid var(--l);border-radius:4px;font:12px/1.5 ui-monospace,monospace;margin:0;
overflow-x:auto;padding:8px;tab-size:8}
#verdict{white-space:pre-wrap;overflow-wrap:anywhere}
pre i{color:var(--m);font-style:normal}b{font-weight:inherit}.bold{font-weight:700}
table{border-collapse:collapse;width:100%}th,td{border-bottom:1px solid var(--l);overflow-wrap:anywhere;
padding:4px 8px 4px 0;text-align:left;vertical-align:top}th{color:var(--m);font-weight:400;white-space:nowrap;width:1%}
.red,.bad{color:var(--red)}.green{color:var(--green)}.yellow{color:var(--yellow)}.blue{color:var(--blue)}
.magenta{color:var(--magenta)}.cyan{color:var(--cyan)}.black,.white{color:inherit}.muted{color:var(--m)}
.bad pre{border-color:var(--red)}.good{color:var(--green)}
.grid{display:flex;flex-wrap:wrap;gap:4px}.grid span{border:1px solid var(--l);border-radius:3px;
font:12px ui-monospace,monospace;min-width:34px;padding:2px 6px;text-align:center}
.failed,.lost{border-color:var(--red)!important;color:var(--red)}.done{color:var(--green)}.stopped{color:var(--m)}
svg{max-width:100%;min-width:700px;height:auto}.wide{overflow-x:auto}
svg text{fill:var(--m);font:11px ui-monospace,monospace}
.connect,.end{fill:var(--grey)}.sync{fill:var(--blue)}.prerun{fill:var(--magenta)}.ready{fill:var(--cyan)}.run{fill:var(--green)}
.silent{fill:var(--yellow)}rect.lost{fill:var(--red)}.first{stroke:var(--red);stroke-width:2}
details{margin:4px 0}summary{cursor:pointer;font:12px ui-monospace,monospace;overflow-wrap:anywhere}
"""
