"""The rule for passwords: what a host must run to have the one of its user."""

from __future__ import annotations

import pytest

from mesh.core.run import SetupCommand
from mesh.protocol.frames import FrameError
from mesh.remote.sudo import SudoSteps

COMMANDS = [SetupCommand(run="first"), SetupCommand(run="second", sudo=True), SetupCommand(run="third", sudo=True)]


def steps(*begun: int) -> SudoSteps:
    made = SudoSteps([command.sudo for command in COMMANDS])
    for number in begun:
        made.begin(number)
    return made


def test_one_answer_for_each_command_with_sudo() -> None:
    made = steps(0)
    for number in (1, 2):
        made.begin(number)
        assert made.ask() == number
        assert made.may_have(number)
        assert not made.may_have(number)
        with pytest.raises(FrameError):
            made.ask()


@pytest.mark.parametrize("begun", [(), (0,)])
def test_no_question_without_sudo(begun: tuple[int, ...]) -> None:
    with pytest.raises(FrameError):
        steps(*begun).ask()


def test_no_question_where_no_setup_runs() -> None:
    for question in (SudoSteps().ask, SudoSteps().expect_question):
        with pytest.raises(FrameError):
            question()


def test_no_answer_after_the_command_that_asked() -> None:
    made = steps(0, 1)
    made.ask()
    made.begin(2)
    assert not made.may_have(1)
    assert not made.may_have(2)


def test_nothing_after_the_end() -> None:
    made = steps(0, 1)
    made.ask()
    made.end()
    assert not made.may_have(1)
    with pytest.raises(FrameError):
        made.ask()
    with pytest.raises(FrameError):
        made.expect_question()


@pytest.mark.parametrize("number", [0, 2, 3, -1])
def test_commands_begin_in_order(number: int) -> None:
    made = steps(0)
    with pytest.raises(FrameError):
        made.begin(number)


def test_no_command_beyond_the_last() -> None:
    with pytest.raises(FrameError):
        steps(0, 1, 2).begin(3)


def test_the_user_is_asked_early_only_where_a_later_command_has_sudo() -> None:
    steps().expect_question()
    steps(0, 1).expect_question()
    with pytest.raises(FrameError):
        steps(0, 1, 2).expect_question()
