"""The runs that hosts report, and one line for each: the answers of its hosts put together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from mesh.core.cluster import Host
from mesh.protocol.answers import Owner
from mesh.protocol.replies import Run, Runs

RUNNING, ENDED = "running", "ended"
GOING_ON = ("waiting", "preparing", RUNNING, "pulling", "ending")  # states of an agent before ENDED, in their order
NOT_ANSWERING = "not answering"  # its agent is there, but does nothing
ORPHANED = "orphaned"  # processes of the run are there, and no agent of it


class RunLine(Struct, frozen=True, kw_only=True):
    """A run on the hosts of a cluster."""

    run: str
    cluster: str  # as its owner calls it
    owner: str  # user@machine; "" if its agent is gone
    command: str
    since: float  # seconds since the epoch, on its owner's clock; 0.0 if no host reports it
    hosts: tuple[str, ...]  # that have reported it
    ranks: int  # that are running
    state: str  # of the host that is least far: "waiting" to "ended"; then "not answering" and "orphaned", after commas
    attached: bool  # a client is there
    detached: bool  # it needs none
    devices: tuple[str, ...]  # HOST:PATH of the devices that it holds
    name: str = ""  # that its owner has given it
    tags: tuple[str, ...] = ()  # likewise
    groups: Mapping[str, Mapping[str, int]] = {}  # of pods, where they are in groups: their hosts by state


def state_of(states: Iterable[str], *, has_orphans: bool = False) -> str:
    """Return the state of a run: that of the host which is least far, as a run ends with its last host.

    states: of its agents; "" of an agent of another version of mesh, which sends none
    has_orphans: "orphaned" follows after a comma, or stands alone once all agents have ended; "not answering" of an
    agent likewise

    >>> state_of(["ended", "running"]), state_of(["running", "preparing"]), state_of(["ended", "ended"])
    ('running', 'preparing', 'ended')
    >>> state_of(["ended", ""], has_orphans=True), state_of(["ended"], has_orphans=True), state_of([], has_orphans=True)
    ('running,orphaned', 'orphaned', 'orphaned')
    >>> state_of(["not answering", "running"])
    'running,not answering'
    """
    found = {one or RUNNING for one in states}
    trouble = [NOT_ANSWERING] * (NOT_ANSWERING in found) + [ORPHANED] * has_orphans
    order = (*GOING_ON, *sorted(found - {*GOING_ON, ENDED, NOT_ANSWERING}), ENDED)  # a newer mesh may have others
    least = [one for one in order if one in found and not (trouble and one == ENDED)][:1]
    return ",".join([*least, *trouble])


class _Gathered:
    """A run, as hosts report it."""

    def __init__(self) -> None:
        self.about = Owner()
        self.agents: dict[int, tuple[Host, Run]] = {}  # host and state there, by node
        self.orphans: list[tuple[str, str]] = []  # host and process

    @property
    def is_complete(self) -> bool:
        """True once all hosts have answered. Other versions of mesh do not count the hosts."""
        return self.about.hosts == len(self.agents)


class Gathering:
    """The answers of hosts, which become one line for each run."""

    def __init__(self, show: Callable[[Sequence[RunLine]], object]) -> None:
        """show: as with ``ps``"""
        self._show = show
        self._gathered: dict[str, _Gathered] = {}
        self._shown: set[str] = set()

    def take(self, host: Host, answer: object) -> None:
        """Add the answer of one host; a machine may have several names, and send the same answer again."""
        if not isinstance(answer, Runs):
            return
        for one in answer.runs:
            run = self._of(one.run)
            if run.about == Owner():
                run.about = one.about
            run.agents.setdefault(one.node, (host, one))
        for orphan in answer.orphans:
            self._of(orphan.run).orphans.append((host.name, orphan.told))
        self._show_new([one.run for one in answer.runs if self._of(one.run).is_complete])

    def end(self) -> tuple[RunLine, ...]:
        """Return all runs, the oldest first, once no more answers come."""
        self._show_new(list(self._gathered))
        return tuple(sorted((_line(run, found) for run, found in self._gathered.items()), key=_by_age))

    def _of(self, run: str) -> _Gathered:
        return self._gathered.setdefault(run, _Gathered())

    def _show_new(self, runs: Sequence[str]) -> None:
        new = [_line(run, self._gathered[run]) for run in dict.fromkeys(runs) if run not in self._shown]
        self._shown.update(line.run for line in new)
        if new:
            self._show(sorted(new, key=_by_age))


def _by_age(line: RunLine) -> tuple[float, str]:
    return line.since, line.run


def _line(run: str, found: _Gathered) -> RunLine:
    about, orphans = found.about, found.orphans
    agents = [found.agents[node] for node in sorted(found.agents)]
    return RunLine(
        run=run,
        cluster=about.cluster,
        owner=f"{about.user}@{about.machine}" if about.user else "",
        command=about.command or "; ".join(dict.fromkeys(line for _, line in orphans)),
        since=about.since or 0.0,
        hosts=tuple(dict.fromkeys([*(host.name for host, _ in agents), *(host for host, _ in orphans)])),
        ranks=sum(not rank.ended for _, one in agents for rank in one.ranks),
        state=state_of([one.state for _, one in agents], has_orphans=bool(orphans)),
        attached=any(one.attached for _, one in agents),
        detached=any(one.detached for _, one in agents),
        groups=_by_group(agents),
        devices=tuple(f"{host.name}:{device}" for host, one in agents for device in one.devices),
        name=about.name,
        tags=tuple(about.tags),
    )


def _by_group(agents: Sequence[tuple[Host, Run]]) -> dict[str, dict[str, int]]:
    names = dict.fromkeys(host.group for host, _ in agents if host.group)
    return {name: Counter(one.state or RUNNING for host, one in agents if host.group == name) for name in names}
