"""The modules of a project, made from their descriptions for one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from mesh.core.cluster import Cluster
from mesh.core.module import Description, Docker, Environment, Module, Preparation
from mesh.core.run import Kind, PrerunEntry, RunSpec


def preparation_of(
    spec: RunSpec, cluster: Cluster, descriptions: Sequence[tuple[str, Description]], *, undo: bool = False
) -> tuple[RunSpec, Preparation]:
    """Return the spec of a run whose hosts modules prepare, and the modules themselves.

    descriptions: in order, each with the word that names it
    undo: undo what they have set up
    Raises UsageError for local files that cannot be read.
    """
    modules: list[Module] = []
    environment: Environment | None = None
    for _, description in descriptions:
        if type(description) in ENVIRONMENTS:
            environment = ENVIRONMENTS[type(description)](description)
            modules.append(environment)
        else:
            modules.append(OTHERS[type(description)](description, cluster))
    spec = replace(spec, modules=tuple(name for name, _ in descriptions), undo=undo)
    preparation = Preparation(modules=tuple(modules), environment=environment, undo=undo)
    if environment is None or spec.kind is not Kind.RUN:
        return spec, preparation
    enter = (PrerunEntry(run=environment.enter),) if environment.enter else ()
    return replace(_with_values(spec, descriptions), prerun=(*enter, *spec.prerun)), preparation


def _with_values(spec: RunSpec, descriptions: Sequence[tuple[str, Description]]) -> RunSpec:
    """Add the variables of ``docker:`` to those of the user, which win."""
    given: dict[str, str] = {}
    for _, description in descriptions:
        if isinstance(description, Docker):
            given |= dict(entry.split("=", 1) for entry in description.env if "=" in entry)
    groups = tuple(replace(group, env={**given, **group.env}) for group in spec.groups)
    return replace(spec, groups=groups) if given else spec


ENVIRONMENTS: Mapping[type[Description], Callable[[Description], Environment]] = {}
OTHERS: Mapping[type[Description], Callable[[Description, Cluster], Module]] = {}
