"""A fixed sample of random schedules; ``inv dev.chaos --seed N`` runs a hundred. And: do we notice what is wrong?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import ALL, BEGINNING, COUNTED
from tests.chaos.rank import LINE, lines
from tests.chaos.schedule import carry_out, schedule
from tests.chaos.stage import Log, is_right
from tests.chaos.trial import judge_output
from tests.lab import Lab
from tests.pages import Page


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.parametrize("seed", [2, 3])
def test_random_faults(lab: Lab, seed: int) -> None:
    plan = schedule(seed)
    verdict = carry_out(lab, plan, storm=40)
    assert not verdict.problems, plan.told()


def test_a_seed_is_always_the_same_schedule() -> None:
    assert [schedule(seed) for seed in range(50)] == [schedule(seed) for seed in range(50)]
    assert len({schedule(seed).told() for seed in range(50)}) == 50


WHOLE = lines(1, 0, 100)
WRONG = {
    "a line is missing": lines(1, 0, 50) + lines(1, 51, 100),
    "a line comes twice": lines(1, 0, 50) + lines(1, 49, 100),
    "a line is torn": WHOLE[: 50 * LINE + 7] + WHOLE[51 * LINE :],
    "it begins late": lines(1, 1, 100),
    "it is another rank's": lines(2, 0, 100),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_wrong_output_is_noticed(data: bytes) -> None:
    assert not is_right(data, 1, has_gaps=False)


def test_output_is_judged() -> None:
    def judged(data: bytes, *, printed: int = 100, left_out: int = 0) -> str:
        right = is_right(data, 1, has_gaps=bool(left_out))
        return judge_output([Log(1, len(data), printed * LINE, left_out, right)])

    assert judged(WHOLE) == ALL
    assert judged(WHOLE, printed=99) == ALL  # the rank was killed before it could note the last one
    assert judged(WHOLE, printed=101) == BEGINNING
    assert judged(WHOLE[:-1]) == BEGINNING
    assert judged(lines(1, 0, 20) + lines(1, 60, 100), left_out=40 * LINE) == COUNTED
    assert judged(lines(1, 0, 20) + lines(1, 60, 100), left_out=39 * LINE) == "wrong"
    assert judged(lines(1, 0, 20) + lines(1, 19, 100), left_out=LINE) == "wrong"
    assert judged(WRONG["a line is torn"]) == "wrong"


def test_a_section_leaves_the_others(tmp_path: Path) -> None:
    page = Page(tmp_path / "page.md", "# Title\n", ("matrix", "schedules", "orphans"))
    page.write("orphans", "## Third\n\ntext\n")
    page.write("matrix", "## First\n\n| a |\n")
    page.write("matrix", "## First again\n")
    text = page.path.read_text()
    assert text.index("## First again") < text.index("<!-- schedules -->") < text.index("## Third")
    assert "| a |" not in text
