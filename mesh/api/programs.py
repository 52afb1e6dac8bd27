"""The start of a program: groups of ranks that are nodes, on the hosts that the groups name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import check_name, choose_cluster, make_spec, project_here, with_fetched
from mesh.api.running import Beside, Listener, run_on
from mesh.app.carriers import carrier_of
from mesh.app.modules import preparation_of
from mesh.app.screen import Showing
from mesh.config.project import check_workspace
from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import DEFAULT_READY_TIMEOUT, Group, RunSpec
from mesh.core.text import one_line
from mesh.rundir.results import RunResult

if TYPE_CHECKING:
    from mesh.engine.relaying import Relay

DEFAULT_OPTIONS = Options()
DEFAULT_SHOWING = Showing()


class Nodes(Struct, frozen=True, kw_only=True):
    """The nodes of a program, and what goes to them."""

    groups: tuple[Group, ...]  # each with its label and hosts; a host may be in several
    payloads: Mapping[str, bytes] = {}
    # Called with the relay to the nodes, before the hosts are connected.
    relayed: Callable[[Relay], object] = lambda relay: None
    ready_timeout: float = DEFAULT_READY_TIMEOUT  # seconds for all nodes that report it to be ready; then status 125


def run_program(
    nodes: Nodes,
    *,
    cluster: str,
    options: Options = DEFAULT_OPTIONS,
    clusters_file: str = "",
    showing: Showing = DEFAULT_SHOWING,
    listener: Listener | None = None,
) -> RunResult:
    """Run a program to its end, or until the hosts keep it (``options.detach``). Hosts without nodes take no part.

    listener: gets all events, and ends the run from another thread by ``listener.end``
    Raises UsageError for hosts that are not in the cluster; whatever goes wrong later is in the result.
    """
    is_quiet = showing.quiet or showing.look.terse
    found, spec = _program(nodes.groups, cluster, options, clusters_file, is_quiet=is_quiet)
    spec = replace(spec, ready_timeout=nodes.ready_timeout)
    project = project_here()
    spec, preparation = preparation_of(spec, found, project.modules.descriptions)
    beside = Beside(notify=project.notify, preparation=preparation, payloads=nodes.payloads, relayed=nodes.relayed)
    return run_on(found, spec, showing, check_first=options.check, listener=listener, beside=beside)


def _program(
    groups: Sequence[Group], cluster: str, options: Options, clusters_file: str, *, is_quiet: bool
) -> tuple[Cluster, RunSpec]:
    """Return the hosts of a program, and its spec. Raises UsageError."""
    found, project = choose_cluster(cluster, options, clusters_file, is_quiet=is_quiet), project_here()
    check_name(options.name, clusters_file)
    check_workspace(project, Path.home())
    known = {host.name for host in found.hosts}
    used = {name for group in groups for name in group.hosts}
    if missing := sorted(used - known):
        raise UsageError(
            f"{found.name}: no host {one_line(missing[0])!r}", hint=f"its hosts are {', '.join(sorted(known))}"
        )
    if not used or not all(group.hosts and group.label for group in groups):
        raise UsageError("a program has no hosts", hint="name the hosts and the label of each group")
    spec = with_fetched(found, make_spec(project, options, ("true",)))
    (base,) = spec.groups
    own = tuple(replace(group, env={**base.env, **group.env}) for group in groups)
    takes_lock = carrier_of(found).locks
    spec = replace(spec, groups=own, lock=takes_lock and not spec.share, claim=takes_lock)
    hosts = tuple(host for host in found.hosts if host.name in used)
    return replace(found, hosts=hosts, slices=found.slices if len(hosts) == len(found.hosts) else ()), spec
