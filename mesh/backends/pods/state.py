"""The state of pods and nodes in words. Pure: objects of the API in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.backends.pods.objects import Container, ContainerState, ContainerStatus, Node, Pod, PodEvent
from mesh.backends.pods.objects import PodStatus as PodStatus  # for the example below

ENDED = ("Succeeded", "Failed")
# Waiting reasons that a pod does not get out of by itself.
FINAL_WAITS = (
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
UNSCHEDULED, BEING_MADE = "is not scheduled yet", "its containers are made"
BACK_OFF = "ImagePullBackOff"
NO_PYTHON = "has no Python"
MAKING = ("ContainerCreating", "PodInitializing")
NO_IMAGE = ("not found", "does not exist", "manifest unknown", "repository name must be", "invalid reference")
NO_PROGRAM = ("executable file not found", "no such file or directory: unknown")
PULL_FAILURES = ("ErrImagePull", BACK_OFF)
PULL_EVENT = "Failed to pull image"  # begins the message of an event with the cause
SCHEDULE, IMAGE, PYTHON = "schedule", "image", "python"  # steps of core.events.POD_STEPS
_DISRUPTIONS = {  # reasons of the condition DisruptionTarget
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node was tainted",
    "EvictionByEvictionAPI": "the node was drained, or the pod evicted by the API",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "ended by its node, which was short of resources or shuts down",
}


def is_over(pod: Pod) -> bool:
    """Return True if the pod does not run any more, or not for long."""
    return bool(pod.metadata.deletion_timestamp) or pod.status.phase in ENDED


def has_ended(pod: Pod, container: str) -> bool:
    """Return True if the pod is over, or a container of it has ended for good beside others; "": the first one."""
    return is_over(pod) or (
        pod.spec.restart_policy == "Never" and status_of(pod, container).state.terminated is not None
    )


def container_of(pod: Pod, name: str) -> Container:
    """Return a container of a pod; "": the first one."""
    return next((one for one in pod.spec.containers if name in ("", one.name)), Container())


def status_of(pod: Pod, container: str) -> ContainerStatus:
    """Return the status of a container; "": the first one's."""
    found = pod.status.container_statuses or ()
    return next((one for one in found if container in ("", one.name)), ContainerStatus())


def runs(pod: Pod, container: str) -> bool:
    """Return True if a program can be started in a container of the pod; "": in the first one."""
    return pod.status.phase == "Running" and status_of(pod, container).state.running is not None


def waits_for(pod: Pod, events: Sequence[PodEvent] = (), container: str = "") -> tuple[str, bool]:
    """Return why a pod does not run yet, and if that does not end by itself.

    events: about the pod, the oldest first
    container: that is to run; "": the first one

    >>> waits_for(Pod())
    ('is not scheduled yet', False)
    >>> waits_for(Pod(), [PodEvent(type="Warning", reason="FailedMount", message='secret "x" not found')])
    ('FailedMount: secret "x" not found', False)
    """
    if has_ended(pod, container) and not is_over(pod):
        return end_of(pod, container), True
    text, is_final = _waits_for(pod, [one.message for one in events if one.message.startswith(PULL_EVENT)])
    warnings = [f"{one.reason}: {one.message}" for one in events if one.type == "Warning" and one.message]
    if warnings and text.startswith((UNSCHEDULED, BEING_MADE)):
        return warnings[-1], False
    return text, is_final


def step_of(pod: Pod) -> str:
    """Return the step on the way to an agent that a pod which does not run is at, one of core.events.POD_STEPS."""
    if not pod.spec.node_name or is_over(pod):
        return SCHEDULE
    text, _ = waits_for(pod)
    return PYTHON if NO_PYTHON in text else IMAGE


def _waits_for(pod: Pod, pulls: Sequence[str]) -> tuple[str, bool]:
    status = pod.status
    if pod.metadata.deletion_timestamp:
        return end_of(pod), True
    statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    for one in statuses:
        waiting = one.state.waiting
        if waiting and waiting.reason not in ("", *MAKING):
            if _has_no_program(waiting):
                return _no_program(one), True
            message = waiting.message
            if waiting.reason == BACK_OFF and pulls:  # its own message is about the next attempt alone
                message = pulls[-1]
            text = waiting.reason + f" ({message})" * bool(message)
            if waiting.reason in PULL_FAILURES:
                return f"cannot pull {one.image}: {text}", any(word in message for word in NO_IMAGE)
            return text, waiting.reason in FINAL_WAITS
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason or UNSCHEDULED, False
    if status.phase in ENDED:
        return end_of(pod), True
    if not pod.spec.node_name:
        return UNSCHEDULED, False
    if name := next((one.name for one in status.init_container_statuses or () if one.state.running), ""):
        return f"its init container {name} runs", False
    images = ", ".join(sorted({one.image for one in statuses}))
    return BEING_MADE + f" ({images})" * bool(images), False


def end_of(pod: Pod, container: str = "") -> str:
    """Return why a pod or one container of it is gone; "" if nothing shows it.

    >>> end_of(Pod(status=PodStatus(phase="Failed", reason="Evicted", message="The node was low on memory.")))
    'evicted: The node was low on memory.'
    """
    status = pod.status
    for condition in status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return _DISRUPTIONS.get(condition.reason, condition.message or condition.reason)
    if status.reason == "Evicted":
        return f"evicted: {status.message or 'its node was short of resources'}"
    if status.reason == "DeadlineExceeded":
        return "its time is up (activeDeadlineSeconds)"
    if status.reason == "NodeLost":
        return f"its node {pod.spec.node_name} is lost"
    for init in status.init_container_statuses or ():
        ended = init.state.terminated
        if ended and ended.exit_code:
            return _failed_init(init.name, ended)
    own = status_of(pod, container)
    if own.state.terminated and not pod.metadata.deletion_timestamp:
        return _terminated(pod, own, own.state.terminated)
    if pod.metadata.deletion_timestamp:
        return "the pod was deleted (by kubectl, a controller or a drain)"
    return f"the pod has ended ({status.phase})" if status.phase in ENDED else ""


def _failed_init(name: str, ended: ContainerState) -> str:
    """Return why an init container has failed: the last line that it has printed."""
    lines = [line.strip() for line in ended.message.splitlines() if line.strip()]
    return f"its init container {name} has failed: {lines[-1] if lines else f'exit {ended.exit_code}'}"


def restart_of(pod: Pod, container: str, restarts: int) -> str:
    """Return why a container was started again since there were so many restarts; "" if it was not."""
    own = status_of(pod, container)
    if own.restart_count <= restarts:
        return ""
    ended = own.last_state.terminated
    return _terminated(pod, own, ended) if ended else "its container was started again"


def _terminated(pod: Pod, status: ContainerStatus, ended: ContainerState) -> str:
    if ended.reason == "OOMKilled":
        memory = (container_of(pod, status.name).resources.limits or {}).get("memory", "")
        return f"OOMKilled ({f'limit {memory}; ' if memory else ''}the kernel ended the whole container)"
    if _has_no_program(ended):
        return _no_program(status)
    killed = f"signal {ended.signal}" if ended.signal else f"exit {ended.exit_code}"
    return f"its container {status.name} has ended ({killed})"


def _has_no_program(ended: ContainerState) -> bool:
    """Return True if the image lacks the program that the container was to start with."""
    return any(words in ended.message for words in NO_PROGRAM)


def _no_program(status: ContainerStatus) -> str:
    return f"image {status.image} {NO_PYTHON} that its first process needs (3.8 or later; `python:` names another)"


def node_trouble(node: Node) -> str:
    """Return why a node may have lost its pods; "" for a node that is Ready."""
    for condition in node.status.conditions or ():
        if condition.type == "Ready" and condition.status != "True":
            since = (condition.last_transition_time or "").rstrip("Z").rpartition("T")[2]
            return f"node {node.metadata.name} is NotReady" + f" since {since} UTC" * bool(since)
    return ""


def counted(texts: Sequence[str]) -> str:
    """Return equal texts once, with their number.

    >>> counted(["a", "b", "a"])
    '2 a; 1 b'
    """
    return "; ".join(f"{texts.count(text)} {text}" for text in dict.fromkeys(texts))
