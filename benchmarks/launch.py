"""How long from Enter to the first line of every host, beside other tools."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers import FABRIC_NAME, close_masters, peers
from benchmarks.rows import Chosen, absent, told
from benchmarks.stage import Contestant, Stage

COMMAND = "echo ready"
HEAD = """\
## A command on every host

`echo ready` on all hosts, from Enter until the last host's line. `mesh exec` is what the other tools do. `mesh run`
also locks every host, brings the workspace ({files} small files), waits until all hosts are ready, and proves that
nothing is left. The hosts' CPU is that of the same machine. mesh runs an agent in Python on each host. The floors show
what that costs at least: one python3 for each host, here without any network; a login and a python3 on each host.
ControlMaster's connections are open before the start. "Kept" means `keep: 600`: an agent waits on every host, with a
process that becomes the rank. The hosts' CPU has the next login of the keeper.
"""
FILES = 20


def contestants(stage: Stage) -> list[Contestant]:
    ours = [
        user.contestant(command, command, "pod", *COMMAND.split(), kept=kept)
        for command, kept in (("exec", False), ("run", False), ("exec", True))
        for user in stage.users
    ]
    if len(stage.users) > 1:
        return ours
    count = len(stage.addresses)
    program = "python3 -I -S -c 'print(\"ready\")'"
    started = f"seq {count} | xargs -P {count} -I% {program}"
    alone = Contestant(
        name="floor: python3, started as often",
        argv=["sh", "-c", started],
        user=stage.user,
        environ={"PATH": "/usr/local/bin:/usr/bin:/bin"},  # as sshd has it
    )
    fabric = next(peer for peer in peers(stage, program) if peer.name == FABRIC_NAME)
    return [*ours, *peers(stage, COMMAND), alone, replace(fabric, name="floor: bare Fabric, python3 on each host")]


def launch(chosen: Chosen) -> str:
    parts, missing = [HEAD.format(files=FILES)], ""
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            for user in stage.users:
                user.fill(FILES, 400)
            found = contestants(stage)
            missing = absent(found)
            for milliseconds in (0, 30):
                with stage.slow(round_trip=milliseconds / 1000):
                    samples = stage.compare(found, chosen.rounds, lines=b"ready")
                title = f"{hosts} hosts, round trip {milliseconds} ms"
                columns = ["client CPU, s", "hosts' CPU, s"]
                parts.append(
                    told(chosen, title, "every host's line", samples, lambda sample: sample.first, columns) + "\n"
                )
            close_masters(stage)
    return "\n".join([*parts, missing])
