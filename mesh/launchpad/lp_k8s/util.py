"""TLaunch's ``lp_k8s.util``: the namespace of programs."""

from __future__ import annotations

import os

IN_POD = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
DEFAULT = "default"


def get_namespace() -> str:
    """Return the namespace in which ``launch`` makes pods: that of kubeconfig's current context, or of this pod.

    At the launching machine: raises UsageError without kubeconfig.
    """
    try:
        from mesh.backends.pods.access import access_of
    except ImportError:  # on a host
        return _namespace_of_pod()
    return access_of("", os.environ).namespace or DEFAULT


def _namespace_of_pod() -> str:
    try:
        with open(IN_POD) as file:
            return file.read().strip() or DEFAULT
    except OSError:
        return DEFAULT
