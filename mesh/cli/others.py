"""Command lines of other programs: MaxText's multihost_runner.py, and MAD Engine's SSH runner."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mesh import api
from mesh.cli import options as o
from mesh.cli import otheroptions as x
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.reports import aligned
from mesh.cli.speech import say, show
from mesh.core.errors import UsageError
from mesh.core.escapes import plain

if TYPE_CHECKING:
    from mesh.compat.maxtextjob import MultihostJob

GROUP = "Other programs' command lines"
REASON_WIDTH = 100  # characters of the reason why a node took no part
MULTIHOST_JOB_LINE = 'mesh multihost-job --BUCKET_NAME=NAME --COMMAND="bash setup.sh; python3 train.py"'
MULTIHOST_LINE = 'mesh multihost --TPU_PREFIX=NAME --COMMAND="bash setup.sh"'


@command(
    "multihost",
    GROUP,
    "--TPU_PREFIX=NAME --COMMAND=TEXT",
    examples=(
        ('mesh multihost --TPU_PREFIX=pod --COMMAND="bash setup.sh"', "on every worker"),
        ('mesh multihost --TPU_PREFIX=pod --COMMAND="python3 train.py" --RUN_NAME=r1', "in a directory of that name"),
    ),
)
def multihost(given: Given) -> int:
    """Run on all workers of TPUs, as MaxText's multihost_runner.py does."""
    from mesh.compat import maxtext

    for option in (x.TPU_PREFIX, x.TPU_COMMAND):
        if not given[option]:
            raise UsageError(f"{option.flag} is missing", hint=MULTIHOST_LINE)
    seconds = given[x.SCP_TIMEOUT_SECS]
    result = maxtext.multihost(
        given[x.TPU_COMMAND],
        tpu_prefix=given[x.TPU_PREFIX],
        script_dir=given[x.SCRIPT_DIR],
        run_name=given[x.RUN_NAME],
        use_existing_folder=bool(given[x.USE_EXISTING_FOLDER]),
        internal_ip=given[x.INTERNAL_IP],
        project=given[x.PROJECT],
        zone=given[x.ZONE],
        scp_timeout_secs=maxtext.SCP_TIMEOUT_SECS if seconds is None else seconds,
        clusters_file=given[x.TPU_CLUSTERS],
        output="",
    )
    return result.exit_code


@command(
    "multihost-job",
    GROUP,
    "--COMMAND=TEXT --BUCKET_NAME=NAME",
    examples=(
        ('mesh multihost-job --COMMAND="bash setup.sh; python3 train.py" --BUCKET_NAME=logs', "2 slices of v4-8"),
        ('mesh multihost-job --COMMAND="bash x.sh" --BUCKET_NAME=logs --CQR_EXTRA_ARGS=--reserved', "reserved ones"),
    ),
)
def multihost_job(given: Given) -> int:
    """Run on TPUs that are made for it, as multihost_job.py does."""
    from mesh.cli import joboptions as j
    from mesh.compat import maxtextjob

    submitted, lines = maxtextjob.multihost_job(multihost_job_flags(given))
    for notice in submitted.notices:
        say(notice)
    show(lines)
    if not given[j.ATTACH]:
        return 0
    from mesh.api.jobruns import JobOutput, job_attach

    return job_attach(submitted[0].id, JobOutput(look=given.look()), notify=say)


def multihost_job_flags(given: Given) -> MultihostJob:
    """Return the flags of multihost_job.py as they were given. Raises UsageError if one is missing."""
    from mesh.compat.maxtextjob import NUM_SLICES, TPU_TYPE, VERSION, MultihostJob

    for option in (x.JOB_COMMAND, x.BUCKET_NAME):
        if not given[option]:
            raise UsageError(f"{option.flag} is missing", hint=MULTIHOST_JOB_LINE)
    slices = given[x.NUM_SLICES]
    return MultihostJob(
        command=given[x.JOB_COMMAND],
        bucket_name=given[x.BUCKET_NAME],
        bucket_dir=given[x.BUCKET_DIR],
        script_dir=given[x.JOB_SCRIPT_DIR],
        run_name=given[x.JOB_RUN_NAME],
        tpu_type=given[x.TPU_TYPE] or TPU_TYPE,
        version=given[x.TPU_VERSION] or VERSION,
        num_slices=NUM_SLICES if slices is None else slices,
        project=given[x.JOB_PROJECT],
        zone=given[x.JOB_ZONE],
        extra_args=given[x.CQR_EXTRA_ARGS],
        autocheckpoint=bool(given[x.ENABLE_AUTOCHECKPOINT]),
    )


# Flags that may also stand in the INI file; `mesh.config.mad` reads both.
MAD_TEXTS = (
    x.MAD_MODEL,
    x.MAD_NODES,
    x.MAD_USER,
    x.MAD_PASSWORD_ENV,
    x.MAD_KEY,
    x.MAD_MASTER,
    x.MAD_PORT,
    x.MAD_DATA,
    x.MAD_NCCL,
    x.MAD_GLOO,
    x.MAD_TIMEOUT,
    x.MAD_PROGRAM,
    x.MAD_ARGUMENTS,
    x.MAD_DIRECTORY,
)


@command(
    "mad",
    GROUP,
    examples=(
        ("mesh mad --model TAG --nodes 10.0.0.1,10.0.0.2 --ssh-user me --ssh-key ~/.ssh/id_rsa", "two nodes"),
        ("mesh mad --config mad.ini --timeout 2h", "sections [cluster], [ssh], [training], [madengine]"),
    ),
)
def mad(given: Given) -> int:
    """Run madengine on every node, as MAD Engine's SSH runner does."""
    from mesh.compat import madengine
    from mesh.config.mad import read_mad
    from mesh.core.outcome import Cause

    typed: dict[str, str | bool | None] = {option.name: given[option] for option in MAD_TEXTS}
    typed[x.MAD_PASSWORD.name] = given[x.MAD_PASSWORD]
    job = read_mad(typed, given[x.MAD_CONFIG], os.environ)
    if given[o.DRY_RUN]:
        show(madengine.plan_mad(job))
        return 0
    json = given[o.JSON]
    result = madengine.mad(job, wait=given[o.MAD_WAIT], output=given[o.SHOWN], label=given[o.MAD_LABEL], json=json)
    if not json and result.cause is not Cause.OUTPUT_CLOSED:
        show(node_table(result))
    return result.exit_code


def node_table(result: api.RunResult) -> Iterator[str]:
    """Return how madengine ended on each node, and on how many it succeeded."""
    rows = [[rank.host, str(rank.rank), _end(result, rank)] for rank in result.ranks]
    yield from aligned([["node", "rank", "result"], *rows])
    yield f"Successful nodes: {sum(rank.code == 0 for rank in result.ranks)}/{len(result.ranks)}"


def _end(result: api.RunResult, rank: api.RankResult) -> str:
    from mesh.core.events import Exited

    if rank.code is not None or rank.signal is not None:
        return Exited(time=0, node=0, rank=rank.rank, code=rank.code or 0, signal=rank.signal or 0).told()
    lead = f"{rank.host}: "
    why = next((failure for failure in result.failures if failure.startswith(lead)), "")
    reason = plain(why.removeprefix(lead).split("\n")[0])
    return textwrap.shorten(reason, REASON_WIDTH, placeholder="...") or (
        "not started" if result.failures else "its end is not recorded"
    )
