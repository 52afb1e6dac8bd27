"""The steward's audit: it finds machines of this store without a job. Run by ``python -m mesh.api.straying``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from mesh.api.machines import Audit, Look, audit_machines
from mesh.jobs.audit import LOOK_INTERVAL_S, Whose
from mesh.jobs.coding import encode
from mesh.jobs.strays import Stray, Strays

OWNERLESS = (Whose.ORPHAN, Whose.UNKNOWN)


def find_strays(
    *, look: Look | None = None, interval: float = LOOK_INTERVAL_S, sleep: Callable[[float], None] = time.sleep
) -> Strays:
    """Return the machines of this store without an owner, as two looks at the zones of all jobs agree.

    interval: seconds between the looks. Raises MeshError.
    """
    first = audit_machines(look=look, of_jobs=True)
    if not _strays(first):
        return Strays(time=time.time(), silent=first.silent_places)
    sleep(interval)
    second = audit_machines(look=look, of_jobs=True)
    before = {one.identity for one in _strays(first)}
    found = tuple(one for one in _strays(second) if one.identity in before)
    silent = tuple(dict.fromkeys((*first.silent_places, *second.silent_places)))
    return Strays(time=time.time(), found=found, silent=silent)


def _strays(seen: Audit) -> list[Stray]:
    return [
        Stray(name=one.name, kind=one.kind, zone=one.zone, project=one.project, job=one.job, per_hour=one.per_hour)
        for one in seen.found
        if one.whose in OWNERLESS
    ]


def argv() -> tuple[str, ...]:
    """Return the argv of a child of the steward that finds strays."""
    return (sys.executable, "-m", __name__)


def main() -> None:
    """Run the audit as a child of the steward, and write the findings to standard output."""
    from mesh.api.hand import use_users_path
    from mesh.core.title import set_title
    from mesh.jobs.child import die_with_parent

    die_with_parent()
    set_title("mesh-hand audit")
    use_users_path()
    sys.stdout.write(encode(find_strays()))


if __name__ == "__main__":
    main()
