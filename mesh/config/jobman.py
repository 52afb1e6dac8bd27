"""JOBMAN's keys of job files that have another name, another place, or no meaning in the native format."""

from __future__ import annotations

from collections.abc import Callable

import yaml
from msgspec import Struct
from yaml.nodes import MappingNode, Node

from mesh.config import yamlfile
from mesh.config.section import Section
from mesh.core.job import RestartOn, RestartSpec

JOB_KEYS = ("env_type", "loop", "remote_user", "worker_num", "environment", "id", "dir")
FILE_KEYS = ("brevo_email",)
MARKS = ("loop", "remote_user", "worker_num", "environment")  # keys of `job:` that only JOBMAN's files have
AUTO = "auto"
WORKER_NUM = "a number, or auto"
FAILURES_OF_LOOP = 1_000_000  # `loop` has no limit
LOOP = (
    "job.loop: the command is started again after failures and preemptions, with a growing pause, and not after "
    "success; `restart: always` does that too"
)
PROGRESS = r"completed step: (?P<step>\d+).*?loss: (?P<loss>[-+0-9.eE]+)"  # of MaxText, which JOBMAN looks for
MERGE = "exec 2>&1\n"  # a log of JOBMAN has stdout and stderr
IGNORED_BY_SOME = {
    "tpu": ("startup_script", "tags", "metadata"),
    "docker": ("env_vars", "mount_dirs", "workdir"),
}
# Keys that only the third version reads.
THIRD_KEYS = {
    "job": ("remote_user", "worker_num", "environment", "queue"),
    "tpu": ("flags",),
    "gcsfuse": ("cache", "extra_mounts"),
}
# Keys that other places have, with their right one.
MISPLACED = {
    "loop": "job.loop",
    "env_type": "job.env_type",
    "remote_user": "job.remote_user",
    "environment": "job.environment",
    "cmd": "command.cmd",
    "workers": "command.workers",
    "modules": "setup.modules",
    "accelerator": "tpu.accelerator",
    "zone": "tpu.zone",
    "pricing": "tpu.pricing",
    "bucket_name": "gcsfuse.bucket_name",
    "mount_path": "gcsfuse.mount_path",
    "image": "docker.image",
    "name": "job.name",
}


class JobmanKeys(Struct, frozen=True, kw_only=True):
    """The keys of JOBMAN in a job file."""

    is_jobman: bool = False  # the file was written for JOBMAN
    has_listed_modules: bool = False  # its first version: jobs are in jobs/ID, and not in jobs/USER/ID
    login: str = ""
    number: str = ""  # `worker_num`: decimal, or AUTO; "": none
    notices: tuple[str, ...] = ()


def read_jobman(node: Node | None, job: Section) -> JobmanKeys:
    """Return JOBMAN's keys. node: the whole file"""
    if not is_jobman(node):
        return JobmanKeys()
    login = job.text("remote_user", "the user to log in as") if _is_there(job, "remote_user") else ""
    notices = [LOOP] if _is_there(job, "loop") and job.flag("loop") else []
    working = [
        f"{section}.{key}" for section, names in IGNORED_BY_SOME.items() for key in names if _has(node, section, key)
    ]
    if working:
        notices.append(f"{', '.join(working)}: used here; some versions of JOBMAN do without")
    mail = _below(node, "brevo_email")
    if isinstance(mail, MappingNode) and any(yamlfile.found(value) != "nothing" for _, value in mail.value):
        notices.append("brevo_email: not used; `notify:` runs a command or calls a webhook")
    return JobmanKeys(
        is_jobman=True,
        has_listed_modules=_has(node, "setup", "modules"),
        login=login,
        number=_number(job),
        notices=tuple(notices),
    )


def is_jobman(node: Node | None) -> bool:
    """Return True for a file with a key that only JOBMAN's files have."""
    is_worker = _has(_below(node, "job"), "queue", "enabled")
    return is_worker or _has(node, "tpu", "allocation_mode") or any(_has(node, "job", key) for key in MARKS)


def third_version_key(text: str) -> str:
    """Return a key of a job file that only JOBMAN's third version has; "": there is none.

    >>> third_version_key("job: {worker_num: auto}"), third_version_key("job: {loop: true}"), third_version_key("[")
    ('job.worker_num', '', '')
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return ""
    found = (f"{section}.{key}" for section, keys in THIRD_KEYS.items() for key in keys if _has_key(node, section, key))
    return next(found, "")


def read_loop(job: Section, read: Callable[[], RestartSpec], *, has_restart: bool) -> RestartSpec:
    """Return the rule of ``job.loop`` where it is true, else what ``read`` returns."""
    if not _is_there(job, "loop") or not job.flag("loop"):
        return read()
    if has_restart:
        job.add("loop", "stands beside restart:; leave out one of them")
    return RestartSpec(on=RestartOn.FAILURE, failures=FAILURES_OF_LOOP)


def hint_misplaced(node: Node | None, keys: Section) -> None:
    """Add a hint for each key at the top of the file that belongs elsewhere."""
    for name in keys.keys:
        if name in MISPLACED:
            keys.problems.hints.append(f"{name}: belongs to {MISPLACED[name].partition('.')[0]}:, as {MISPLACED[name]}")


def numbered(name: str, number: int) -> str:
    """Return the name of a job with its worker's number."""
    return f"{name}_{number}"


def _number(job: Section) -> str:
    if not _is_there(job, "worker_num"):
        return ""
    word = str(job.node("worker_num").value)
    if word == AUTO or (word.isdecimal() and word.isascii()):
        return word
    job.unexpected("worker_num", WORKER_NUM)
    return ""


def _is_there(section: Section, key: str) -> bool:
    return key in section and yamlfile.found(section.node(key)) != "nothing"


def _below(node: Node | None, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _has_key(node: Node | None, section: str, key: str) -> bool:
    return _below(_below(node, section), key) is not None


def _has(node: Node | None, section: str, key: str) -> bool:
    """Return True if a section of the file has a key with a value."""
    found = _below(_below(node, section), key)
    return found is not None and yamlfile.found(found) != "nothing"
