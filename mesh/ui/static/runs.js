// All runs of this machine, and the comparison of two.

import { get } from "./api.js";
import { h, plural, put, table } from "./dom.js";
import { runTable } from "./now.js";

const SHOWN = 200;

export async function runsPage(page, { signal, go }) {
  const query = new URLSearchParams(location.search);
  let { runs, more } = await get(`runs?count=${SHOWN}`, signal); // the others may take a second to read
  const found = h("div", { id: "found" });
  const ticked = new Set();
  const compare = h("button", { disabled: true, onclick: () => go(`/compare?${[...ticked].map((run) => `run=${run}`).join("&")}`) }, "Compare two");
  const search = h("input", { type: "search", placeholder: "id, name, tag, command, verdict", size: 32, value: query.get("q") ?? "", "aria-label": "Search", oninput: change });
  const kinds = ["", "running", "done", "failed", "detached", "client died"];
  const kind = h("select", { "aria-label": "Status", onchange: change }, kinds.map((one) =>
    h("option", { value: one, selected: one === (query.get("status") ?? "") }, one || "any status")));
  let most = SHOWN;

  function change() {
    const next = new URLSearchParams();
    if (search.value) next.set("q", search.value);
    if (kind.value) next.set("status", kind.value);
    history.replaceState(null, "", `/runs${next.size ? `?${next}` : ""}`);
    draw();
  }

  function tick(row) {
    if (!row) return [""];
    const box = h("input", { type: "checkbox", "aria-label": `compare ${row.run}`, checked: ticked.has(row.run) });
    box.addEventListener("change", () => {
      if (box.checked) ticked.add(row.run); else ticked.delete(row.run);
      compare.disabled = ticked.size !== 2;
    });
    return [box];
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = (row) => [row.run, row.name, ...row.tags, row.command, row.cluster, row.verdict].join(" ").toLowerCase();
    const is = (row) => !kind.value || row.status === kind.value || (kind.value === "failed" && row.exit_code > 0);
    const rows = runs.filter((row) => is(row) && words.every((word) => texts(row).includes(word)));
    put(found, h("p", { class: "muted" }, plural(rows.length, "run"), more ? ", reading older ones…" : ""), runTable(rows.slice(0, most), tick),
      rows.length > most ? h("button", { onclick: () => { most += 1000; draw(); } }, `show more of ${rows.length}`) : null,
      runs.length ? null : h("div", { class: "empty" }, "This machine has started no run yet: ", h("code", {}, "mesh run local:4 python3 train.py")));
  }

  put(page, h("h1", {}, "Runs"), h("div", { class: "bar" }, search, kind, compare), found);
  draw();
  if (more) {
    ({ runs, more } = await get("runs", signal));
    draw();
  }
}

export async function comparePage(page, { signal }) {
  const names = new URLSearchParams(location.search).getAll("run");
  const { differences } = await get(`compare?${names.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`, signal);
  put(page, h("h1", {}, "Comparison"), differences.length
    ? table(["", ...names.map((name) => h("th", {}, h("a", { href: `/run/${name}` }, name)))], differences, { id: "differences" })
    : h("p", {}, "These runs do not differ."));
}
