"""How long `mesh check` takes."""

from __future__ import annotations

from benchmarks.rows import Chosen, told
from benchmarks.stage import Contestant, Stage

HEAD = """\
## mesh check

Every host is looked at, listens, is reached by others, and tells what the ranks' Python has; no other tool does so.
"""


def check(chosen: Chosen) -> str:
    parts = [HEAD]
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            found = [
                Contestant(name=f"{user.variant.name} check", argv=user.mesh("check", "pod"), user=user)
                for user in stage.users
            ]
            samples = stage.compare(found, chosen.rounds)
        columns = ["client CPU, s", "hosts' CPU, s"]
        parts.append(
            told(chosen, f"{hosts} hosts", "until its end", samples, lambda sample: sample.seconds, columns) + "\n"
        )
    return "\n".join(parts)
