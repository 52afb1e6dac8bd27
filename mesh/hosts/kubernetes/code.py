"""The parts of a pod that fetch its workspace, in place of a client that sends it. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from mesh.config.podcode import CONFIG_MAP, Code

Object = Mapping[str, object]
CONTAINER = "source"  # the init container
PROJECT = "source"  # the directory of the workspace
SECRET_DIR, ARCHIVE_DIR = "/run/mesh-source-secret", "/run/mesh-source-archive"  # mounted volumes
ARCHIVE = "workspace.tar.gz"  # as in fetch.py
FETCH = Path(__file__).with_name("fetch.py")


def request_of(code: Code, remote_dir: str) -> Mapping[str, str]:
    """Return what fetch.py gets as JSON."""
    workspaces = f"{remote_dir}/workspaces"
    common = {"kind": code.kind, "into": f"{workspaces}/{PROJECT}", "record": f"{workspaces}/.{PROJECT}.record"}
    if code.kind == CONFIG_MAP:
        return {**common, "archive_dir": ARCHIVE_DIR}
    return {**common, "url": code.url, "ref": code.ref, "secret_dir": SECRET_DIR if code.secret else ""}


def volumes_of(code: Code, config_map: str) -> tuple[list[Object], list[Object]]:
    """Return the volumes of a pod that its init container needs, and where they are mounted there.

    config_map: the name of the one with the archive
    """
    if code.kind == CONFIG_MAP:
        volume: Object = {"name": "source-archive", "configMap": {"name": config_map}}
        path = ARCHIVE_DIR
    elif code.secret:
        volume = {"name": "source-secret", "secret": {"secretName": code.secret, "defaultMode": 0o444}}
        path = SECRET_DIR
    else:
        return [], []
    return [volume], [{"name": volume["name"], "mountPath": path, "readOnly": True}]


def init_container(code: Code, python: str, remote_dir: str, like: Object, mounts: list[Object]) -> Object:
    """Return the init container that fetches the workspace.

    like: the container of the ranks, whose image and resources it gets; mounts: its volumes
    """
    words = [python, "-I", "-S", "-c", FETCH.read_text(), json.dumps(request_of(code, remote_dir))]
    shared = {key: like[key] for key in ("image", "securityContext", "resources") if key in like}
    return {
        "name": CONTAINER,
        **shared,
        "command": words,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the reason is then in the pod's status
    }


def config_map_object(meta: Object, archive: bytes) -> Object:
    """Return the ConfigMap with a workspace. meta: its name, labels and owner"""
    data = {ARCHIVE: base64.b64encode(archive).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": data}
