"""Declared jobs: objects of Kubernetes whose pods begin a run without a client, and the Secret that they need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.api.choosing import make_spec, project_here, with_archive
from mesh.api.podshow import named, no_pods_made, yaml_of
from mesh.app.declared import declared_hosts, plan_of, without_values
from mesh.app.modules import volume_setup
from mesh.backends.pods.api import ApiFailed
from mesh.config.podspec import MadePods
from mesh.config.project import Project, check_workspace
from mesh.config.settings import Options
from mesh.config.userspaces import pod_home, with_home
from mesh.config.variables import is_secret, passed_variables, passed_words
from mesh.core.cluster import Cluster, PodPlace
from mesh.core.errors import MeshError, UsageError
from mesh.core.run import RunSpec
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes import code, job, render
from mesh.hosts.kubernetes.beside import EXISTS
from mesh.hosts.kubernetes.job import INDEXED, JOBSET, Declared
from mesh.hosts.kubernetes.made import maker_of
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.user import user_here

DEFAULTS = Options()
KEY_DAYS = 3650  # that the key of declared jobs is valid
NO_WORKSPACE = "job"  # the empty workspace of a job without source:


def job_text(
    name: str,
    command: Sequence[str],
    *,
    kind: str = INDEXED,
    retries: int = 0,
    options: Options = DEFAULTS,
    clusters_file: str = "",
) -> str:
    """Return a declared job as YAML: objects whose pods run a command once all of them are there. Sends no request.

    command: the words for execve; kind: "job" or "jobset"; retries: how often a JobSet starts all pods again
    No secret is in it: values of variables that `pass:` and `secret:` name are in the Secret of ``make_job_secret``.
    Raises UsageError, and MeshError for a workspace that cannot be read.
    """
    cluster, source = _declared(name, clusters_file)
    if retries and kind != JOBSET:
        raise UsageError("--retries: a Job cannot start all of its pods again", hint="--as jobset can")
    project = project_here()
    if modules := [word for word, _ in project.modules.descriptions]:
        hint = "put what they do into the image, or into prerun:"
        raise UsageError(f"{project.path}: {modules[0]}: declared jobs have no modules", hint=hint)
    if source.groups:
        raise UsageError(f"{name}: declared jobs have no groups: all pods run one command", hint="leave out groups:")
    made = _made(name, cluster, source)
    named, patterns = passed_words(project)
    spec = _spec(project, options, command, cluster, source)
    hidden = {*_variables(project, options), *(name for name in named if name not in spec.groups[0].env)}
    secret = {*spec.secrets, *(name for name in hidden if is_secret(project, name))}
    spec = without_values(replace(spec, secrets=tuple(sorted(secret))), sorted(hidden))
    slices = source.slices if source.slices > 1 else 0
    placed = replace(
        cluster,
        hosts=declared_hosts(source.nodes),
        backend="pods",
        remote_dir=render.REMOTE_DIR,
        slices=(source.nodes // source.slices,) * slices,
    )
    plan = {**plan_of(spec, placed, f"Kubernetes, {made.root_name}"), "start_timeout": source.start_timeout}
    declared = Declared(made=made, plan=plan, kind=kind, slices=max(1, slices), retries=retries)
    place = PodPlace(context=source.context, namespace=source.namespace)
    wanted = {"passed": patterns, "secret": _again(made, place)}  # of the Secret
    return yaml_of(job.job_objects(replace(declared, plan={**plan, **wanted})))


def make_job_secret(name: str, clusters_file: str = "") -> str:
    """Make the Secret of a cluster's declared jobs in its namespace; return its name.

    It has a key by which the pods recognise each other, the program that begins the run, and the values of variables
    that `pass:` and `secret:` of mesh.yaml name. Raises UsageError if such a variable is not set here, and MeshError if
    the Secret is there already.
    """
    from mesh.core.credentials import make_credentials
    from mesh.remote.declared import pack

    cluster, source = _declared(name, clusters_file)
    made = _made(name, cluster, source)
    values = _variables(project_here(), DEFAULTS)
    _check_set(project_here(), values)
    secret = job.secret_object(made, make_credentials(KEY_DAYS), pack(), values)
    api, _ = maker_of(cluster, StatusLine())
    with api:
        try:
            api.create(api.path("secrets"), secret)
        except ApiFailed as error:
            if error.reason != EXISTS:
                raise
            told = f"{name}: there is a Secret {job.secret_name(made)} already"
            raise MeshError(told, hint=_again(made, api.place)) from error
    return job.secret_name(made)


def _again(made: Made, place: PodPlace) -> str:
    """Return the command that makes the Secret of a cluster again."""
    return f"{place.kubectl('delete secret')} {job.secret_name(made)} && mesh pods secret {made.cluster}"


def _check_set(project: Project, values: Mapping[str, str]) -> None:
    """Raise UsageError unless each variable that mesh.yaml hands on by its name is set here, or has a value there."""
    missing = [name for name in passed_words(project)[0] if name not in {**values, **project.env}]
    if missing:
        hint = f"export {missing[0]}=VALUE, then make the Secret; or remove it from mesh.yaml"
        raise UsageError(f"{', '.join(missing)}: named by `pass:` or `secret:` of mesh.yaml, and not set", hint=hint)


def _declared(name: str, clusters_file: str) -> tuple[Cluster, MadePods]:
    """Return a cluster of pods that mesh makes. Raises UsageError for another one."""
    cluster = named(name, clusters_file)
    if not isinstance(cluster.source, MadePods):
        raise no_pods_made(cluster)
    cluster = with_archive(cluster)
    assert isinstance(cluster.source, MadePods)
    return cluster, cluster.source


def _made(name: str, cluster: Cluster, source: MadePods) -> Made:
    mounting = with_home(source, pod_home(os.environ))
    alone = replace(mounting, switchboard_from=source.nodes + 1)  # no client has all of their streams
    return Made(cluster=name, user=user_here(), source=alone, python=cluster.python)


def _spec(project: Project, options: Options, command: Sequence[str], cluster: Cluster, source: MadePods) -> RunSpec:
    check_workspace(project, Path.home())
    spec = make_spec(project, options, command)
    fetched = source.template.source
    return replace(
        spec,
        project=code.PROJECT if fetched else NO_WORKSPACE,
        sync=False,
        existing=fetched is not None,
        fetched=fetched.line if fetched else "",
        claim=True,
        prerun=(*volume_setup(cluster), *spec.prerun),
    )


def _variables(project: Project, options: Options) -> Mapping[str, str]:
    """Return the variables of ranks whose values are no part of a rendered job."""
    spec = make_spec(project, options, ("true",))
    env = spec.groups[0].env
    names = {*spec.secrets, *passed_variables(project, os.environ)}
    return {name: env[name] for name in sorted(names) if name in env}
