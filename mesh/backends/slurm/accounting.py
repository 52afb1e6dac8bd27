"""Slurm's own account of an allocation, read once after a run."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from mesh.backends.slurm.login import Login, login_of
from mesh.backends.slurm.records import AllocationRecords
from mesh.core.amounts import told_bytes
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError

SACCT_TIMEOUT_S = 3.0  # with the connection to the login node
COLUMNS = ("JobID", "ElapsedRaw", "MaxRSS", "ConsumedEnergyRaw", "AllocTRES")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_AMOUNT = re.compile(r"([0-9.]+)([KMGT]?)")


def account_of(cluster: Cluster, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the account of a cluster's allocation so far; {} where there is none, or no answer within 3 s."""
    job, record = cluster.allocation.job, AllocationRecords(environ).get(cluster.allocation.record)
    if record is None or not record.accounts:
        return {}
    login, found = login_of(cluster, environ), dict[str, object]()
    asking = threading.Thread(target=_ask, args=(login, job, found), name="mesh-sacct", daemon=True)
    asking.start()
    asking.join(SACCT_TIMEOUT_S)
    return {} if asking.is_alive() else found


def _ask(login: Login, job: str, found: dict[str, object]) -> None:
    argv = ["sacct", f"--jobs={job}", "--noheader", "--parsable2", f"--format={','.join(COLUMNS)}"]
    try:
        done = login.run(argv, timeout=SACCT_TIMEOUT_S)
    except MeshError:
        return
    finally:
        login.close()
    if not done.status:
        found |= accounted(job, done.out)


def accounted(job: str, text: str) -> dict[str, object]:
    """Return the fields of run.json from the output of sacct; {} if it has no line about the job."""
    rows = [line.split("|") for line in text.splitlines()]
    rows = [row for row in rows if len(row) == len(COLUMNS) and row[0].partition(".")[0] == job]
    whole = next((row for row in rows if row[0] == job), None)
    if whole is None:
        return {}
    found: dict[str, object] = {"job": job, "elapsed": _amount(whole[1])}
    found |= {"max_rss": rss} if (rss := max(_amount(row[2]) for row in rows)) else {}
    found |= {"energy_joules": energy} if (energy := max(_amount(row[3]) for row in rows)) else {}
    return found | ({"tres": whole[4]} if whole[4] else {})


def account_line(found: Mapping[str, object]) -> str:
    """Return an account in one line; "" for an empty one.

    >>> account_line({"job": "12", "elapsed": 70, "max_rss": 209715200, "tres": "cpu=4,node=4"})
    'job 12 of Slurm so far: 70 s, cpu=4,node=4, most memory of a task 209.7 MB'
    """
    if not found:
        return ""
    words = [f"{found['elapsed']} s", *([str(found["tres"])] if "tres" in found else [])]
    rss = found.get("max_rss")
    words += [f"most memory of a task {told_bytes(rss)}"] if isinstance(rss, int) else []
    words += [f"{found['energy_joules']} J"] if "energy_joules" in found else []
    return f"job {found['job']} of Slurm so far: {', '.join(words)}"


def _amount(text: str) -> int:
    """Return a number of sacct, in bytes where it has a unit; 0 for none.

    >>> _amount("10264K"), _amount("70"), _amount("1.5G"), _amount("")
    (10510336, 70, 1610612736, 0)
    """
    found = _AMOUNT.fullmatch(text)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0
