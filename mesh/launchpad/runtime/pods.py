"""TLaunch's descriptions of pods: image, command, resources, and where the code comes from. Plain values."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union


class ResourceRange(NamedTuple):
    """The quantity that a pod asks for, and the most that it may use."""

    requests: "Optional[str]" = None
    limits: "Optional[str]" = None


Quantity = Union[ResourceRange, Tuple[Optional[str], Optional[str]], str, float, None]
SHARED = ("cpu", "memory")  # of which a pod may use more than it asks for


class Resource:
    """The quantities of a pod, by the names of resources."""

    def __init__(
        self, cpu: Quantity = None, memory: Quantity = None, nvidia_gpu: Quantity = None, **others: Quantity
    ) -> None:
        """Take quantities: a plain one of cpu and memory is a request alone, one of any other resource a limit as well.

        others: resources by their names, as ``**{"amd.com/gpu": 8}``
        """
        self.resources: Dict[str, Quantity] = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": nvidia_gpu, **others}
        self.requests: Dict[str, str] = {}
        self.limits: Dict[str, str] = {}
        for name, value in self.resources.items():
            request, limit = _range(name, value)
            if request is not None:
                self.requests[name] = str(request)
            if limit is not None:
                self.limits[name] = str(limit)


def _range(name: str, value: Quantity) -> "Tuple[object, object]":
    """Return request and limit. A tuple may have the request alone."""
    if isinstance(value, (tuple, list)):
        return (value[0], value[1] if len(value) > 1 else None)
    return (value, None if name in SHARED else value)


class Container:
    """The container of each pod of a label."""

    def __init__(
        self,
        image: "Optional[str]" = None,
        command: "Optional[Sequence[str]]" = None,
        flags: "Sequence[str]" = (),
        resources: "Optional[Resource]" = None,
        env: "Optional[Mapping[str, str]]" = None,
        namespace: "Optional[str]" = None,
    ) -> None:
        """Take the description of a container.

        image: None for that of the cluster; command: TLaunch's ``process_entry``, and before it what prepares the pod
        flags: words of the command line that the program reads; namespace: of the pods
        """
        self.image, self.resources, self.namespace = image, resources, namespace
        self.command: "Optional[List[str]]" = list(command) if command is not None else None
        self.flags, self.env = list(flags), dict(env or {})


class Config:
    """The pods of a label."""

    def __init__(
        self, container: "Optional[Container]" = None, namespace: "Optional[str]" = None, **fields: object
    ) -> None:
        """Take the description of pods. fields: of a pod spec, as Kubernetes' Python client calls them"""
        self.container = container or Container()
        self.namespace, self.fields = namespace, fields


class Source:
    """The directory of the program, which mesh sends to the pods."""


class GitSource(Source):
    """A repository of git, from which the pods get the code."""

    def __init__(
        self,
        url: str,
        username: "Optional[str]" = None,
        password: "Optional[str]" = None,
        ref: str = "",
        secret: str = "",
    ) -> None:
        """Take the place of the code.

        username, password: are refused by ``launch``, as they would stand in the program
        ref: a commit, tag or branch, "" for the default branch; secret: the name of a Secret with both
        """
        self.url, self.username, self.password = url, username, password
        self.ref, self.secret = ref, secret
