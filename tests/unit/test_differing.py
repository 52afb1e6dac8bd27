"""mesh exec --diff: the output of ranks against that of most."""

from __future__ import annotations

from pathlib import Path

from mesh.rundir.differing import DIFF_LINES_MAX, differences, groups_of, summary
from mesh.rundir.results import RankResult


def ranks_of(directory: Path, *outputs: tuple[str, str] | None) -> list[RankResult]:
    """Ranks with their stdout and stderr; None: it never started."""
    found = []
    for rank, output in enumerate(outputs):
        out, err = directory / f"{rank}.out", directory / f"{rank}.err"
        for path, text in zip((out, err), output or (), strict=False):
            path.write_text(text)
        code = None if output is None else 0
        found.append(
            RankResult(rank=rank, host=f"h{rank}", label="", code=code, signal=None, stdout_path=out, stderr_path=err)
        )
    return found


def test_the_output_of_most_is_the_reference(tmp_path: Path) -> None:
    odd, most = ("a\nc\x1b[1m\n", "warning\n"), ("a\nb\n", "")
    groups = groups_of(ranks_of(tmp_path, odd, most, None, most))
    assert [[one.rank for one in group] for group in groups] == [[1, 3], [0]]
    assert list(differences(groups)) == [
        "--- ranks 1,3 (h1, h3)",
        "+++ rank 0 (h0)",
        "@@ -1,2 +1,3 @@",
        *(" a", "-b", "+c", "+warning"),
    ]
    assert summary(groups) == "2 different outputs; most ranks have that of ranks 1,3"


def test_equal_outputs_have_no_difference(tmp_path: Path) -> None:
    groups = groups_of(ranks_of(tmp_path, ("a\n", ""), ("a\n", "")))
    assert (list(differences(groups)), summary(groups)) == ([], "ranks 0-1: the same output")
    assert summary(groups_of(ranks_of(tmp_path / "none", None))) == "no rank has printed anything"


def test_outputs_of_which_most_ranks_have_none_are_not_said_to_be_those_of_most(tmp_path: Path) -> None:
    groups = groups_of(ranks_of(tmp_path, ("a\n", ""), ("b\n", ""), ("b\n", ""), ("c\n", "")))
    assert summary(groups) == "3 different outputs, compared with that of ranks 1-2"


def test_long_outputs_are_not_compared_by_lines(tmp_path: Path) -> None:
    long = "x\n" * (DIFF_LINES_MAX + 1)
    shown = list(differences(groups_of(ranks_of(tmp_path, (long, ""), (long + "y\n", "")))))
    assert shown[:2] == ["--- rank 0 (h0)", "+++ rank 1 (h1)"]
    assert shown[2].startswith("(they differ, and have too many lines to compare: 20.0 kB and 20.0 kB)")
