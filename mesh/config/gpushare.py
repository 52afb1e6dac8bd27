"""The reader of ``gpu_share:`` in mesh.yaml: the resources by which a plug-in of Kubernetes shares GPUs."""

from __future__ import annotations

from msgspec import Struct
from yaml.nodes import Node

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems

KEY = "gpu_share"
KEYS = ("gpu", "memory", "cores")
DEFAULT_GPU = "nvidia.com/gpu"


class GpuShare(Struct, frozen=True, kw_only=True):
    """Names of resources."""

    gpu: str = DEFAULT_GPU
    memory: str = ""  # of each GPU, in the plug-in's own unit; "": there is none
    cores: str = ""  # likewise


def read_gpu_share(node: Node, problems: Problems) -> GpuShare:
    """Return the names of the resources."""
    if yamlfile.found(node) == "nothing":
        return GpuShare()
    keys = yamlfile.mapping(node, KEY, problems, f"a mapping with {', '.join(KEYS)}")
    yamlfile.known(keys, KEYS, KEY, problems)
    expected = "the name of a resource, as nvidia.com/gpumem"
    given = {name: yamlfile.text(value, f"{KEY}.{name}", problems, expected) for name, (_, value) in keys.items()}
    return GpuShare(**{name: value for name, value in given.items() if name in KEYS and value})
