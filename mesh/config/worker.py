"""Reader of ``job.queue``: the task file of a worker, the steps before its tasks, and its idle time."""

from __future__ import annotations

from pathlib import Path

from yaml.nodes import MappingNode, ScalarNode

from mesh.config import yamlfile
from mesh.config.section import Section
from mesh.config.tasksfile import read_workers
from mesh.core.tasks import USUAL_IDLE_S, PrefixStep, WorkerSpec
from mesh.core.tpu import TpuSpec

QUEUE_KEYS = ("enabled", "config", "prefix", "accelerator", "zone", "idle", "end")
STEP_KEYS = ("name", "workers", "run", "required")
TEXT_STEP = "prefix"  # the name of a step that is a text alone


def read_queue(job: Section, file: Path | None, tpu: TpuSpec | None) -> tuple[str, WorkerSpec | None]:
    """Return the name of a job's queue, and the worker that it is; None for a job with a command.

    file: the job file, beside which a relative path is looked for, too; tpu: the machines that the job asks for
    """
    if "queue" not in job or not isinstance(job.node("queue"), MappingNode):
        return job.text("queue", "the name of a queue", "default"), None
    section = Section(job.node("queue"), job.where("queue"), QUEUE_KEYS, job.problems, "a mapping with config:")
    steps = _prefix(section)
    worker = WorkerSpec(
        tasks=_tasks(section, file),
        accelerator=section.text("accelerator", "an accelerator of the task file", tpu.accelerator if tpu else ""),
        zone=section.text("zone", "the name of a zone", tpu.zones[0] if tpu and len(tpu.zones) == 1 else ""),
        prefix=steps,
        idle=section.seconds("idle", USUAL_IDLE_S),
        ends=section.flag("end"),
    )
    is_worker = section.flag("enabled", default=True)
    if is_worker and "config" not in section:
        job.problems.add(job.node("queue"), job.where("queue"), "has no config:")
        job.problems.hints.append("queue: {enabled: true, config: tasks.yaml}")
    return "default", worker if is_worker else None


def _tasks(section: Section, file: Path | None) -> Path:
    """Return the absolute path of the task file: below the working directory, or beside the job file."""
    written = section.text("config", "the path of a task file")
    path = Path(written).expanduser()
    beside = file.parent / path if file is not None else path
    return (path if path.exists() or not beside.exists() else beside).resolve()


def _prefix(section: Section) -> tuple[PrefixStep, ...]:
    if "prefix" not in section:
        return ()
    node = section.node("prefix")
    if isinstance(node, ScalarNode):
        return (PrefixStep(name=TEXT_STEP, run=section.text("prefix")),) if node.value.strip() else ()
    steps = []
    for index, (where, item) in enumerate(
        yamlfile.items(node, section.where("prefix"), section.problems, "text for bash, or a list of steps")
    ):
        step = Section(item, where, STEP_KEYS, section.problems, "a mapping with run:")
        if step.keys and "run" not in step:
            section.problems.add(item, where, "has no run:")
        steps.append(
            PrefixStep(
                name=step.text("name", "the name of the step", f"{TEXT_STEP}-{index + 1}"),
                run=step.text("run", "text for bash"),
                workers=read_workers(step, "workers"),
                required=step.flag("required"),
            )
        )
    return tuple(steps)
