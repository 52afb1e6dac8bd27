"""Children of the steward: how long each may take."""

from __future__ import annotations

import os
import selectors
import sys
from pathlib import Path

from mesh.jobs.children import Children
from mesh.jobs.decide import looks
from mesh.jobs.events import AnyAnswer, NotAsked
from mesh.jobs.interfaces import Request
from tests.job_histories import History, job_spec

ANSWERS = "import sys\nfor line in sys.stdin: print('[null]', flush=True)"


def test_the_first_look_of_a_child_may_take_longer_than_the_next_ones(tmp_path: Path) -> None:
    answers: list[AnyAnswer | None] = []
    with selectors.DefaultSelector() as selector:
        children = Children(
            [sys.executable, "-c", ANSWERS], os.environ, selector, lambda _, found: answers.append(found)
        )
        children.deadlines["look"], children.look_start_s = 0.0, 600.0
        job = History(job_spec()).play("granted started").job
        (look,) = looks(job)
        try:
            children.give([Request(op=0, order=look, job=job, directory=tmp_path)])
            children.look_at_the_clock()
            while not answers:
                for key, _ in selector.select(60.0):
                    key.data()
            assert answers == [None]
            children.give([Request(op=0, order=look, job=job, directory=tmp_path)])
            children.look_at_the_clock()
        finally:
            children.end()
    assert [one.why for one in answers if isinstance(one, NotAsked)] == ["no answer within 0 s"]
