"""The hand that undoes the modules of a job on hosts that stay."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.api.attempts import hosts_of_attempt
from mesh.api.setups import Wish, set_up
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import CONNECTING
from mesh.core.outcome import Cause, Outcome
from mesh.jobs.events import Refusal, Undone
from mesh.jobs.interfaces import NoAnswer, Request
from mesh.jobs.orders import Undo

LOST = "it was lost meanwhile"
NO_END = "it has not reported that its steps have ended"


def undo_modules(request: Request, order: Undo) -> Undone:
    """Undo modules of a job on as many of its hosts as possible. Raises NoAnswer.

    A run needs all of its hosts. So it is repeated without those that cannot be reached, are busy, or have failed.
    """
    job, rest = request.job, list(order.hosts)
    problems: dict[str, str] = {}
    kinds: dict[str, Refusal] = {}
    while rest:
        try:
            cluster = hosts_of_attempt(job, rest)
            wish = Wish(only=order.modules, undo=True)
            outcome, spec = set_up(job, request.directory, cluster, wish)
        except UsageError as error:
            problems |= dict.fromkeys(rest, str(error))
            kinds |= dict.fromkeys(rest, Refusal.PERSON)
            break
        except MeshError as error:
            raise NoAnswer(str(error), hint=error.hint) from error
        except OSError as error:
            raise NoAnswer(f"cannot write {error.filename}: {error.strerror}") from error
        if outcome.cause is Cause.COMPLETED and not outcome.unclean:
            break
        found = faults(outcome, cluster)
        if not found or outcome.cause in (Cause.SIGNAL, Cause.OUTPUT_CLOSED):
            raise NoAnswer(f"run {spec.run}: {outcome.cause.value}")
        problems |= found
        steps = {cluster.hosts[one.node].name: one.step for one in outcome.failures}
        kinds |= {host: _kind(outcome, steps.get(host, CONNECTING[0])) for host in found}
        rest = [host for host in rest if host not in found]
    done = tuple(host for host in order.hosts if host not in problems)
    first = next(iter(problems), "")
    return Undone(
        generation=order.generation,
        hosts=done,
        kind=Refusal.BUSY if Refusal.BUSY in kinds.values() else kinds.get(first, Refusal.UNREACHABLE),
        problem=f"{first}: {problems[first]}" if first else "",
    )


def _kind(outcome: Outcome, step: str) -> Refusal:
    """Return the kind of a host's fault: a failed step of a module fails again."""
    if outcome.cause is Cause.BUSY:
        return Refusal.BUSY
    return Refusal.UNREACHABLE if step in CONNECTING else Refusal.PERSON


def faults(outcome: Outcome, cluster: Cluster) -> Mapping[str, str]:
    """Return the hosts that have kept a run from its end, each with the cause."""
    found = {cluster.hosts[node].name: NO_END for node in outcome.unclean}
    found |= {cluster.hosts[one.node].name: LOST for one in outcome.lost}
    return found | {cluster.hosts[one.node].name: one.message for one in outcome.failures}
