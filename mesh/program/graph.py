"""A program: nodes with their arguments and wishes, and handles for them."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct, ValidationError, convert, field

from mesh.config.hosts import NoHost, expand
from mesh.core.errors import UsageError
from mesh.program.placing import Has, Wish
from mesh.program.runtime.deferred import Command
from mesh.program.runtime.errors import CLIENT
from mesh.program.runtime.handles import Group, Handle
from mesh.program.runtime.member import needs_run

if TYPE_CHECKING:
    from mesh.config.settings import Options
    from mesh.core.cluster import Cluster
    from mesh.core.events import Event
    from mesh.core.run import PrerunEntry

T = TypeVar("T")
LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
ON_HINT = 'on="tpu-[0-3]"'
NAME_HINT = "begin with a letter; use letters, digits, dots, dashes and underscores"
_COMMA = re.compile(r",(?![^\[]*\])")


class NodeOptions(Struct, frozen=True, kw_only=True):
    """The options of ``Program.add``, beside the constructor's own keywords."""

    count: int = 1  # nodes in all, dealt over the hosts
    per_host: int = 0  # nodes on each host
    label: str = ""  # "": the name of the class or function, in small letters
    gpus: int = 0  # of its host, for each node alone
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = ""  # the interpreter on the hosts; "": the program's
    concurrency: int = 1  # methods that run at the same time
    backlog: int = 1000  # calls of one caller that may wait
    on_failure: Literal["stop", "ignore", "restart"] = "stop"
    restarts: int = 0  # at most
    on_exit: Literal["wait", "stop", "restart"] = "wait"
    elsewhere: bool = False  # with restarts: a node of a lost host starts again on a spare host of the cluster


class Node(Struct, frozen=True, kw_only=True):
    """Nodes that were added together: one label, one object each."""

    wish: Wish
    what: object  # a class, a function, or a Command
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    options: NodeOptions
    after: tuple[str, ...] = ()  # labels of nodes, or of groups, that are ready before

    @property
    def runs(self) -> bool:
        """True if it has something to run; otherwise it only serves."""
        return needs_run(self.what)


def _unwatched(event: Event) -> None:
    """Do nothing with an event."""


class Graph:
    """Nodes of a program and their wishes, before it is launched."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str | Cluster = "",
        python: str = "python3",
        options: Options | None = None,
        trust_hosts: bool = False,
    ) -> None:
        """Begin an empty program. cluster: a selector, or a Cluster with hosts; "": those that nodes name by ``on=``

        trust_hosts: read pickles of hosts. Whoever owns a host then owns this account too.
        Raises UsageError for a name that does not begin with a letter or underscore, or has other characters than
        letters, digits, dots, dashes and underscores.
        """
        if not LABEL.fullmatch(name):
            raise UsageError(f"a program cannot be called {name!r}", hint=NAME_HINT)
        self.name, self.cluster, self.python, self.trust_hosts = name, cluster, python, trust_hosts
        self.options = options
        self.prerun: tuple[PrerunEntry, ...] = ()  # on every host of a cluster, after that of the project
        self.id = f"{name}-{uuid.uuid4().hex[:12]}"
        self.nodes: list[Node] = []
        self.watch: Callable[[Event], object] = _unwatched  # called with each event of processes, in another thread

    def add(self, what: Callable[..., T] | Command, *args: object, **named: object) -> Handle[T] | Group[T]:
        """Add a node, or a group of nodes with ``count=`` or ``per_host=``; return its handle.

        what: a class, whose public methods are served; a function, which is run once; or a Command
        args: for the constructor or function; handles among them arrive usable
        named: options of NodeOptions, ``on=`` and ``after=``; all others are keywords for the constructor
        on: names or ranges of hosts, a handle (the same host), ``has(gpus=1)``, or "client": a thread of this process
        after: handles or labels of nodes that are ready, or have ended well, before this one is made
        Raises UsageError.
        """
        on, after = named.pop("on", None), named.pop("after", ())
        own = {name: named.pop(name) for name in NodeOptions.__struct_fields__ if name in named}
        try:
            options = convert(own, NodeOptions)
        except ValidationError as error:
            name = re.split(r"\W", str(error).rpartition("$.")[2])[0]  # of the option, without what is in it
            hint = f"{name}={getattr(NodeOptions(), name)!r} is the default" if hasattr(NodeOptions(), name) else ""
            raise UsageError(f"{_name_of(what)}: {name}=: {str(error).partition(' - at')[0]}", hint=hint) from error
        if not (callable(what) or isinstance(what, Command)):
            hint = f"program.add({type(what).__name__}, ARGUMENTS): the object is made on its host"
            raise UsageError(f"a node is a class, a function or a Command, not {type(what).__name__}", hint=hint)
        check_arguments(what, args, named)
        label = self._label(options.label or _name_of(what))
        wish = _wish(label, on, options)
        node = Node(wish=wish, what=what, args=args, kwargs=named, options=options, after=self._before(label, after))
        self.nodes.append(node)
        return self._handle(node)

    def _before(self, label: str, after: object) -> tuple[str, ...]:
        """Return the labels that ``after=`` names. Raises UsageError for a node that was not added before."""
        if isinstance(after, Handle | Group | str):
            after = (after,)
        if not isinstance(after, list | tuple):
            what = f"after= is a handle, a label, or a list of them, not {type(after).__name__}"
            raise UsageError(f"{label}: {what}", hint='after=[learner, "actor"]')
        found: list[str] = []
        for one in after:
            if not isinstance(one, Handle | Group | str):
                what = f"after= has handles and labels, not {type(one).__name__}"
                raise UsageError(f"{label}: {what}", hint='after=[learner, "actor"]')
            found += [handle.label for handle in one] if isinstance(one, Group) else []
            found += [one if isinstance(one, str) else one.label] if not isinstance(one, Group) else []
        known = {node.wish.label for node in self.nodes}
        if unknown := [one for one in found if one.partition("/")[0] not in known]:
            near = get_close_matches(unknown[0], known, 1)
            hint = f'after="{near[0]}"' if near else "add that node first"
            raise UsageError(f"{label}: after= names {unknown[0]}, which is not there", hint=hint)
        return tuple(found)

    def hosts_of(self, label: str, on: object) -> list[str]:
        """Return the hosts that ``on=`` names. Raises UsageError if it names none."""
        hosts = _with_place(Wish(label=label), on).hosts
        if not hosts:
            raise UsageError(f"{label}: one node on each host needs on=, with names of hosts", hint=ON_HINT)
        return list(hosts)

    def _label(self, wanted: str) -> str:
        """Return a label that no other node has."""
        if not LABEL.fullmatch(wanted):
            raise UsageError(f"a node cannot be called {wanted!r}", hint=NAME_HINT)
        used = [node.wish.label for node in self.nodes]
        return next(name for name in (wanted, *(f"{wanted}-{n}" for n in range(2, len(used) + 3))) if name not in used)

    def _handle(self, node: Node) -> Handle[T] | Group[T]:
        wish = node.wish
        if wish.per_host:
            if not wish.hosts:
                raise UsageError(f"{wish.label}: per_host needs on=, as its handles are counted now", hint=ON_HINT)
            count = wish.per_host * len(wish.hosts)
        elif wish.count == 1:
            return Handle(self.id, wish.label)
        else:
            count = wish.count
        return Group([Handle(self.id, f"{wish.label}/{index}") for index in range(count)])


def has(*, gpus: int = 0, memory: str | int = 0, label: str = "") -> Has:
    """Return a wish for hosts that have so many GPUs, so much memory ("32GB", or bytes), and a name with this part.

    The memory is that of the machine or, in a container, what the container may have. Raises UsageError for a text
    that is no size.
    """
    return Has(gpus=gpus, memory=_bytes(memory), label=label)


def _bytes(text: str | int) -> int:
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"memory: expected a size, found {text!r}", hint='has(memory="32GB")')
    try:
        return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))
    except ValueError as error:
        raise UsageError(f"memory: expected a size, found {text!r}", hint='has(memory="32GB")') from error


def check_arguments(what: object, args: Sequence[object], named: Mapping[str, object]) -> None:
    """Raise UsageError for arguments that the class or function does not take: on its host they would fail the node."""
    if isinstance(what, Command):
        if args or named:
            hint = f'Command({", ".join(map(repr, what.words))}, "MORE")'
            raise UsageError(f"{_name_of(what)}: a Command has its arguments in its own words", hint=hint)
        return
    try:
        signature = inspect.signature(what)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a class of C code has none
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        known = [*NodeOptions.__struct_fields__, "on", "after"]
        near = [one for name in named for one in get_close_matches(name, known, 1)]
        hint = f"the nearest option of add is {near[0]}=" if near else f"it is called as {_name_of(what)}{signature}"
        raise UsageError(f"{_name_of(what)}: {error}", hint=hint) from error


def _name_of(what: object) -> str:
    if isinstance(what, Command):
        return what.words[0].rpartition("/")[2]
    name = getattr(what, "__name__", "node")
    return name.lower() if inspect.isclass(what) else name.strip("<>")


def _wish(label: str, on: object, options: NodeOptions) -> Wish:
    if options.count < 1 or options.per_host < 0 or options.concurrency < 1 or options.backlog < 1:
        what = "count, concurrency and backlog are at least 1, per_host at least 0"
        raise UsageError(f"{label}: {what}", hint="count=1, concurrency=1, backlog=1000")
    if options.gpus < 0 or options.restarts < 0:
        raise UsageError(f"{label}: gpus and restarts are at least 0", hint="gpus=0, restarts=0")
    if bool(options.restarts) != (options.on_failure == "restart"):
        hint = f'on_failure="restart", restarts={options.restarts or 3}'
        raise UsageError(f"{label}: restarts= and on_failure= belong together", hint=hint)
    if options.elsewhere and options.on_failure != "restart":
        hint = 'on_failure="restart", restarts=3, elsewhere=True'
        raise UsageError(f"{label}: elsewhere=True is for nodes that are started again", hint=hint)
    wish = Wish(label=label, count=options.count, per_host=options.per_host, gpus=options.gpus)
    return _with_place(wish, on)


def _with_place(wish: Wish, on: object) -> Wish:
    from msgspec.structs import replace

    match on:
        case None:
            return wish
        case str():
            return replace(wish, hosts=_names(wish.label, _COMMA.split(on)))
        case Has():
            return replace(wish, has=on)
        case Handle():
            return replace(wish, like=on.label)
        case Group():
            return replace(wish, like=next(iter(on)).label)
        case list() | tuple():
            return replace(wish, hosts=_names(wish.label, [str(one) for one in on]))
    raise UsageError(
        f"{wish.label}: on= is a name, a range, a handle or has(...), not {type(on).__name__}", hint=ON_HINT
    )


def _names(label: str, texts: Sequence[str]) -> tuple[str, ...]:
    try:
        names = tuple(name for text in texts for name in expand(text.strip()))
    except NoHost as error:
        raise UsageError(f"{label}: {error}", hint=ON_HINT) from error
    if CLIENT in names and len(names) > 1:
        hint = 'on="client" for one group, and another program.add(...) for the hosts'
        raise UsageError(f"{label}: on= has the client and hosts", hint=hint)
    return names
