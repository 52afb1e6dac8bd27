"""Objects that are made beside pods: the Secret of their switchboard, their workspace, the PodGroup of a gang."""

from __future__ import annotations

from collections.abc import Callable

from mesh.backends.pods.api import Api, ApiFailed
from mesh.core.errors import MeshError
from mesh.hosts.kubernetes import gang, render
from mesh.hosts.kubernetes.render import Made

KEY_DAYS = 366  # that the key of a switchboard is valid
EXISTS = "AlreadyExists"  # reason of a refusal


def create_beside(api: Api, made: Made, uid: str, warn: Callable[[str], object]) -> None:
    """Create the objects that pods need, unless they are there. Raises MeshError.

    uid: of the root; warn: gets a line where the pods do without one
    """
    if made.has_switchboard:
        _create_secret(api, made, uid, warn)
    for thing in render.archive_objects(made, uid):
        _create(api, thing)
    for thing in render.gang_objects(made, uid):
        _create_gang(api, made, thing)


def _create_secret(api: Api, made: Made, uid: str, warn: Callable[[str], object]) -> None:
    """Create the Secret of the switchboard; pods do without it. Raises MeshError."""
    from mesh.backends.switchboard.program import pack
    from mesh.core.credentials import make_credentials

    secret = render.secret_object(made, uid, make_credentials(KEY_DAYS), pack())
    try:
        api.create(api.path("secrets"), secret)
    except ApiFailed as error:
        if error.status == 403:
            warn(f"{made.cluster}: no switchboard, as the Role has no `secrets create`: mesh pods role")
        elif error.reason != EXISTS:
            raise


def _create(api: Api, thing: render.Object) -> None:
    """Create a ConfigMap, unless it is there. Raises MeshError."""
    try:
        api.create(api.path("configmaps"), thing)
    except ApiFailed as error:
        if error.reason != EXISTS:
            raise


def _create_gang(api: Api, made: Made, thing: render.Object) -> None:
    kind = made.source.template.gang
    try:
        api.create(api.path(gang.RESOURCE, group=gang.GANG_APIS[kind]), thing)
    except ApiFailed as error:
        if error.status == 404:
            raise MeshError(
                f"{made.cluster}: the server has no {gang.RESOURCE} of {gang.GANG_APIS[kind]} (gang: {kind})",
                hint=f"kubectl api-resources --api-group {gang.GROUP}",
            ) from error
        if error.status == 403:
            hint = f"mesh pods role --gang {kind}  # prints the Role that mesh needs"
            raise MeshError(f"{made.cluster}: {error}", hint=hint) from error
        if error.reason != EXISTS:
            raise
