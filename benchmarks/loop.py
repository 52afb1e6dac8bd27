"""The inner loop: a file is saved, and the command runs again on every host."""

from __future__ import annotations

import shlex
import shutil

from benchmarks.peers import MASTERED, close_masters, masters, peers
from benchmarks.rows import Chosen, absent, told
from benchmarks.stage import Contestant, Stage

FILES, SIZE = 2000, 1000  # bytes of a file
HEAD = f"""\
## From a saved file to every host's first line

{FILES:,} files of which one has changed since the last run; from Enter until the last host's line of `echo ready`. The
others send the directory to all hosts at once with rsync, and then run the command. ControlMaster and "kept"
(`keep: 600`) use connections that are open before the start.
"""


def contestants(stage: Stage) -> list[Contestant]:
    ours = [
        user.contestant("run", "run", "pod", "echo", "ready", kept=kept, before=user.edit)
        for kept in (False, True)
        for user in stage.users
    ]
    if len(stage.users) > 1:
        return ours
    project, hosts = stage.user.project, " ".join(stage.addresses)
    then = []
    for peer in peers(stage, "cd copy && echo ready"):
        if peer.name in ("pdsh", "clush", MASTERED):
            more = masters(stage) if peer.name == MASTERED else ()
            ssh = shlex.join(["ssh", *stage.ssh_options, *more])
            rsync = f"rsync -a --delete -e {shlex.quote(ssh)} {project}/ root@%:copy/"
            send = f"printf '%s\\n' {hosts} | xargs -P {len(stage.addresses)} -I% sh -c {shlex.quote(rsync)}"
            here = peer.argv and shutil.which("rsync")
            then.append(
                Contestant(
                    name="rsync and " + peer.name if more else f"parallel rsync, then {peer.name}",
                    argv=["sh", "-c", f"{send} && exec {shlex.join(peer.argv)}"] if here else (),
                    user=stage.user,
                    environ=peer.environ,
                    missing=f"{peer.missing or 'Debian: rsync'}",
                    before=stage.user.edit,
                )
            )
    return [*ours, *then]


def loop(chosen: Chosen) -> str:
    parts, missing = [HEAD], ""
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            for user in stage.users:
                user.fill(FILES, SIZE)
            found = contestants(stage)
            missing = absent(found)
            for milliseconds in (0, 30):
                with stage.slow(round_trip=milliseconds / 1000):
                    samples = stage.compare(found, chosen.rounds, lines=b"ready")
                title = f"{hosts} hosts, round trip {milliseconds} ms"
                columns = ["client CPU, s", "hosts' CPU, s", "MB sent"]
                parts.append(
                    told(chosen, title, "every host's line", samples, lambda sample: sample.first, columns) + "\n"
                )
            close_masters(stage)
    return "\n".join([*parts, missing])
