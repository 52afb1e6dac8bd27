"""Users' places in Kubernetes: the namespace ``user-NAME``, the cluster of that name, and the volume of a user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.config.kubernetes import Pods
from mesh.config.podspec import NAME_CHARACTERS, MadePods, PodTemplate, Volume, is_name
from mesh.core.errors import UsageError

PREFIX = "user-"  # of a user's namespace, which is also the name of the cluster that is the user's dev pod
DEV = "mesh/dev"  # the label of a dev pod; its value is the user
CONTAINER = "dev"
VOLUME_VARIABLE = "MESH_TDATA"  # CLAIM:PATH, the volume of all pods that mesh makes
SETUP = "code/setup.sh"  # on that volume: runs in each pod before prerun
IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class PodHome(Struct, frozen=True):
    """The volume of a user, which every pod that mesh makes for that user mounts."""

    claim: str
    path: str  # absolute

    @property
    def setup(self) -> str:
        """The path of the script that runs in each pod before prerun."""
        return f"{self.path}/{SETUP}"


def namespace_of(user: str) -> str:
    """Return the namespace of a user. Raises UsageError for a name that cannot be part of one.

    >>> namespace_of("ana")
    'user-ana'
    """
    found = f"{PREFIX}{user}"
    if not user or not is_name(found):
        most = NAME_CHARACTERS - len(PREFIX)
        raise UsageError(f"user {user!r}: expected at most {most} small letters, digits and dashes")
    return found


def dev_pods(name: str) -> Pods:
    """Return the dev pod of a user as a source of hosts. name: of the namespace"""
    return Pods(selector=f"{DEV}={name.removeprefix(PREFIX)}", namespace=name, container=CONTAINER)


def is_dev_cluster(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True for a name that can be a user's dev pod, where this machine has access to some Kubernetes."""
    if not name.startswith(PREFIX) or name == PREFIX or not is_name(name):
        return False
    named = environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~"), ".kube/config").expanduser())
    return IN_POD.exists() or any(Path(path).exists() for path in named.split(os.pathsep) if path)


def pod_home(environ: Mapping[str, str]) -> PodHome | None:
    """Return the volume that MESH_TDATA names; None without it. Raises UsageError.

    >>> pod_home({"MESH_TDATA": "tdata:/TData"})
    PodHome(claim='tdata', path='/TData')
    """
    text = environ.get(VOLUME_VARIABLE, "")
    if not text:
        return None
    claim, _, path = text.partition(":")
    if not is_name(claim) or not path.startswith("/") or path.strip("/") == "":
        raise UsageError(f"{VOLUME_VARIABLE}: expected CLAIM:PATH, as tdata:/TData, found {text!r}")
    return PodHome(claim, f"/{path.strip('/')}")


def with_home(source: MadePods, home: PodHome | None) -> MadePods:
    """Return pods that mount the user's volume as well, unless they have another one at its path."""
    if home is None:
        return source
    groups = tuple(replace(group, template=_mounting(group.template, home)) for group in source.groups)
    return replace(source, template=_mounting(source.template, home), groups=groups)


def _mounting(template: PodTemplate, home: PodHome) -> PodTemplate:
    if any(volume.path.rstrip("/") == home.path for volume in template.volumes):
        return template
    volume = Volume(kind="claim", value=home.claim, path=home.path)
    return replace(template, volumes=(*template.volumes, volume))
