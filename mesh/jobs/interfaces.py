"""The seams of jobs: hands that carry out orders on hosts, and makers of machines. Both work in child processes.

A child is the program that the steward was given, with an operation as its last word: "prepare", "undo", "start",
"stop", "fetch", "look", "make", "delete", "look-machines". `mesh.jobs.child.serve` reads requests from its standard
input, calls one of the objects below, and writes the answers to its standard output. A method that raises NoAnswer, or
any other exception, or that is killed at its deadline, becomes the event NotAsked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.errors import MeshError
from mesh.jobs.events import (
    AnyAnswer,
    Fetched,
    MachinesAbsent,
    MachinesLost,
    MachinesPending,
    MachinesReady,
    Made,
    NotAsked,
    Prepared,
    Refused,
    RunEnded,
    RunSeen,
    RunStarted,
    RunUnknown,
    Undone,
)
from mesh.jobs.orders import AnyLook, AnyOrder, Delete, LookAtMachines, Make
from mesh.jobs.values import Job

RunFacts = RunSeen | RunEnded | RunUnknown
MachineFacts = MachinesReady | MachinesPending | MachinesLost | MachinesAbsent | NotAsked


class NoAnswer(MeshError):
    """Hosts or an API did not answer, so that nothing follows from it."""


class Request(Struct, frozen=True, kw_only=True):
    """An order on its way to a child."""

    op: int  # 0: a look
    order: AnyOrder | AnyLook
    job: Job  # as it was when the order was intended
    directory: Path  # the job's


def event_of(request: Request, answer: AnyAnswer | None, time: float) -> AnyAnswer:
    """Return the event of an answer to a request. answer: None if a look had none"""
    machines = request.job.spec.machines
    if answer is None:
        answer = NotAsked(what=machines.maker or machines.cluster, why="no answer")
    if isinstance(answer, NotAsked):
        answer = replace(answer, of_maker=isinstance(request.order, Make | Delete | LookAtMachines))
    return replace(answer, time=time, op=request.op)


class Hands(Protocol):
    """Carries out orders on the hosts of a job. Each method may be killed at any instant, and called again."""

    def prepare(self, request: Request) -> Prepared | Refused:
        """Run the modules on `order.hosts`. Raises NoAnswer."""

    def undo(self, request: Request) -> Undone:
        """Undo `order.modules` on `order.hosts`, on as many of them as answer. Raises NoAnswer."""

    def start(self, request: Request) -> RunStarted | RunEnded | Refused:
        """Start the run `order.run` detached; RunEnded if it has ended by then.

        Refused only if no rank of it runs and none will: with BUSY the hosts' lock named another run, which is in
        `by_run`. Raises NoAnswer if that is not certain.
        """

    def look(self, requests: Sequence[Request]) -> Sequence[RunFacts | None]:
        """Return how each run is; None where hosts did not answer. May keep connections between calls.

        RunUnknown only if every host of the run has answered. A run whose end the hosts have is RunEnded.
        """

    def stop(self, request: Request) -> RunEnded | RunUnknown:
        """End the run and prove that its processes are gone. Raises NoAnswer."""

    def fetch(self, request: Request) -> Fetched:
        """Bring output, and results with `order.results`, to this machine. May be repeated. Raises NoAnswer."""


class Maker(Protocol):
    """Makes and deletes machines. Every call may be repeated: the same name never makes two sets of machines."""

    def make(self, request: Request) -> Made | Refused:
        """Ask for the machines of a generation. Raises NoAnswer.

        Refused only if this call has left nothing behind. After an earlier call without an answer the generation is
        condemned: `delete` and `look` prove that nothing of it is there.
        """

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        """Return how the machines of each generation are; None where the API gave no complete answer.

        MachinesLost and MachinesAbsent only with evidence; MachinesAbsent only if nothing is left to be deleted.
        """

    def delete(self, request: Request) -> MachinesPending | MachinesAbsent:
        """Delete the machines of a condemned generation. Raises NoAnswer.

        MachinesPending if they are being deleted: it is called again after a pause, until a look finds them absent.
        """
