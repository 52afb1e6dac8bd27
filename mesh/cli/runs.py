"""Commands about runs that are there: on hosts without a client, or in this machine's run directories."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from json import dumps

from msgspec.structs import asdict

from mesh import api
from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.logoptions import pattern_of
from mesh.cli.options import Given
from mesh.cli.speech import columns, paint_of, say, show
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import LAST

GROUP = "Runs"
NEWEST = "the last run of this machine"
PRUNE = "prune"
RUNS_SHOWN = 20  # rows of `mesh runs`


@command(
    "attach",
    GROUP,
    "[RUN]",
    examples=(("mesh attach", "the last run"), ("mesh attach 20261121-10 --from start", "all that it printed")),
)
def attach(given: Given) -> int:
    """Come back to a detached run: its output and its exit status."""
    result = api.attach(
        given[o.RUN] or LAST,
        cluster=given[o.CLUSTER_OF_RUN],
        begin=given[o.FROM],
        clusters_file=given[o.CLUSTERS],
        output=given[o.SHOWN],
        label=given[o.LABEL],
        fold=given[o.FOLD],
        json=given[o.JSON],
        look=given.look(),
    )
    return result.exit_code


@command("detach", GROUP, "[RUN]", examples=(("mesh detach last", "close the laptop after that"),))
def detach(given: Given) -> None:
    """Leave a run to its hosts; its client exits."""
    run = api.detach(given[o.RUN] or LAST, cluster=given[o.CLUSTER_OF_RUN], clusters_file=given[o.CLUSTERS])
    say(f"{run} is still running, detached; `mesh attach {run}` comes back")


@command("signal", GROUP, "RUN SIGNAL", examples=(("mesh signal last USR1 --rank 0", "rank 0 alone"),))
def signal(given: Given) -> None:
    """Send a signal to the processes of ranks that handle it."""
    run, name = given[o.RUN], given[o.SIGNAL]
    if not run or not name:
        raise UsageError("expected a run and a signal", hint="mesh signal RUN USR1")
    from mesh.api.attaching import signalled
    from mesh.core.ranks import told_ranks, told_roles

    where = {"cluster": given[o.CLUSTER_OF_RUN], "clusters_file": given[o.CLUSTERS]}
    placement, sent = signalled(run, name, ranks=given[o.SOME_RANKS] or None, **where)

    def named(ranks: Sequence[int]) -> str:
        names = told_roles(ranks, placement)
        return told_ranks(ranks) + (f" ({names})" if names else "")

    if reached := [rank for rank, count in sent.items() if count]:
        show([f"signalled {named(reached)}"])
    if missed := [rank for rank, count in sent.items() if not count]:
        raise MeshError(f"{named(missed)}: no process there has a handler for {name}, which would end it")


@command(
    "restart",
    GROUP,
    "RUN --rank RANKS",
    examples=(
        ("mesh restart last --rank 3", "a new process for rank 3"),
        ("mesh restart last --rank actor/1 --grace 60", "its old one has 60 s after SIGTERM"),
        ("mesh restart last --rank 3 --on tpu-8", "on a spare host, see spares: of cluster.yaml"),
    ),
)
def restart(given: Given) -> None:
    """Start ranks of a run again, while the others go on."""
    run, ranks = given[o.RUN], given[o.SOME_RANKS]
    if not run or not ranks:
        raise UsageError("expected a run and its ranks", hint="mesh restart RUN --rank 3")
    restarted = api.restart(
        run,
        ranks,
        on=given[o.ON_HOST],
        grace=given.options().grace,
        cluster=given[o.CLUSTER_OF_RUN],
        clusters_file=given[o.CLUSTERS],
    )
    where = [f" on {one.host}" if one.host else "" for one in restarted]
    show([f"{one.name} started again{host}, pid {one.pid}" for one, host in zip(restarted, where, strict=True)])


@command(
    "stop",
    GROUP,
    "RUN | --all --cluster CLUSTER",
    examples=(
        ("mesh stop last", "the last run"),
        ("mesh stop pod", "the one run there"),
        ("mesh stop --all --cluster pod", "every run of yours there"),
    ),
)
def stop(given: Given) -> None:
    """End a run on every host; succeeds once nothing of it is left."""
    run = given[o.RUN]
    stopped = api.stop(
        run,
        every=given[o.ALL],
        cluster=given[o.CLUSTER_OF_RUN],
        options=given.options(),
        clusters_file=given[o.CLUSTERS],
    )
    name = NEWEST if run == LAST else run
    nothing = f"nothing to stop: {name} has ended already" if run else "no run is there"
    show([f"stopped {one}" for one in stopped] or [nothing])


@command(
    "logs",
    GROUP,
    "[RUN]",
    examples=(
        ("mesh logs", "the last run, as `mesh run` showed it"),
        ("mesh logs -f --rank 3,5-7", "go on until it ends, some ranks only"),
        ("mesh logs last --since 10m --grep 'loss|nan' --stderr", "some lines only"),
        ("mesh logs --all --since 1d --grep nan -C 2", "of every run, with two lines around each"),
    ),
)
def logs(given: Given) -> None:
    """Show what the ranks of a run have printed."""
    before, after = _around(given)
    grep = pattern_of(given)
    if given[d.ALL_LOGS]:
        _logs_of_all(given, grep, before, after)
        return
    api.logs(
        given[o.RUN] or LAST,
        ranks=given[o.SOME_RANKS] or None,
        stderr=given[o.STDERR],
        prerun=given[o.PRERUN_LOGS],
        since=given[o.SINCE],
        grep=grep,
        before=before,
        after=after,
        follow=given[o.FOLLOW],
        output=given[o.SHOWN],
        fold=given[o.FOLD],
        label=given[o.LABEL],
        cluster=given[o.CLUSTER_OF_RUN],
        clusters_file=given[o.CLUSTERS],
        local=given[o.LOCAL],
        look=given.look(),
    )


def _around(given: Given) -> tuple[int, int]:
    """Return how many lines before and after a match are shown. Raises UsageError."""
    around = given[d.AROUND]
    asked = [option.flag for option in (d.BEFORE, d.AFTER, d.AROUND) if given[option] is not None]
    if asked and not given[o.GREP]:
        raise UsageError(f"{asked[0]}: there is no --grep to show lines around", hint="mesh logs --grep X -C 2")
    before, after = (around if given[one] is None else given[one] for one in (d.BEFORE, d.AFTER))
    return before or 0, after or 0


def _logs_of_all(given: Given, grep: str, before: int, after: int) -> None:
    """Show lines of every run. Raises UsageError for options of one run."""
    of_one = {"RUN": given[o.RUN], o.FOLLOW.flag: given[o.FOLLOW], o.CLUSTER_OF_RUN.flag: given[o.CLUSTER_OF_RUN]}
    if found := next((name for name, value in of_one.items() if value), ""):
        raise UsageError(f"--all: {found} is for one run", hint="mesh logs --all --since 1d --grep X")
    from mesh.api.replaying import LogQuery, logs_of_all
    from mesh.app.screen import Showing
    from mesh.cli.records import headline

    query = LogQuery(
        ranks=given[o.SOME_RANKS],
        stderr=given[o.STDERR],
        prerun=given[o.PRERUN_LOGS],
        since=given[o.SINCE],
        grep=grep,
        before=before,
        after=after,
    )
    showing = Showing(output=given[o.SHOWN], fold=given[o.FOLD], label=given[o.LABEL], look=given.look())
    for notice in logs_of_all(query, showing, lambda record: show([headline(record)])):
        say(notice)


@command(
    "runs",
    GROUP,
    "[PART | prune]",
    examples=(
        ("mesh runs", "the newest 20"),
        ("mesh runs lr3", "those with lr3 in their id or name, or as a tag"),
        ("mesh runs --tag sweep --all", "those with a tag"),
        ("mesh runs prune", "remove those older than 30 days, but not the last 50"),
        ("mesh runs prune --keep 10 --dry-run", "what would be removed"),
    ),
)
def runs(given: Given) -> None:
    """List the runs that this machine has started, or remove old ones."""
    from mesh.cli.records import pruned

    action, keep, older_than = given[o.ACTION], given[o.KEEP], given[o.OLDER_THAN]
    dry_run, json = given[o.DRY_PRUNE], given[o.JSON_RUNS]
    if action == PRUNE:
        if given[o.RUNS_TAG] or given[o.RUNS_ALL]:
            raise UsageError("--tag and --all are for the list of `mesh runs`")
        removed = api.prune(keep=keep, older_than=older_than, dry_run=dry_run)
        show((dumps(asdict(one)) for one in removed) if json else pruned(removed, dry_run))
        return
    if keep is not None or older_than is not None or dry_run:
        raise UsageError("--keep, --older-than and --dry-run are for `mesh runs prune`")
    _list(action, given)


def _list(part: str, given: Given) -> None:
    """List runs. part: of an id or name, or a tag; "": all runs. JSON has all of them, as scripts count them."""
    from mesh.cli.records import record_as_json, records_table

    records = api.list_records(part, tag=given[o.RUNS_TAG])
    if not records and (part or given[o.RUNS_TAG]):
        wanted = f"{part!r} in its id or name, or as a tag" if part else f"the tag {given[o.RUNS_TAG]!r}"
        near = did_you_mean(part, [PRUNE]) if part else ""
        more = near if near.startswith("; did you mean") else ""
        raise UsageError(f"no run of this machine has {wanted}{more}", hint="mesh runs --all")
    if given[o.JSON_RUNS]:
        show(map(record_as_json, records))
        return
    shown = records if given[o.RUNS_ALL] else records[:RUNS_SHOWN]
    show(records_table(shown, time.time(), columns(), paint_of(sys.stdout)))
    if len(shown) < len(records):
        say(f"{len(shown)} of {len(records)} runs; `mesh runs --all` lists all")
