"""The decisions of `%%mesh` and of the kernel: which ranks a cell is for, its text, and how it has ended."""

from __future__ import annotations

import sys

import pytest

from mesh.api.choosing import LEASE_ON_A_TERMINAL_S
from mesh.cli.dailyoptions import INSTALL_KERNEL
from mesh.cli.kernelspec import specification
from mesh.cli.magic import Magic
from mesh.cli.wishes import read_asked
from mesh.config.settings import Options
from mesh.core.errors import UsageError
from mesh.program.prompt.cells import parts
from mesh.program.prompt.notebook import CellFailed, Notebook, chosen
from mesh.program.prompt.outlet import BETWEEN_CELLS_BYTES, Outlet
from mesh.program.prompt.starting import outlasting_sleep

NONE: dict[str, tuple[str, ...]] = {}
ONE = {"pod": ("--nproc=2",)}
TWO = {**ONE, "gpus": ()}
CHOICES = {
    "the default cluster at first": ("", (), NONE, "main"),
    "the only one that has ranks": ("", (), ONE, "pod"),
    "options alone are for the default cluster": ("", ("--nproc=4",), ONE, "main"),
    "another cluster beside it": ("gpus", (), ONE, "gpus"),
    "without options: as it was started": ("pod", (), TWO, "pod"),
    "with the same options": ("pod", ("--nproc=2",), TWO, "pod"),
}


@pytest.mark.parametrize(("cluster", "options", "opened", "name"), CHOICES.values(), ids=CHOICES)
def test_the_ranks_of_a_cell(
    cluster: str, options: tuple[str, ...], opened: dict[str, tuple[str, ...]], name: str
) -> None:
    assert chosen(cluster, options, opened, lambda: "main") == name


def test_a_cell_that_may_be_for_several_clusters_or_has_other_options_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of pod, gpus"):
        chosen("", (), TWO, lambda: "main")
    with pytest.raises(UsageError, match="pod: its ranks were started with other options") as refused:
        chosen("pod", ("--nproc=3",), TWO, lambda: "main")
    assert refused.value.hint == "%mesh --end pod"


PARTS = {
    "no command: as it is": ("x = 1\n\nx", ["x = 1\n\nx"]),
    "commands between": ("%ranks 0\nx\n%pull x", ["%ranks 0", "\nx", "%pull x"]),
    "a percent sign within a text is none": ('s = """\n%pull x\n"""', ['s = """\n%pull x\n"""']),
    "nor within brackets": ("x = (7\n% 4)", ["x = (7\n% 4)"]),
    "comments alone are no cell": ("# nothing\n\n%help", ["%help"]),
    "an open statement takes the line, and the ranks report it": ("f(\n%pull x", ["f(\n%pull x"]),
}


@pytest.mark.parametrize(("text", "found"), PARTS.values(), ids=PARTS)
def test_parts_of_a_cell(text: str, found: list[str]) -> None:
    assert parts(text) == found


def test_text_of_other_threads_is_written_by_the_thread_of_the_cell(capsys: pytest.CaptureFixture[str]) -> None:
    outlet = Outlet()
    for data in ("é".encode()[:1], "é".encode()[1:] + b"\n"):  # a character in two pieces
        outlet.stdout.write(data)
        assert capsys.readouterr() == ("", "")
    outlet.stderr.write(b"why\n")
    with outlet.cell():
        outlet.stdout.write(b"x" * BETWEEN_CELLS_BYTES + b"\n")
    found = capsys.readouterr()
    assert found.out == "é\n" + "x" * BETWEEN_CELLS_BYTES + "\n"
    assert found.err == "why\n"
    outlet.stdout.write(b"x" * BETWEEN_CELLS_BYTES)
    outlet.stdout.write(b"left out")
    outlet.flush()
    found = capsys.readouterr()
    assert found.out == "x" * BETWEEN_CELLS_BYTES
    assert found.err.startswith("==> 8 bytes that ranks printed between two cells are left out")


BAD_LINES = {
    "--end pod": "pod: no cell has started ranks there",
    "--end --all": "--end: expected clusters, found --all",
    "--nprocs 2 pod": "unknown option --nprocs; did you mean '--nproc'?",
    "--env 'A=1 pod": "%mesh --env 'A=1 pod: no closing quotation",
    "--install-kernel x pod": "--install-kernel: not in a notebook",
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items(), ids=BAD_LINES)
def test_a_bad_line_is_an_error_without_a_traceback(line: str, message: str) -> None:
    with pytest.raises(CellFailed) as failed:
        Magic(Notebook({}))(line)
    assert failed.value._render_traceback_()[0] == f"CellFailed: {message}"


def test_a_notebook_without_ranks_and_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    magic = Magic(Notebook({}))
    magic("")
    assert capsys.readouterr().out.startswith("no ranks are there")
    magic("--help")
    assert "--nproc N|auto" in capsys.readouterr().out


def test_the_options_of_a_cell_are_those_of_the_prompt() -> None:
    asked = read_asked(["--python", "python3.12", "--nproc", "2", "pod:0"])
    assert (asked.cluster, asked.options) == ("pod:0", ("--nproc=2", "--python=python3.12"))
    assert (asked.wishes.python, asked.wishes.options.nproc) == ("python3.12", 2)


def test_a_notebook_outlasts_the_sleep_of_a_laptop_unless_a_lease_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESH_LEASE", raising=False)
    assert outlasting_sleep(Options()).lease == LEASE_ON_A_TERMINAL_S
    assert outlasting_sleep(Options(lease=5.0)).lease == 5.0
    monkeypatch.setenv("MESH_LEASE", "7")
    assert outlasting_sleep(Options()).lease is None


def test_a_kernel_starts_in_any_directory() -> None:
    argv = specification(["--install-kernel=x", "--env-file=/a/b", "--fold=exact"], "pod")["argv"]
    assert isinstance(argv, list)
    assert argv[0] == sys.executable
    assert argv[3:] == ["{connection_file}", "--env-file=/a/b", "--fold=exact", "--cluster=pod"]
    with pytest.raises(UsageError, match="expected letters"):
        INSTALL_KERNEL.read("--install-kernel", "a/b")
