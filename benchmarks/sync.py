"""How long until every host has the workspace, beside parallel rsync, tar over ssh and clush --copy."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.peers import close_masters, masters
from benchmarks.rows import Chosen, absent, told
from benchmarks.stage import Contestant, Stage

UPLINK = "100mbit"
MASTERED = "rsync -a over ControlMaster"
ONE_COPY = "rsync -a, to one host"
AS_ONE = (ONE_COPY, "tar over ssh")  # left out where tar would send everything again
SLOW = (*AS_ONE, "clush --copy")
HEAD = """\
## The workspace on every host

Whole commands. "MB sent" is what left the client's network interface, everything included. mesh (`mesh push`) also
takes every host's lock and checks on every host that each path is as it should be. "Cold" is a host that has had mesh
before, but nothing of this workspace. "Kept" is `keep: 600`, with open connections.
"""


def contestants(stage: Stage) -> list[Contestant]:
    ours = [user.contestant("push", "push", "pod", kept=kept) for kept in (False, True) for user in stage.users]
    if len(stage.users) > 1:
        return ours
    here, ssh = stage.user.project, shlex.join(["ssh", *stage.ssh_options])
    kept_ssh = shlex.join(["ssh", *stage.ssh_options, *masters(stage)])
    count = len(stage.addresses)
    each = f"printf '%s\\n' {' '.join(stage.addresses)} | xargs -P {count} -I% sh -c "
    there = "mkdir -p copy; tar -C copy -xf -"
    width = f"-l root -f {count} -w {','.join(stage.addresses)}"
    scripts = {
        "rsync -a": each + shlex.quote(f"rsync -a --delete -e {shlex.quote(ssh)} {here}/ root@%:copy/"),
        ONE_COPY: f"rsync -a --delete -e {shlex.quote(ssh)} {here}/ root@{stage.addresses[0]}:copy/",
        MASTERED: each + shlex.quote(f"rsync -a --delete -e {shlex.quote(kept_ssh)} {here}/ root@%:copy/"),
        "tar over ssh": each + shlex.quote(f"tar -C {here} -cf - . | {ssh} root@% {shlex.quote(there)}"),
        "clush --copy": f"clush {width} -o {shlex.quote(' '.join(stage.ssh_options))} --copy {here} --dest /root/clush",
    }
    return [
        *ours,
        *(
            Contestant(
                name=name,
                argv=["sh", "-c", script] if shutil.which(name.split()[0]) else (),
                user=stage.user,
                missing="" if shutil.which(name.split()[0]) else f"Debian: {name.split()[0]}",
            )
            for name, script in scripts.items()
        ),
    ]


def forget(stage: Stage) -> None:
    """As if nothing had ever been sent."""
    for host in stage.lab.hosts:
        host.script("rm -rf copy clush .mesh; mkdir clush")


def _is_connected(one: Contestant) -> bool:
    """Whether its connections are open before."""
    return one.name == MASTERED or one.environ.get("MESH_KEEP", "0") != "0"


class _Cases:
    """The cases with so many hosts."""

    def __init__(self, stage: Stage, chosen: Chosen) -> None:
        self._stage, self._chosen = stage, chosen
        self.contestants = contestants(stage)
        self._parts: list[str] = []

    def compare(
        self, title: str, before: Callable[[Contestant], object], *, warm: bool, less: tuple[str, ...] = (ONE_COPY,)
    ) -> None:
        """less: the names of those that are left out; where nothing is warm, no connection is there before"""
        here = [one for one in self.contestants if one.name not in less and (warm or not _is_connected(one))]
        found = [replace(one, before=partial(before, one)) for one in here]
        samples = self._stage.compare(found, self._chosen.rounds, warm=warm)
        count = len(self._stage.addresses)
        title = f"{count} host{'s' * (count > 1)}: {title}"
        columns = ["client CPU, s", "hosts' CPU, s", "MB sent"]
        self._parts.append(
            told(self._chosen, title, "until its end", samples, lambda sample: sample.seconds, columns) + "\n"
        )

    def fill(self, files: int, size: int) -> None:
        for user in self._stage.users:
            user.fill(files, size)

    def end(self) -> list[str]:
        """Close all connections; return what was found."""
        close_masters(self._stage)
        return self._parts

    def cold(self, one: Contestant) -> None:
        forget(self._stage)

    def unchanged(self) -> None:
        """What many files add where none has changed."""
        for files in (20, 20_000):
            self.fill(files, 100)
            # What was changed just now is hashed again, twice.
            self.compare(f"{files:,} unchanged files", lambda one: time.sleep(2.5), warm=True, less=SLOW)


def sync(chosen: Chosen) -> str:
    parts, missing = [HEAD], ""
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            cases = _Cases(stage, chosen)
            cases.fill(2000, 10_000)
            stage.introduce()
            cases.compare("cold, 2,000 files, 20 MB", cases.cold, warm=False)
            forget(stage)
            cases.compare("one 1 KB file of 2,000 changed", lambda one: one.user.edit(), warm=True, less=AS_ONE)
            if hosts <= 8:
                cases.fill(20, 1_000_000)
                with stage.slow(uplink=UPLINK):
                    title = "cold, 20 MB over 100 Mbit/s (the bytes of one copy take 1.6 s)"
                    cases.compare(title, cases.cold, warm=False, less=())
                cases.unchanged()
            parts += cases.end()
            missing = absent(cases.contestants)
    with Stage(1, chosen.variants) as stage:  # here nobody else needs the host's processor
        cases = _Cases(stage, chosen)
        cases.unchanged()
        parts += cases.end()
    return "\n".join([*parts, missing])
