"""The output of a run: from its directory on this machine, and the missing part from its hosts."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.detached import DetachedRun, find_detached, known
from mesh.api.fetching import Fetch, fetch
from mesh.api.meant import run_meant
from mesh.api.newest import present_attempt
from mesh.api.records import find_record, list_records
from mesh.app.screen import Showing, style_of
from mesh.core.amounts import told_bytes
from mesh.core.errors import MeshError, OutputClosed, UsageError
from mesh.core.events import Connected, Finished, Output, Stream
from mesh.core.look import Look
from mesh.core.naming import LAST
from mesh.core.ranks import choose_ranks, told_ranks
from mesh.core.run import Kind
from mesh.rundir.grep import LineFilter
from mesh.rundir.layout import LOGS
from mesh.rundir.records import Record, State, read_record
from mesh.rundir.replay import Replay
from mesh.screen.terminal import Streams, TerminalSink

PLAIN = Look()
LOGS_POLL_S = 0.2  # between two looks for more output
_MAY_BE_ID = re.compile("[0-9a-f-]+")  # or a part of one


def logs(
    run: str = LAST,
    *,
    ranks: Iterable[int] | str | None = None,
    stderr: bool = False,
    prerun: bool = False,
    since: float | None = None,
    grep: str = "",
    before: int = 0,
    after: int = 0,
    follow: bool = False,
    output: str = "all",
    label: str = "rank",
    fold: str = "numbers",
    cluster: str = "",
    clusters_file: str = "",
    local: bool = False,
    look: Look = PLAIN,
) -> None:
    """Show the output of a run as ``run`` shows it: in the order in which it came here.

    Output that only the hosts of a detached run have is fetched first, without an effect on the run.

    run: an id, a name or tag, a part of an id or name, "last", or a cluster for the newest run there
    cluster: where a run is that this machine has no record of; "": every cluster of cluster.yaml is asked
    local: ask no host
    ranks: only of these, numbers or text as --rank takes it; None: of all
    stderr: only their stderr; prerun: what prerun printed on their hosts instead
    since: only what came within so many seconds before now
    grep: only lines in which this regular expression matches; before, after: so many lines around each as well
    follow: go on until the run has ended, or its client is gone and it is not detached
    output, label, fold, look: as with ``run``
    Raises UsageError, MeshError if the logs cannot be read or shown, and OutputClosed if nobody reads stdout any more.
    """
    showing = Showing(output=output, label=label, fold=fold, look=look)
    pattern = _pattern(grep)
    begin = 0.0 if since is None else time.time() - since
    with contextlib.closing(_Hosts(clusters_file, local=local, lasting=follow)) as hosts:
        meant = run_meant(run, cluster, clusters_file)
        record = _named(*(meant if local else present_attempt(*meant, clusters_file)), hosts)
        chosen = _chosen(record, ranks, output)
        replay = Replay(record, streams=_streams(record, stderr, prerun), ranks=chosen, since=begin)
        # prerun has a stream and a place on the screen of its own while a run is on; here it was asked for.
        lines = LineFilter(pattern, before, after) if pattern else None
        display = _Display(record, replace(showing, output="all") if prerun else showing, lines, of_hosts=prerun)
        try:
            _show(replay, display, record, hosts, follow=follow, has_since=since is not None)
        except OutputClosed:
            raise OutputClosed("") from None
        except FileNotFoundError:
            raise MeshError(f"there are no logs of run {record.run}", hint=str(record.directory)) from None
        except OSError as error:
            raise MeshError(f"cannot read the logs of run {record.run}: {error}") from error
        finally:
            replay.close()
    if problem := display.terminal.problem:
        raise MeshError(f"not all could be shown: {problem}", hint="the disk that stdout goes to may be full")


class LogQuery(Struct, frozen=True, kw_only=True):
    """Which output of many runs is wanted."""

    ranks: str = ""  # as --rank takes them; "": all. Runs without them are left out
    stderr: bool = False
    prerun: bool = False
    since: float | None = None  # seconds before now; None: all of it
    grep: str = ""
    before: int = 0  # lines around a match
    after: int = 0


def logs_of_all(query: LogQuery, showing: Showing, begin: Callable[[Record], object]) -> list[str]:
    """Show the output of every run of this machine that has any, the oldest run first. No host is asked.

    begin: called with each run before its first line
    Returns notices. Raises UsageError, MeshError if something cannot be shown, and OutputClosed.
    """
    _pattern(query.grep)  # an error of it is none of a run
    since = 0.0 if query.since is None else time.time() - query.since
    records = [one for one in reversed(list_records()) if one.ended is None or one.ended >= since]
    unfit, shown, lacking = list[UsageError](), 0, list[str]()
    for record in records:
        try:
            shown += _show_one(record, query, showing, since, begin)
        except UsageError as error:
            unfit.append(error)
        except FileNotFoundError:  # it has no logs, or is being removed
            continue
        except OutputClosed:
            raise OutputClosed("") from None
        except OSError as error:
            raise MeshError(f"cannot read the logs of run {record.run}: {error}") from error
        if record.lacks_output:
            lacking.append(record.run)
    if unfit and len(unfit) == len(records):
        raise unfit[-1]
    notices = [f"{run}: its hosts may have more output: `mesh logs {run}` fetches it" for run in lacking]
    if not shown:
        notices.append(f"nothing was found in {len(records)} runs of this machine")
    return notices


def _show_one(
    record: Record, query: LogQuery, showing: Showing, since: float, begin: Callable[[Record], object]
) -> bool:
    """Show the wanted output of one run; return True if there was any. Raises UsageError if the run cannot have it."""
    chosen = _chosen(record, query.ranks or None, showing.output)
    replay = Replay(record, streams=_streams(record, query.stderr, query.prerun), ranks=chosen, since=since)
    pattern = _pattern(query.grep)
    lines = LineFilter(pattern, query.before, query.after) if pattern else None
    shown = replace(showing, output="all") if query.prerun else showing
    display = _Display(record, shown, lines, lambda: begin(record), of_hosts=query.prerun)
    with contextlib.closing(replay):
        display.show(replay.advance())
        if not replay.has_index and query.since is not None:
            raise UsageError(f"run {record.run} has no record of what came when", hint="leave out --since")
        display.show(replay.rest())
        display.end(record.run)
    if problem := display.terminal.problem:
        raise MeshError(f"not all could be shown: {problem}", hint="the disk that stdout goes to may be full")
    return display.has_shown


class _Display:
    """The terminal, the filter of its lines, and the time of the output that it shows."""

    def __init__(
        self,
        record: Record,
        showing: Showing,
        lines: LineFilter | None,
        begin: Callable[[], object] = lambda: None,
        *,
        of_hosts: bool = False,
    ) -> None:
        """begin: called before the first line

        of_hosts: the output is that of hosts, which have the labels that they had before any rank moved
        """
        self._clock = _Clock()
        self._lines, self._begin = lines, begin
        self.is_empty = True  # there was no output
        self.has_shown = False  # some of it was shown
        style = style_of(showing, record.spec, is_cut=False)
        placement = record.first_placement if of_hosts else record.placement
        self.terminal = TerminalSink(placement, style, Streams(environ=os.environ), clock=self._clock)
        for node in range(len(placement.hosts)):
            self.terminal.handle(Connected(time=0.0, node=node, address="", machine=""))

    def show(self, outputs: Iterable[Output]) -> None:
        """Show the lines of some output that match."""
        for output in outputs:
            self.is_empty = False
            self._clock.reach(output.time)
            for shown in self._lines.feed(output) if self._lines else (output,):
                self._handle(shown)

    def _handle(self, shown: Output) -> None:
        if not self.has_shown:
            self.has_shown = True
            self._begin()
        self.terminal.handle(_as_own(shown))

    def wait(self) -> None:
        """Wait a little for more output."""
        self._clock.reach(time.time())
        self.terminal.idle()
        time.sleep(LOGS_POLL_S)

    def end(self, run: str) -> None:
        """Show the last line, also if it has no end."""
        for shown in self._lines.end() if self._lines else ():
            self._handle(shown)
        self.terminal.handle(Finished(time=0.0, exit_code=0, cause="", run=run))


def _show(replay: Replay, display: _Display, record: Record, hosts: _Hosts, *, follow: bool, has_since: bool) -> None:
    say = display.terminal.say
    while True:
        record = read_record(record.directory)  # before the output: then its end is the end of that output
        display.show(replay.advance())
        if not replay.has_index and has_since:
            raise UsageError(f"run {record.run} has no record of what came when", hint="leave out --since")
        if follow and record.state is State.DETACHED and hosts.may_be_asked:  # its client has left it
            hosts.bring(known(record), is_known=True)
            continue
        if not follow or record.state is not State.ON:
            break
        for line in hosts.news():
            say(line)
        display.wait()
    display.show(replay.rest())
    display.end(record.run)
    hosts.close()
    for line in (*hosts.news(), *_left_out(read_record(record.directory), replay)):
        say(line)
    _conclude(say, record, hosts, follow=follow, is_empty=display.is_empty and not has_since)


class _Hosts:
    """The hosts of a detached run, which are asked once for missing output."""

    def __init__(self, clusters_file: str, *, local: bool, lasting: bool) -> None:
        """local: do not ask them; lasting: for what comes later as well."""
        self._clusters_file, self._lasting = clusters_file, lasting
        self._fetch: Fetch | None = None
        self._problem = ""
        self.may_be_asked = not local

    def find(self, run: str, cluster: str) -> DetachedRun:
        """Return a run that this machine has no record of, or the last one there. Raises UsageError."""
        return find_detached(run, cluster, self._clusters_file)

    def bring(self, found: DetachedRun, *, is_known: bool) -> None:
        """Bring the missing output here; all that exists now has come when this returns.

        is_known: there is something here already. If not, it raises MeshError where nothing comes
        """
        self.may_be_asked = False
        try:
            self._fetch = fetch(found, self._clusters_file, lasting=self._lasting)
            if self._fetch:
                self._fetch.wait()
        except MeshError as error:
            if not is_known:
                raise
            self._problem = f"nothing was fetched from its hosts: {error}"

    def news(self) -> Iterator[str]:
        """Yield the reasons why some of it is missing, each once."""
        if self._problem:
            yield self._problem
            self._problem = ""
        if self._fetch:
            yield from self._fetch.news()

    @property
    def have_told(self) -> bool:
        """True if all of them have sent the output that they have."""
        return self._fetch is not None and self._fetch.is_complete

    def close(self) -> None:
        if self._fetch:
            self._fetch.close()


class _Clock:
    """The time at which what is shown came: what is folded does not depend on how fast we read."""

    def __init__(self) -> None:
        self._now = 0.0  # seconds since the epoch

    def reach(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def __call__(self) -> float:
        return self._now


def _conclude(say: Callable[[str], None], record: Record, hosts: _Hosts, *, follow: bool, is_empty: bool) -> None:
    if record.state is State.DETACHED and hosts.may_be_asked:
        say(f"{record.run} is detached: its hosts may have more, which `mesh logs` without --local fetches")
    elif record.state is State.DETACHED and hosts.have_told:
        say(f"{record.run} is still running, detached: `mesh logs -f {record.run}` follows it")
    elif record.state is State.DETACHED:
        say(f"{record.run} is detached: `mesh attach {record.run}` comes back to it")
    elif record.state is State.DIED:
        say(f"{record.run}: its client has died, and with it the rest of its logs")
    elif follow and record.state is State.ENDED:
        cause = "" if record.cause in ("completed", "rank") else f" ({record.cause})"
        say(f"{record.run} has ended: exit {record.exit_code}{cause}")
    if is_empty and record.state is not State.ON:
        say(f"nothing was printed; what there is lies in {record.directory / LOGS}")
        if any(Path(record.directory / LOGS).glob(f"{Stream.PRERUN.value}-*")):
            say(f"`mesh logs {record.run} --prerun` shows what prerun printed")


def _left_out(record: Record, replay: Replay) -> Iterator[str]:
    """Yield output that never came from the hosts, and has no line of its own in the logs."""
    items = record.about.get("left_out")
    missing: dict[int, int] = {}
    for item in items if isinstance(items, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if "log" not in item and replay.shows(int(item["rank"]), Stream(item["stream"])):
                missing[int(item["rank"])] = missing.get(int(item["rank"]), 0) + int(item["bytes"])
    if missing:
        size = told_bytes(sum(missing.values()))
        yield f"left out on the hosts: {size} of {told_ranks(missing)}, beyond `spool:` or for want of room there"


def _as_own(output: Output) -> Output:
    """Turn output of prerun into output of all hosts on stdout, as nothing else is shown."""
    if output.stream is not Stream.PRERUN:
        return output
    return Output(time=output.time, node=output.node, rank=output.rank, stream=Stream.SETUP, data=output.data)


def _named(run: str, cluster: str, hosts: _Hosts) -> Record:
    """Return the named run, with the output of its hosts. Raises UsageError, and MeshError if there is none."""
    record = None if cluster and run == LAST else find_record(run)
    if record is None and run == LAST and not cluster:
        hint = "`mesh run CLUSTER COMMAND` starts one; `mesh runs` lists what `mesh exec` has run, by its id"
        raise UsageError("this machine has started no run yet", hint=hint)
    if record is None and (not hosts.may_be_asked or not (cluster or _MAY_BE_ID.fullmatch(run))):
        raise UsageError(
            f"no run {run!r} was started on this machine",
            hint="`mesh runs` lists those that were; `mesh logs --cluster CLUSTER RUN` asks hosts",
        )
    if record is None:
        found = hosts.find(run, cluster)
        record = find_record(found.run)
        lacks = record is None or record.lacks_output or record.state is State.DIED
    else:
        found, lacks = known(record, cluster), record.lacks_output
    if lacks and hosts.may_be_asked:
        hosts.bring(found, is_known=record is not None)
        record = find_record(found.run)
    if record is None:
        raise MeshError("\n".join([f"nothing of run {found.run} could be fetched", *hosts.news()]))
    return record


def _streams(record: Record, stderr: bool, prerun: bool) -> tuple[Stream, ...]:
    if prerun and stderr:
        raise UsageError("prerun has one log for both of its outputs", hint="leave out --stderr")
    if prerun:
        return (Stream.PRERUN,)
    if record.kind == Kind.SETUP.value:
        if stderr:
            raise UsageError("a setup has one log for both of its outputs", hint="leave out --stderr")
        return (Stream.SETUP,)
    return (Stream.STDERR,) if stderr else (Stream.STDOUT, Stream.STDERR)


def _chosen(record: Record, ranks: Iterable[int] | str | None, output: str) -> set[int] | None:
    if ranks is None:
        return None
    last = record.placement.world_size - 1
    chosen = choose_ranks("--rank", ranks, record.placement) if isinstance(ranks, str) else set(ranks)
    if beyond := {rank for rank in chosen if not 0 <= rank <= last}:
        raise UsageError(f"--rank: no {told_ranks(beyond)} in run {record.run}: its ranks are 0-{last}")
    if output == "rank0" and chosen != {0}:
        raise UsageError("--output rank0 shows rank 0 alone", hint="leave out --rank, or --output")
    return chosen


def _pattern(text: str) -> re.Pattern[str] | None:
    """Return the compiled regular expression, None for "". Raises UsageError."""
    if not text:
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        reason = error.msg if isinstance(error, re.error) else error
        hint = f"for plain text: mesh logs -F --grep {shlex.quote(text)}"
        raise UsageError(f"--grep: {text!r} is no regular expression: {reason}", hint=hint) from error
