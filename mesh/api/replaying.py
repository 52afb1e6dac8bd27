"""What ranks of a run have printed: from its directory on this machine, and from its hosts what that lacks."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mesh.api.detached import DetachedRun, find_detached, known
from mesh.api.fetching import Fetch, fetch
from mesh.api.records import LAST, find_record
from mesh.app.assemble import Showing
from mesh.core.amounts import told_bytes
from mesh.core.errors import MeshError, OutputClosed, UsageError
from mesh.core.events import Connected, Finished, Output, Stream
from mesh.core.ranks import choose_ranks, told_ranks
from mesh.core.run import Kind
from mesh.rundir.grep import LineFilter
from mesh.rundir.layout import LOGS
from mesh.rundir.records import Record, State, read_record
from mesh.rundir.replay import Replay
from mesh.screen.terminal import TerminalSink

POLL = 0.2  # seconds between two looks for more
_MAY_BE_ID = re.compile("[0-9][0-9a-f-]*")


def logs(
    run: str = LAST,
    *,
    ranks: Iterable[int] | str | None = None,
    stderr: bool = False,
    prerun: bool = False,
    since: float | None = None,
    grep: str = "",
    follow: bool = False,
    output: str = "all",
    label: str = "rank",
    fold: str = "numbers",
    cluster: str = "",
    clusters_file: str = "",
    local: bool = False,
) -> None:
    """Show what the ranks of a run have printed, as ``run`` shows it: in the order in which it came here.

    What the hosts of a detached run have more is fetched first; that changes nothing for the run.

    run: an id, the beginning of one, or "last"
    cluster: where a run is that this machine knows nothing of; "": every cluster of cluster.yaml is asked
    local: ask no host
    ranks: only of these, numbers or text as --rank takes it; None: of all
    stderr: only their stderr; prerun: what prerun printed on their hosts instead
    since: only what came within so many seconds before now
    grep: only lines in which this regular expression matches
    follow: go on until the run has ended, or its client is gone and it is not detached
    output, label, fold: as with ``run``
    Raises UsageError, MeshError if the logs cannot be read or shown, and OutputClosed if nobody reads stdout any more.
    """
    showing = Showing(output=output, label=label, fold=fold)
    pattern = _pattern(grep)
    begin = 0.0 if since is None else time.time() - since
    with contextlib.closing(_Hosts(clusters_file, local=local, lasting=follow)) as hosts:
        record = _named(run, cluster, hosts)
        chosen = _chosen(record, ranks, output)
        replay = Replay(record, streams=_streams(record, stderr, prerun), ranks=chosen, since=begin)
        # prerun has a stream and a place on the screen of its own while a run is on; here it is what was asked for.
        clock = _Clock()
        terminal = TerminalSink(
            placement=record.placement,
            mode="all" if prerun else showing.mode,
            label=label,
            exact=fold == "exact",
            environ=os.environ,
            clock=clock,
        )
        try:
            _show(replay, terminal, clock, record, pattern, hosts, follow=follow, has_since=since is not None)
        except OutputClosed:
            raise OutputClosed("") from None
        except FileNotFoundError:
            raise MeshError(f"there are no logs of run {record.run}", hint=str(record.directory)) from None
        except OSError as error:
            raise MeshError(f"cannot read the logs of run {record.run}: {error}") from error
        finally:
            replay.close()
    if terminal.problem:
        raise MeshError(f"not all could be shown: {terminal.problem}", hint="is there room where stdout goes to?")


def _show(
    replay: Replay,
    terminal: TerminalSink,
    clock: _Clock,
    record: Record,
    pattern: re.Pattern[str] | None,
    hosts: _Hosts,
    *,
    follow: bool,
    has_since: bool,
) -> None:
    for node in range(len(record.placement.hosts)):
        terminal.handle(Connected(time=0.0, node=node, address="", machine=""))
    lines = LineFilter(pattern) if pattern else None
    is_empty = True

    def show(outputs: Iterable[Output]) -> None:
        nonlocal is_empty
        for one in outputs:
            is_empty = False
            clock.reach(one.time)
            for shown in lines.feed(one) if lines else (one,):
                terminal.handle(_as_own(shown))

    while True:
        record = read_record(record.directory)  # before we look: what it says about the end is true of what we see
        show(replay.advance())
        if not replay.has_index and has_since:
            raise UsageError(f"run {record.run} has no record of what came when", hint="leave out --since")
        if follow and record.state is State.DETACHED and hosts.may_be_asked:  # its client has left it
            hosts.bring(known(record), is_known=True)
            continue
        if not follow or record.state is not State.ON:
            break
        for line in hosts.news():
            terminal.say(line)
        clock.reach(time.time())
        terminal.idle()
        time.sleep(POLL)
    show(replay.rest())
    for shown in lines.end() if lines else ():
        terminal.handle(_as_own(shown))
    terminal.handle(Finished(time=0.0, exit_code=0, cause="", run=record.run))
    hosts.close()
    for line in (*hosts.news(), *_left_out(read_record(record.directory), replay)):
        terminal.say(line)
    _conclude(terminal.say, record, hosts, follow=follow, is_empty=is_empty and not has_since)


class _Hosts:
    """The hosts of a detached run, which are asked once for what they have more."""

    def __init__(self, clusters_file: str, *, local: bool, lasting: bool) -> None:
        """local: do not ask them; lasting: for what comes later as well."""
        self._clusters_file, self._lasting = clusters_file, lasting
        self._fetch: Fetch | None = None
        self._problem = ""
        self.may_be_asked = not local

    def find(self, run: str, cluster: str) -> DetachedRun:
        """A run that this machine does not know, or the last one there. Raises UsageError."""
        return find_detached(run, cluster, self._clusters_file)

    def bring(self, found: DetachedRun, *, is_known: bool) -> None:
        """Have what they have more brought here; what there is now has come when this returns.

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
        """What keeps some of it away, each once."""
        if self._problem:
            yield self._problem
            self._problem = ""
        if self._fetch:
            yield from self._fetch.news()

    @property
    def have_told(self) -> bool:
        """Whether all of them have told what they have."""
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
        say(f"{record.run} goes on by itself: `mesh logs -f {record.run}` follows it")
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
    """What never came from the hosts, and has no line of its own in the logs."""
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
    """prerun as it is shown where nothing else is: of all hosts, on stdout."""
    if output.stream is not Stream.PRERUN:
        return output
    return Output(time=output.time, node=output.node, rank=output.rank, stream=Stream.SETUP, data=output.data)


def _named(run: str, cluster: str, hosts: _Hosts) -> Record:
    """The run that is meant, with what its hosts have more. Raises UsageError, and MeshError if there is nothing."""
    record = None if cluster and run == LAST else find_record(run, with_logs=True)
    if record is None and run == LAST and not cluster:
        raise UsageError("this machine has started no run yet", hint="`mesh run CLUSTER COMMAND` starts one")
    if record is None and (not hosts.may_be_asked or not (cluster or _MAY_BE_ID.fullmatch(run))):
        raise UsageError(f"no run {run!r} was started on this machine", hint="`mesh runs` lists those that were")
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
    """Raises UsageError that shows where a regular expression is wrong."""
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f"{text.splitlines()[0]}\n{' ' * error.pos}^"
        where = "" if error.pos is None else f" at position {error.pos}"
        raise UsageError(f"--grep: {error.msg}{where}", hint=place if "\n" not in text else "") from error
    except (OverflowError, RecursionError) as error:
        raise UsageError(f"--grep: {error}") from error
