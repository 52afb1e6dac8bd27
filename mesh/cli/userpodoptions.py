"""Options of ``mesh pods`` for administrators and users of a cluster of Kubernetes."""

from __future__ import annotations

from mesh.cli.option import HOSTS, OTHER, AnyOption, Option, switch, text
from mesh.config.settings import read_number, read_seconds

OF_A_USER = ("pods remove", "pods kubeconfig", "pods proxy")
APPLY = ("pods apply",)
REMOVE = ("pods remove",)
USERS_FILE = text("file", APPLY, OTHER, "FILE", "the users and their dev pod, as docs/pods.md has it", is_place=True)
POD_USER = text("user", OF_A_USER, HOSTS, "USER", "the user, as in the file of `mesh pods apply`", is_place=True)
USERS_CONTEXT = text(
    "context", (*APPLY, "pods list", *OF_A_USER), HOSTS, "NAME", "of kubeconfig (default: its current one)"
)
DRY_APPLY = switch("dry-run", APPLY, OTHER, "print what would be made or changed, and change nothing")
FORCE_APPLY = switch("force", APPLY, OTHER, "also change fields that others have set")
REMOVE_YES = switch("yes", REMOVE, OTHER, "do it; without it, what would go is listed, with status 2")
WITH_DATA = switch("with-data", REMOVE, OTHER, "also the volume with all data, and the namespace")
TOKEN_FOR: Option[float | None] = Option(
    "for", ("pods kubeconfig",), OTHER, "TIME", "how long it is valid: 12h, 7d (default: 30d)", read_seconds, None
)
PROXY_PORT: Option[int | None] = Option(
    "port", ("pods proxy",), OTHER, "PORT", "of sshd in the pod (default: 2222)", read_number, None
)

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
