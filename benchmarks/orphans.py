"""What is left on the hosts when the client ends: mesh beside pdsh, clush, ssh and Fabric, all in one run.

    .venv/bin/python benchmarks/orphans.py [--write]

Needs root (test hosts made of namespaces), pdsh and clush (Debian: pdsh, clustershell). Every tool starts four
processes on each of four hosts; they sleep for ever. Then its client is ended, or its network; after WAIT seconds the
processes that are left are counted from outside. ``--write`` writes the section of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.chaos import page
from tests.lab import Lab, TestHost, eventually

REPOSITORY = Path(__file__).parent.parent
HOSTS, EACH = 4, 4
SLEEP = "sleep 98765"
REMOTE = f"for i in 1 2 3 4; do {SLEEP} & done; wait"
GRACE, LEASE = 2, 10  # seconds; mesh's --grace and --lease here
# What mesh may take at most: the lease, grace, the agent's leave, and something for two busy cores.
WAIT = LEASE + GRACE + 2 + 5
PAUSE = 3.0  # seconds that the cable is out, where it comes back
FABRIC = """
import sys
import fabric

group = fabric.ThreadingGroup(*sys.argv[2:], user="root", connect_kwargs={"key_filename": sys.argv[1]})
group.run(%r, hide=True)
"""


@dataclass(frozen=True)
class End:
    """A way for the client to end."""

    name: str
    happen: Callable[[subprocess.Popen[bytes], Lab], None]


def ctrl_c(process: subprocess.Popen[bytes], lab: Lab) -> None:
    """To the whole group, as a terminal does; pdsh wants it twice within a second."""
    for _ in range(2):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
            return


def cut_for_a_while(process: subprocess.Popen[bytes], lab: Lab) -> None:
    for host in lab.hosts:
        host.cut()
    time.sleep(PAUSE)
    for host in lab.hosts:
        host.mend()


def power_off(process: subprocess.Popen[bytes], lab: Lab) -> None:
    """The client's machine is gone: no byte of it will ever come again."""
    for host in lab.hosts:
        host.cut()
    os.killpg(process.pid, signal.SIGKILL)


ENDS = (
    End("Ctrl-C", ctrl_c),
    End("SIGTERM", lambda process, lab: process.terminate()),
    End("SIGKILL", lambda process, lab: process.kill()),
    End("the client's machine loses power", power_off),
)
STAYS = End(f"links cut for {PAUSE:g} s (all must go on)", cut_for_a_while)


def tools(lab: Lab, scratch: Path, environ: dict[str, str]) -> dict[str, list[str] | None]:
    """The command of each tool; None where it is missing."""
    addresses = [host.address for host in lab.hosts]
    ssh = f"-i {lab.identity} -o UserKnownHostsFile={lab.known_hosts} -o BatchMode=yes -o LogLevel=ERROR"
    environ["PDSH_SSH_ARGS_APPEND"] = ssh
    program = scratch / "fabric_group.py"
    program.write_text(FABRIC % REMOTE)
    names = scratch / "hosts"
    names.write_text("".join(f"{address}\n" for address in addresses))
    listed, wide = ",".join(addresses), str(HOSTS)
    mesh = ["run", "--nproc", str(EACH), "--grace", str(GRACE), "--lease", str(LEASE), "pod"]
    pdsh = ["pdsh", "-R", "ssh", "-l", "root", "-f", wide, "-w", listed, REMOTE]
    clush = ["clush", "-l", "root", "-f", wide, "-o", ssh, "-w", listed, REMOTE]
    return {
        "mesh run": [sys.executable, "-m", "mesh", *mesh, *SLEEP.split()],
        "pdsh": pdsh if shutil.which("pdsh") else None,
        "clush": clush if shutil.which("clush") else None,
        "ssh, one per host": ["xargs", "-a", str(names), "-P", wide, "-I{}", "ssh", *ssh.split(), "root@{}", REMOTE],
        "Fabric, ThreadingGroup": [sys.executable, str(program), str(lab.identity), *addresses],
    }


def sleeping(hosts: list[TestHost]) -> int:
    return sum(command.strip() == SLEEP for host in hosts for _, command in host.processes())


def default_interrupt() -> None:
    """What is started in the background of a shell has SIGINT ignored, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def client(argv: list[str], environ: dict[str, str], project: Path, lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """The tool, once all its remote processes are there; afterwards nothing of it is."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
        cwd=project,
        start_new_session=True,
        preexec_fn=default_interrupt,
    )
    try:
        if not eventually(lambda: sleeping(lab.hosts) == HOSTS * EACH, 30.0):
            raise SystemExit(f"{argv[:3]}: {sleeping(lab.hosts)} of {HOSTS * EACH} processes started")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lab.reset()


def count(argv: list[str], end: End, environ: dict[str, str], project: Path, lab: Lab) -> int:
    with client(argv, environ, project, lab) as process:
        end.happen(process, lab)
        if end is STAYS:
            time.sleep(WAIT)
        else:
            eventually(lambda: not sleeping(lab.hosts), WAIT)
        return sleeping(lab.hosts)


def section(left: dict[str, dict[str, int] | None]) -> str:
    ends = [end.name for end in (*ENDS, STAYS)]
    rows = [f"| | {' | '.join(ends)} |", f"|{' --- |' * (len(ends) + 1)}"]
    for name, found in left.items():
        cells = ["not installed here"] * len(ends) if found is None else [str(found[end]) for end in ends]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return f"""\
## Beside other tools

Written by `python benchmarks/orphans.py --write` on {page.today()}: every tool starts {EACH} processes that sleep for
ever on each of {HOSTS} hosts; then its client ends. Told is how many of the {HOSTS * EACH} processes are left after
{WAIT} s, counted from outside. Ctrl-C goes to all processes of the client, as a terminal sends it, and twice if once is
not enough; SIGTERM and SIGKILL go to the client only. In the last column nothing ends: the links are out for
{PAUSE:g} s, and all {HOSTS * EACH} have to be there afterwards. mesh runs with `--grace {GRACE} --lease {LEASE}`.
Machine: {page.machine()}.

{chr(10).join(rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Lab(HOSTS) as lab:
        scratch = Path(name)
        home, project = scratch / "home", scratch / "project"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        project.mkdir()
        (home / ".ssh/known_hosts").write_text(lab.known_hosts.read_text())
        (home / ".config/mesh").mkdir(parents=True)
        (home / ".config/mesh/cluster.yaml").write_text(lab.cluster_yaml())
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        left: dict[str, dict[str, int] | None] = {}
        for tool, argv in tools(lab, scratch, environ).items():
            left[tool] = None
            if argv is not None:
                left[tool] = {end.name: count(argv, end, environ, project, lab) for end in (*ENDS, STAYS)}
            print(f"{tool}: {left[tool] or 'not installed'}", flush=True)
    text = section(left)
    print(text)
    if chosen.write:
        page.write("orphans", text)


if __name__ == "__main__":
    main()
