"""The state of all ranks, in a line and in several, and when silence is told."""

from __future__ import annotations

import os
import pty
import termios

import pytest

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Behind, Event, Exited, Lost, Output, Silent, Started, Stream
from mesh.core.look import Paint
from mesh.screen.enter import EnterKey
from mesh.screen.labels import Labels
from mesh.screen.status import Facts, Status

PLACEMENT = place_ranks(tuple(Host(name=f"tpu-{n}", address=f"10.0.0.{n}") for n in range(32)))


def started(*ranks: int) -> list[Event]:
    return [Started(time=0, node=rank, rank=rank, pid=1) for rank in ranks]


def wrote(*ranks: int, data: bytes = b"step 1\n") -> list[Event]:
    return [Output(time=0, node=rank, rank=rank, stream=Stream.STDOUT, data=data) for rank in ranks]


def exited(rank: int, code: int = 0) -> Event:
    return Exited(time=0, node=rank, rank=rank, code=code)


def status_of(*history: tuple[float, list[Event]]) -> Status:
    status = Status(PLACEMENT)
    for now, events in history:
        for event in events:
            status.handle(event, now)
    return status


def slow(rank: int, steps: int) -> Event:
    return Behind(time=0, node=rank, rank=rank, steps=steps, median=120, unit="step")


ALL = (0.0, started(*range(32)))
OTHERS = [rank for rank in range(32) if rank != 7]
ENDS = [exited(0), exited(1), exited(2, 3), Lost(time=0, node=31, reason="the connection ended")]

LINES = {
    "before the start there is none": ([], 5.0, ""),
    "nor in the first moment": ([ALL], 0.5, ""),
    "all are running": ([ALL], 65.0 - 40, "32 ranks running, 0:25"),
    "some have ended": ([ALL, (2.0, ENDS)], 3.0, "28 ranks running, 2 done, 1 failed, 1 lost, 0:03"),
    "one is quiet": (
        [ALL, (5.0, wrote(7)), (70.0, wrote(*OTHERS))],
        70.0,
        "32 ranks running, rank 7 quiet for 65 s, 1:10",
    ),
    "most are, as only rank 0 writes": ([ALL, (70.0, wrote(0))], 70.0, "32 ranks running, 1:10"),
    "all are quiet": ([ALL, (5.0, wrote(7))], 70.0, "32 ranks running, no output for 65 s, 1:10"),
    "a host is silent": (
        [ALL, (35.0, [*wrote(*range(32)), Silent(time=0, node=3, seconds=15.0)])],
        40.0,
        "31 ranks running, rank 3 silent 20 s (tpu-3), 0:40",
    ),
    "it is back": (
        [ALL, (35.0, [*wrote(*range(32)), *(Silent(time=0, node=3, seconds=seconds) for seconds in (15.0, 0.0))])],
        40.0,
        "32 ranks running, 0:40",
    ),
    "it is lost": (
        [ALL, (35.0, [*wrote(*OTHERS), Silent(time=0, node=7, seconds=15.0), Lost(time=0, node=7, reason="silent")])],
        40.0,
        "31 ranks running, 1 lost, 0:40",
    ),
    "a rank is behind": (
        [ALL, (35.0, [*wrote(*range(32)), slow(7, 3)])],
        40.0,
        "32 ranks running, rank 7 is 3 steps behind (median 120), 0:40",
    ),
    "several are": (
        [ALL, (35.0, [*wrote(*range(32)), slow(7, 3), slow(9, 5), slow(8, 2), slow(8, 0)])],
        40.0,
        "32 ranks running, ranks 7,9 are 3..5 steps behind (median 120), 0:40",
    ),
    "none is left": ([ALL, (1.0, [exited(rank) for rank in range(32)])], 5.0, ""),
}


@pytest.mark.parametrize(("history", "now", "expected"), LINES.values(), ids=LINES)
def test_the_line(history: list[tuple[float, list[Event]]], now: float, expected: str) -> None:
    assert status_of(*history).line(now) == expected


def test_a_silent_host_is_yellow_with_the_time_when_it_is_lost_and_has_a_line_of_its_own() -> None:
    status = Status(PLACEMENT, Facts(host_grace=25.0), Paint(True))
    for event in [*started(*range(32)), *wrote(*range(32)), *ENDS, Silent(time=0, node=3, seconds=15.0)]:
        status.handle(event, 20.0)
    yellow = "\x1b[33mrank 3 silent 20 s (tpu-3; lost at 25 s)\x1b[0m"
    ended = "\x1b[32m2 done\x1b[0m, \x1b[31m1 failed\x1b[0m, \x1b[31m1 lost\x1b[0m"
    assert status.line(25.0) == f"27 ranks running, {ended}, {yellow}, 0:05"
    assert "rank 3 20 s (tpu-3; lost at 25 s)" in [line.replace("silent ", "") for line in status.report(25.0)]


def test_when_all_are_quiet_for_five_minutes_their_stacks_are_offered() -> None:
    status, setup = Status(PLACEMENT, Facts(run="20261121-10")), status_of(ALL, (10.0, wrote(*range(32))))
    for event in [*started(*range(32)), *wrote(7)]:
        status.handle(event, 10.0)
    offer = "(`mesh stacks 20261121-10` shows where they are)"
    assert [status.line(309.0), status.silence(309.0)] == [
        "32 ranks running, no output for 299 s, 4:59",
        "no output for 299 s: 32 ranks running",
    ]
    assert [status.line(310.0), status.silence(310.0)] == [
        f"32 ranks running, no output for 300 s {offer}, 5:00",
        f"no output for 300 s: 32 ranks running {offer}",
    ]
    assert "stacks" not in setup.line(400.0) + setup.silence(400.0)
    status.handle(wrote(3)[0], 310.0)  # one that goes on is no hang
    assert "stacks" not in status.line(311.0) + status.silence(311.0)


def test_the_state_of_every_rank() -> None:
    status = status_of(
        (0.0, started(*range(31))),
        (1.0, wrote(7, data=b"\r 10%|#  |\r 20%|## |\x1b[2J")),
        (2.0, ENDS),
        (60.0, wrote(*range(3, 7), *range(8, 20))),
        (63.0, wrote(20)),
    )
    assert status.report(66.0) == [
        "ranks 0-1 done",
        "rank 2 failed: exit 3",
        "ranks 3-6,8-20 running, last output 3..6 s ago",
        'rank 7 quiet for 65 s: "20%|## |"',
        "ranks 21-30 quiet for 66 s",
        "rank 31 lost: the connection ended",
    ]
    assert status_of().report(1.0) == ["no rank has started yet"]
    assert status_of((0.0, started(0))).report(5.0)[:1] == ["rank 0 running, no output for 5 s"]


def test_a_report_is_no_longer_than_a_screen() -> None:
    status = status_of(ALL, *((1.0, wrote(rank, data=b"x%d\n" % rank)) for rank in range(32)))
    lines = status.report(100.0)
    assert len(lines) == 20
    assert lines[-1] == "and 13 lines more"


SILENCES = {
    "not yet": ([ALL, (10.0, wrote(0))], 69.0, ""),
    "a minute": ([ALL, (10.0, wrote(*range(32)))], 70.0, "no output for 60 s: 32 ranks running"),
    "one was quiet before": (
        [ALL, (10.0, wrote(*range(32))), (100.0, [*wrote(*OTHERS), exited(0)])],
        160.0,
        "no output for 60 s: 31 ranks running, 1 done, rank 7 for 150 s",
    ),
    "nobody is left": ([ALL, (10.0, [exited(rank) for rank in range(32)])], 200.0, ""),
}


@pytest.mark.parametrize(("history", "now", "expected"), SILENCES.values(), ids=SILENCES)
def test_silence(history: list[tuple[float, list[Event]]], now: float, expected: str) -> None:
    assert status_of(*history).silence(now) == expected


# ---- Enter


def test_enter_is_noticed_and_the_terminal_stays_as_it_is() -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        # In a session of its own, where this terminal controls us.
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(os.open(os.ttyname(theirs), os.O_RDWR))
            key = EnterKey(theirs)
            found = [key.typed()]
            os.write(ours, b"half a line")
            found.append(key.typed())
            os.write(ours, b"\n\n")
            found += [key.typed(), key.typed()]
            os._exit(0 if found == [[], [], [b"half a line\n", b"\n"], []] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_where_there_is_no_terminal_nothing_is_ever_pressed() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"\n")
    key = EnterKey(read_end)
    assert key.typed() == EnterKey(-1).typed() == []
    assert os.read(read_end, 10) == b"\n"
    os.close(read_end)
    os.close(write_end)


# ---- labels


def test_a_label_has_one_hue_and_one_rank_never_that_of_the_others() -> None:
    labels, on = Labels(PLACEMENT, with_hosts=False), Paint(True)
    one, again = labels.of_rank(3, on), labels.of_set(1 << 3, is_short=True, paint=on)
    assert one.replace(b"03", b"3") == again == labels.of_set(1 << 3, is_short=True, paint=on)
    hues = {labels.of_set(1 << rank, is_short=True, paint=on)[:5] for rank in range(32)}
    others = {labels.of_set((1 << 32) - 1 - (1 << rank), is_short=True, paint=on)[:5] for rank in range(32)}
    assert len(hues) == 4
    assert not hues & others


def test_labels() -> None:
    plain, with_hosts = Labels(PLACEMENT, with_hosts=False), Labels(PLACEMENT, with_hosts=True)
    some = sum(1 << rank for rank in (*range(7), *range(8, 32)))
    odd = sum(1 << rank for rank in range(1, 32, 2))
    assert plain.of_rank(3) == b"[03] "
    assert plain.of_set(some, is_short=True) == b"[0-6,8-31] "
    assert plain.of_set(odd, is_short=True) == b"[1,3,5,7,9,11,13,..: 16 ranks] "
    assert plain.of_set(odd, is_short=False) == b"[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31] "
    assert with_hosts.of_rank(3) == b"[tpu-3:03] "
    assert with_hosts.of_set(some, is_short=True) == b"[tpu-[0-6,8-31]:0-6,8-31] "
    assert with_hosts.of_host(3) == b"[tpu-3] "
