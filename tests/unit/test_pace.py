"""Ranks that are behind by the steps that they print, replayed without a clock."""

from __future__ import annotations

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Behind, Exited, Output, Stream
from mesh.engine.pace import AGAIN_S, BEHIND_S, Pace

PLACEMENT = place_ranks(tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(4)))


class Replay:
    """A pace whose clock is moved by hand."""

    def __init__(self) -> None:
        self.pace = Pace(PLACEMENT)

    def prints(self, rank: int, text: str, stream: Stream = Stream.STDOUT) -> None:
        self.pace.note(Output(time=0, node=rank, rank=rank, stream=stream, data=text.encode()))

    def found(self, *times: float) -> list[tuple[int, int, int]]:
        """Rank, steps and median of the events at these times."""
        events: list[Behind] = [event for now in times for event in self.pace.look(now, now)]
        return [(event.rank, event.steps, event.median) for event in events]


def behind() -> Replay:
    """Rank 3 is three steps behind since second 10."""
    replay = Replay()
    for rank in range(4):
        replay.prints(rank, f"step {117 if rank == 3 else 120}/1000 loss 2.31\n")
    assert replay.found(10.0, 10.0 + BEHIND_S - 0.5) == []
    return replay


def test_a_rank_that_stays_behind_is_named_once_and_again_when_it_is_not() -> None:
    replay = behind()
    assert replay.found(10.0 + BEHIND_S, 20.0, 10.0 + BEHIND_S + AGAIN_S) == [(3, 3, 120)]
    replay.prints(3, "step 119 loss 2.30\n")
    assert replay.found(60.0, 61.0) == [(3, 0, 120)]


def test_twice_as_many_steps_are_named_at_once_and_others_after_a_while() -> None:
    replay = behind()
    assert replay.found(14.0) == [(3, 3, 120)]
    for rank in range(3):
        replay.prints(rank, "step 121 loss 2.3\n")
    assert replay.found(15.0) == []
    assert replay.found(14.0 + AGAIN_S) == [(3, 4, 121)]
    for rank in range(3):
        replay.prints(rank, "step 125 loss 2.3\n")
    assert replay.found(14.0 + AGAIN_S + 1) == [(3, 8, 125)]


def test_a_rank_that_has_ended_is_not_behind() -> None:
    replay = behind()
    replay.pace.note(Exited(time=0, node=3, rank=3, code=0))
    assert replay.found(14.0, 40.0) == []


def test_a_step_between_two_chunks_counts_once_it_is_complete() -> None:
    replay = behind()
    replay.prints(3, "step 12")
    assert replay.found(14.0) == [(3, 3, 120)]
    replay.prints(3, "0 loss 2.3\n")
    assert replay.found(15.0) == [(3, 0, 120)]


def test_where_half_of_the_ranks_or_more_are_behind_none_is() -> None:
    replay = Replay()
    for rank in range(4):
        replay.prints(rank, f"epoch {rank}: done\n")
    replay.prints(0, "epoch 3: done\n")
    replay.prints(2, "epoch 1: done\n")
    assert replay.found(1.0, 10.0) == [(1, 2, 3), (2, 2, 3)]
    replay.prints(3, "epoch 1: done\n")
    assert replay.found(20.0) == [(1, 0, 1), (2, 0, 1)]


def test_output_of_prerun_and_lines_without_steps_count_for_nothing() -> None:
    replay = Replay()
    for rank in range(4):
        replay.prints(rank, f"step {rank}00 of prerun\n", Stream.PRERUN)
        replay.prints(rank, f"steps/s 3.{rank} step_time {rank}\n")
    assert replay.found(1.0, 10.0) == []
