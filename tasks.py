"""``inv run --cluster CLUSTER -- COMMAND`` is ``mesh run CLUSTER COMMAND``; ``inv dev.*`` is for work on mesh."""

from __future__ import annotations

import shlex
from sys import executable

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


@task(
    help={
        "all": "every cell of the matrix, some 15 minutes; else random faults",
        "seed": "the first seed; each round has the next one",
        "rounds": "how many runs with random faults",
        "minutes": "begin no other run after so many",
        "user": "who logs in to the hosts: root, or plain",
        "write": "write the section of docs/reliability.md",
    }
)
def chaos(
    context: Context,
    all: bool = False,  # noqa: A002  (the option's name)
    seed: int = 1,
    rounds: int = 100,
    minutes: int = 60,
    user: str = "root",
    write: bool = False,
) -> None:
    """What dies, and what ranks do meanwhile: nothing may be left, and no line lost. Needs root."""
    what = "--all" if all else f"--seed {seed} --rounds {rounds}"
    more = " --write" if write else ""
    context.run(f"{executable} -m tests.chaos {what} --minutes {minutes} --user {user}{more}", pty=False)


@task(
    help={
        "rows": "which, as launch,loop; else all",
        "hosts": "how many, as 8,32,128; else what each row has",
        "rounds": "how often; else what each row has",
        "against": "a revision to be compared with, in one run; no other tool is measured then",
        "peers": "a virtual environment with more tools",
        "write": "write the pages of docs/",
    }
)
def bench(
    context: Context,
    rows: str = "",
    hosts: str = "",
    rounds: int = 0,
    against: str = "",
    peers: str = "",
    write: bool = False,
) -> None:
    """How fast mesh is, beside other tools. Needs root."""
    given = {"hosts": hosts, "rounds": str(rounds or ""), "against": against, "peers": peers}
    words = [*rows.replace(",", " ").split(), *(f"--{name}={value}" for name, value in given.items() if value)]
    words += ["--write"] if write else []
    context.run(shlex.join([executable, "-m", "benchmarks", *words]), pty=False)


namespace = Collection.from_module(commands, name="mesh")
namespace.add_collection(Collection("dev", check, test, chaos, bench))
