"""The stacks of a program whose nodes are threads of this process."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence

from mesh.api.hangs import Stacks
from mesh.core.stacks import At, Frame, Group


def stacks_of_threads(program: str, hosts: Mapping[str, str], labels: Sequence[str]) -> Stacks:
    """Return where the threads of some nodes are. hosts: by label, in the order of their ranks

    program: its name, in place of the id of a run
    """
    ranks = {label: rank for rank, label in enumerate(hosts)}
    calls = sys._current_frames()
    groups = []
    for thread in threading.enumerate():
        label = next((one for one in labels if thread.name == f"mesh-{one}" or is_call_of(thread.name, one)), "")
        if not label or thread.ident not in calls:
            continue
        frames = [
            Frame(function=call.name, file=call.filename, line=call.lineno or 0, is_library=_is_library(call.filename))
            for call in reversed(traceback.extract_stack(calls[thread.ident]))
        ]
        groups.append(
            Group(
                role="",
                is_main=thread.name == f"mesh-{label}",
                thread=thread.name,
                program=label,
                how="python",
                words="",
                frames=tuple(frames),
                processes=(At(rank=ranks[label], host=hosts[label], pid=os.getpid()),),
            )
        )
    seen = {one.rank for group in groups for one in group.processes}
    ended = tuple(ranks[label] for label in labels if ranks[label] not in seen)
    return Stacks(run=program, groups=tuple(groups), ended=ended, notes=(), failures=())


def is_call_of(thread: str, label: str) -> bool:
    """Return True for the name of a thread that runs the methods of a node.

    >>> is_call_of("mesh-actor/1-0", "actor/1"), is_call_of("mesh-actor/11", "actor/1")
    (True, False)
    """
    rest = thread.removeprefix(f"mesh-{label}-")
    return rest != thread and rest.isdecimal()


def _is_library(file: str) -> bool:
    return "/lib/python" in file or "/mesh/program/" in file
