"""The public functions, each one command of mesh, and their results. docs/python.md shows how they are used.

Each name is imported when it is first asked for: ``mesh --help`` needs none of them, and each command few.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.api.attaching import attach as attach
    from mesh.api.attaching import detach as detach
    from mesh.api.attaching import signal as signal
    from mesh.api.checking import HostReport as HostReport
    from mesh.api.checking import check as check
    from mesh.api.clusters import ClusterLine as ClusterLine
    from mesh.api.clusters import add_cluster as add_cluster
    from mesh.api.clusters import cluster_names as cluster_names
    from mesh.api.clusters import config as config
    from mesh.api.clusters import down as down
    from mesh.api.clusters import init as init
    from mesh.api.clusters import list_clusters as list_clusters
    from mesh.api.clusters import schema_text as schema_text
    from mesh.api.clusters import ssh_argv as ssh_argv
    from mesh.api.clusters import up as up
    from mesh.api.commands import EventStream as EventStream
    from mesh.api.commands import Look as Look
    from mesh.api.commands import exec as exec  # noqa: A004
    from mesh.api.commands import plan as plan
    from mesh.api.commands import run as run
    from mesh.api.commands import setup as setup
    from mesh.api.commands import stream as stream
    from mesh.api.commands import sync as sync
    from mesh.api.commands import watch as watch
    from mesh.api.hangs import Stacks as Stacks
    from mesh.api.hangs import stacks as stacks
    from mesh.api.inquiries import Answers as Answers
    from mesh.api.inquiries import Leftover as Leftover
    from mesh.api.inquiries import RunLine as RunLine
    from mesh.api.inquiries import clean as clean
    from mesh.api.inquiries import ps as ps
    from mesh.api.pulling import pull as pull
    from mesh.api.records import Removed as Removed
    from mesh.api.records import list_records as list_records
    from mesh.api.records import prune as prune
    from mesh.api.replaying import logs as logs
    from mesh.api.stopping import RestartedRank as RestartedRank
    from mesh.api.stopping import restart as restart
    from mesh.api.stopping import stop as stop
    from mesh.api.workspaces import Explanation as Explanation
    from mesh.api.workspaces import Listed as Listed
    from mesh.api.workspaces import explain as explain
    from mesh.api.workspaces import list_workspace as list_workspace
    from mesh.config.settings import Options as Options
    from mesh.core.run import AUTO as AUTO
    from mesh.keeper.client import about_keepers as about_keepers
    from mesh.keeper.client import stop_keepers as stop_keepers
    from mesh.rundir.records import Record as Record
    from mesh.rundir.results import PullResult as PullResult
    from mesh.rundir.results import RankResult as RankResult
    from mesh.rundir.results import RunResult as RunResult
    from mesh.rundir.results import SyncResult as SyncResult

_MODULES = {
    "mesh.api.attaching": (
        "attach",
        "detach",
        "signal",
    ),
    "mesh.api.checking": (
        "HostReport",
        "check",
    ),
    "mesh.api.clusters": (
        "ClusterLine",
        "add_cluster",
        "cluster_names",
        "config",
        "down",
        "init",
        "list_clusters",
        "schema_text",
        "ssh_argv",
        "up",
    ),
    "mesh.api.commands": (
        "EventStream",
        "Look",
        "exec",
        "plan",
        "run",
        "setup",
        "stream",
        "sync",
        "watch",
    ),
    "mesh.api.hangs": (
        "Stacks",
        "stacks",
    ),
    "mesh.api.inquiries": (
        "Answers",
        "Leftover",
        "RunLine",
        "clean",
        "ps",
    ),
    "mesh.api.replaying": ("logs",),
    "mesh.keeper.client": ("about_keepers", "stop_keepers"),
    "mesh.api.pulling": ("pull",),
    "mesh.api.records": (
        "Removed",
        "list_records",
        "prune",
    ),
    "mesh.api.stopping": (
        "RestartedRank",
        "restart",
        "stop",
    ),
    "mesh.api.workspaces": (
        "Explanation",
        "Listed",
        "explain",
        "list_workspace",
    ),
    "mesh.config.settings": ("Options",),
    "mesh.core.run": ("AUTO",),
    "mesh.rundir.records": ("Record",),
    "mesh.rundir.results": (
        "PullResult",
        "RankResult",
        "RunResult",
        "SyncResult",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
