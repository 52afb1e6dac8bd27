"""How fast the output of many hosts comes through, beside pdsh, clush and parallel-ssh.

Every tool shows what ``cat`` prints on all hosts, lines of 100 bytes, each led by its host. Its output goes to a file
in memory, where every line is looked for afterwards: lost, or torn, which is any line that no host has written, and one
that is doubled or out of order.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Sample, Samples, Spread, medians, table
from benchmarks.peers import peers
from benchmarks.rows import Chosen, absent
from benchmarks.stage import Contestant, Stage
from mesh.config.hosts import numbers
from tests.lab import Lab

TEXT = b"the quick brown fox jumps over the lazy dog; the five boxing wizards jump too"
WIDTH = 100  # bytes of a line
MEGABYTES = 20  # of each host
COUNT = MEGABYTES * 1_000_000 // WIDTH
OWN, SAME = "/tmp/own", "/tmp/same"  # files on each host: lines that no other has, lines that all have
HEAD = f"""\
`cat` of {MEGABYTES} MB in lines of {WIDTH} bytes on each host, shown with labels into a file in memory. mesh also keeps
every byte in the log files of the run, and has each agent spool what the client has not taken. It also proves that
nothing is left. The others do none of this. CPU is that of the client and what it started here. Memory is that of its
largest process; pdsh and clush also start an ssh for each host. `fold` compares lines unless too many come. Of a flood
like this one it shows a chunk at a time, as `all` does.
"""
MODES = {
    "exec --output all": (["--output", "all"], OWN),
    "exec --output fold": (["--output", "fold"], OWN),
    "exec --output fold --fold exact, equal lines": (["--output", "fold", "--fold", "exact"], SAME),
}


def name_of(host: int) -> bytes:
    """In letters, as no tool is to take it for a number.

    >>> name_of(0), name_of(27)
    (b'haa', b'hbb')
    """
    return bytes((ord("h"), ord("a") + host // 26, ord("a") + host % 26))


def line(name: bytes, number: int) -> bytes:
    return (b"%s %07d %s" % (name, number, TEXT)).ljust(WIDTH - 1, b".") + b"\n"


def look(shown: Path, labels: dict[bytes, int], path: str, hosts: int) -> tuple[int, int]:
    """How many lines are lost, and how many are not as they should be."""
    following = [0] * hosts
    torn = 0
    known: dict[bytes, list[int]] = {label: [host] for label, host in labels.items()}
    with shown.open("rb") as file:
        for one in file:
            label, _, text = one.partition(b" ")
            ranks = known.get(label)
            if ranks is None:
                ranks = known[label] = list(ranks_of(label))
            for rank in ranks:
                name = name_of(rank) if path == OWN else b"all"
                if text[4:11] == b"%07d" % following[rank] and text == line(name, following[rank]):
                    following[rank] += 1
                else:
                    torn += 1
            torn += not ranks
    return hosts * COUNT - sum(following), torn


def ranks_of(label: bytes) -> Iterator[int]:
    """The ranks of ``[0-3,5]``; none if it is no such thing."""
    match = re.fullmatch(rb"\[([0-9,-]+)\]", label)
    if match:
        yield from map(int, numbers(match[1].decode()))


def labels_of(lab: Lab) -> dict[bytes, int]:
    """What the tools lead a line with."""
    width = len(str(len(lab.hosts) - 1))
    found = {}
    for number, host in enumerate(lab.hosts):
        found[f"{host.address}:".encode()] = number
        found[f"[{number:0{width}d}]".encode()] = number
        found[f"[{number}]".encode()] = number
    return found


def contestants(stage: Stage) -> list[Contestant]:
    ours = [
        Contestant(name=f"{user.variant.name} {mode}", argv=user.mesh("exec", *options, "pod", "cat", path), user=user)
        for mode, (options, path) in MODES.items()
        for user in stage.users
    ]
    theirs = [one for one in peers(stage, f"cat {OWN}") if one.name in ("pdsh", "clush", "parallel-ssh")]
    return ours if len(stage.users) > 1 else [*ours, *theirs]


def measured(stage: Stage, found: list[Contestant], rounds: int) -> dict[str, list[Sample]]:
    """wrong: the lines that are lost, and those that are torn."""
    shown = Path("/dev/shm") / f"mesh-logs-{os.getpid()}"
    labels, hosts = labels_of(stage.lab), len(stage.addresses)
    here = [one for one in found if one.argv]
    stage.introduce()
    samples: dict[str, list[Sample]] = {one.name: [] for one in here}
    try:
        for _ in range(rounds):
            for one in here:
                sample = stage.measure(one, out=shown)
                wrong = look(shown, labels, SAME if SAME in one.argv else OWN, hosts)
                samples[one.name].append(replace(sample, wrong=wrong))
                for user in stage.users:
                    shutil.rmtree(user.home / ".local/state/mesh/runs", ignore_errors=True)
    finally:
        shown.unlink(missing_ok=True)
    return samples


def section(hosts: int, samples: Samples) -> str:
    pdsh = medians(samples["pdsh"], lambda sample: sample.seconds) if "pdsh" in samples else 0.0
    rows = []
    for name, taken in samples.items():
        seconds = Spread.of([sample.seconds for sample in taken])
        rate = hosts * MEGABYTES / seconds.median
        cpu, memory = medians(taken, lambda sample: sample.cpu), medians(taken, lambda sample: sample.memory)
        wrong = [str(max(counts)) for counts in zip(*(sample.wrong for sample in taken), strict=True)]
        faster = f"{pdsh / seconds.median:.1f}" if pdsh else "-"
        rows.append([name, seconds.told(1), f"{rate:.0f}", faster, f"{cpu:.1f}", f"{memory:.0f}", *wrong])
    head = ["", "s (min-max)", "MB/s", "rate, pdsh = 1", "client CPU, s", "MB", "lost", "torn"]
    return f"### {hosts} hosts\n\n{table(head, rows)}\n"


def logs(chosen: Chosen) -> str:
    parts, missing = [HEAD], ""
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            same = b"".join(line(b"all", number) for number in range(COUNT))
            for number, host in enumerate(stage.lab.hosts):
                host.path(OWN).write_bytes(same.replace(b"all ", name_of(number) + b" "))
                host.path(SAME).write_bytes(same)
            found = contestants(stage)
            missing = absent(found)
            parts.append(section(hosts, measured(stage, found, chosen.rounds)))
    return "\n".join([*parts, missing])
