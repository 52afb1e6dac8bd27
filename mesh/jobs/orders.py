"""Orders that a decision about a job returns: each is written to the store before it is carried out."""

from __future__ import annotations

from msgspec import Struct


class Order(Struct, frozen=True, kw_only=True, tag_field="do"):
    """Something that a hand or a maker of machines is to do. Each may be carried out twice without harm."""


class Make(Order, frozen=True, kw_only=True, tag="make"):
    """Make the machines of a generation, under its name."""

    generation: int
    name: str


class Delete(Order, frozen=True, kw_only=True, tag="delete"):
    """Delete the machines of a condemned generation, and look until they are gone."""

    generation: int
    name: str


class Prepare(Order, frozen=True, kw_only=True, tag="prepare"):
    """Run the modules on the hosts."""

    attempt: int
    hosts: tuple[str, ...]
    modules: tuple[str, ...] = ()  # only these; (): all of the job


class Undo(Order, frozen=True, kw_only=True, tag="undo"):
    """Remove what modules have left on hosts that stay."""

    generation: int
    hosts: tuple[str, ...]
    modules: tuple[str, ...]


class Start(Order, frozen=True, kw_only=True, tag="start"):
    """Start a detached run with this id. It is never repeated before every host was asked."""

    attempt: int
    run: str
    hosts: tuple[str, ...]


class Stop(Order, frozen=True, kw_only=True, tag="stop"):
    """End the ranks of a run, and prove that they are gone."""

    run: str
    hosts: tuple[str, ...]


class Fetch(Order, frozen=True, kw_only=True, tag="fetch"):
    """Bring the output of an ended run to its run directory here, and the results to the job's directory."""

    run: str
    hosts: tuple[str, ...]
    results: bool  # the job's results too


class LookAtRun(Order, frozen=True, kw_only=True, tag="look"):
    """Ask how a run is. It changes nothing, so that it is not written to the store."""

    run: str
    hosts: tuple[str, ...]


class LookAtMachines(Order, frozen=True, kw_only=True, tag="look-machines"):
    """Ask how the machines of a generation are. It changes nothing, so that it is not written to the store."""

    generation: int
    name: str


AnyOrder = Make | Delete | Prepare | Undo | Start | Stop | Fetch
AnyLook = LookAtRun | LookAtMachines
