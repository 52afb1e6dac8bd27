"""``inv run --cluster CLUSTER -- COMMAND`` is ``mesh run CLUSTER COMMAND``; ``inv dev.*`` is for work on mesh."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from mesh import tasks as commands


@task
def check(context: Context) -> None:
    """Lint, format check and types."""
    context.run("ruff check . && ruff format --check . && mypy", pty=False)


@task
def test(context: Context) -> None:
    """All tests, with their set-up, as on a new machine."""
    context.run("bash tests/run.sh", pty=False)


namespace = Collection.from_module(commands, name="mesh")
namespace.add_collection(Collection("dev", check, test))
