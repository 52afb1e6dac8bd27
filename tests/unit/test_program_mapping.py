"""``map``, the executor and mailboxes, in threads of the test."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator

import pytest

from mesh.core.errors import UsageError
from mesh.program import Handle, ItemFailed, MailboxHandle, NodeLost, Program, executor, here
from mesh.program import map as map_items
from mesh.program.runtime.calls import BYTES_LIMIT
from mesh.program.runtime.mailbox import Relay
from tests.conftest import PATIENCE
from tests.lab import eventually

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def doubled(value: int) -> tuple[int, str]:
    return 2 * value, here().label


def picky(value: int) -> int:
    if value == 5:
        raise KeyError("five")
    return value


def first_waits(value: int) -> int:
    """Wait, with the first item, until another one has come."""
    assert value or SECOND.wait(PATIENCE)
    return value


SECOND = threading.Event()


def test_values_come_in_order_and_from_all_workers() -> None:
    found = list(map_items(doubled, range(200), where="threads", nproc=4))
    assert [value for value, _ in found] == [2 * value for value in range(200)]
    assert {label for _, label in found} == {f"worker/{index}" for index in range(4)}
    assert list(map_items(doubled, [], where="threads")) == []


def test_values_as_they_come() -> None:
    SECOND.clear()
    values = map_items(first_waits, range(8), where="threads", nproc=2, ordered=False)
    first = next(values)
    assert first != 0
    SECOND.set()
    assert sorted([first, *values]) == list(range(8))


def test_a_failed_item_is_named_by_its_index() -> None:
    with pytest.raises(ItemFailed, match=r"item 5: .*five") as caught:
        list(map_items(picky, range(8), where="threads", nproc=2))
    assert caught.value.index == 5
    assert isinstance(caught.value.__cause__, KeyError)


def test_items_are_taken_as_workers_need_them() -> None:
    taken = []

    def items() -> Iterator[int]:
        for value in range(1000):
            taken.append(value)
            yield value

    results = map_items(doubled, items(), where="threads", nproc=2)
    assert next(results)[0] == 0
    results.close()  # type: ignore[attr-defined]
    assert len(taken) <= 5


def test_an_executor() -> None:
    with executor(where="threads", nproc=3) as workers:
        futures = [workers.submit(doubled, value=value) for value in range(20)]
        assert [future.result(PATIENCE)[0] for future in futures] == [2 * value for value in range(20)]
        assert list(workers.map(picky, [1, 2])) == [1, 2]
        assert isinstance(workers.submit(picky, 5).exception(PATIENCE), KeyError)
    with pytest.raises(RuntimeError, match="shut down"):
        workers.submit(picky, 1)
    with pytest.raises(UsageError, match="nproc=0"):
        executor(where="threads", nproc=0)


def blocks() -> None:
    BLOCK.wait(PATIENCE)


BLOCK = threading.Event()


def test_an_executor_cancels_calls_that_wait() -> None:
    BLOCK.clear()
    workers = executor(where="threads")
    futures = [workers.submit(blocks) for _ in range(5)]
    deadline = time.monotonic() + PATIENCE
    while not futures[1].running():  # the two that a worker has at the same time
        assert time.monotonic() < deadline
        time.sleep(0.001)

    def go_on() -> None:
        """Let the two end, once the others are cancelled."""
        end = time.monotonic() + PATIENCE
        while not all(future.cancelled() for future in futures[2:]) and time.monotonic() < end:
            time.sleep(0.001)
        BLOCK.set()

    threading.Thread(target=go_on).start()
    workers.shutdown(cancel_futures=True)
    assert [future.cancelled() for future in futures[2:]] == [True] * 3
    assert [future.exception() for future in futures[:2]] == [None, None]


def size_of(data: bytes) -> int:
    return len(data)


def test_two_calls_that_wait_and_are_more_than_the_credits_of_a_worker() -> None:
    BLOCK.clear()
    large = bytes(BYTES_LIMIT * 2 // 3)
    with executor(where="threads") as workers:
        first = [workers.submit(blocks) for _ in range(2)]
        sizes = [workers.submit(size_of, large) for _ in range(2)]
        BLOCK.set()
        assert [one.result(PATIENCE) for one in first + sizes] == [None, None, len(large), len(large)]


def lost(value: int) -> int:
    raise NodeLost("other", "", "it has ended")


def test_a_loss_that_the_function_reports_is_not_that_of_its_worker() -> None:
    with executor(where="threads") as workers:
        assert isinstance(workers.submit(lost, 1).exception(PATIENCE), NodeLost)
        assert workers.submit(picky, 1).result(PATIENCE) == 1


# ---- mailboxes


class Sender:
    """Puts values into a mailbox."""

    def __init__(self, mailbox: MailboxHandle) -> None:
        self.mailbox = mailbox

    def send(self, *values: object) -> None:
        for value in values:
            self.mailbox.put(value)

    def read(self) -> object:
        return self.mailbox.get(PATIENCE)


def test_a_queue_gives_each_value_to_one_reader() -> None:
    program = Program("queue")
    mailbox = program.mailbox("box", size=2)
    sender = program.add(Sender, mailbox)
    assert isinstance(sender, Handle)
    with program.launch("threads"):
        sending = sender.futures.send(1, 2, 3, 4)
        assert eventually(lambda: mailbox.items() == [1, 2])
        concurrent.futures.wait([sending], timeout=0.1)
        assert not sending.done()  # the queue is full
        assert mailbox.items() == [1, 2]
        assert [mailbox.get(PATIENCE) for _ in range(4)] == [1, 2, 3, 4]
        sending.result(PATIENCE)
        with pytest.raises(TimeoutError, match=r"box: no value within 0.01 s"):
            mailbox.get(0.01)
        waiting = sender.futures.read()
        mailbox.put("from the client")
        assert waiting.result(PATIENCE) == "from the client"


def test_the_latest_value_and_the_latest_of_each_sender() -> None:
    program = Program("latest")
    latest, senders = program.mailbox("one", "latest"), program.mailbox("each", "latest_by_sender")
    groups = [program.add(Sender, box, count=2, label=name) for name, box in (("a", latest), ("b", senders))]
    with program.launch("threads"):
        for group in groups:
            group.each.send(["x", "y"])
            group[0].send(1, 2)
        assert latest.get(PATIENCE) == 2
        with pytest.raises(TimeoutError):
            latest.get(0)
        assert groups[0][1].read() == 2  # another reader
        assert senders.get(PATIENCE) == {"b/0": 2, "b/1": "y"}
        groups[1][1].send("z")
        assert senders.get(PATIENCE) == {"b/1": "z"}
        assert senders.items() == {"b/0": 2, "b/1": "z"}


def test_a_tree_combines_on_each_host() -> None:
    program = Program("tree")
    mailbox = program.mailbox("sums", on="a,b", spread="tree", combine="sum")
    senders = program.add(Sender, mailbox, on="a,b", per_host=2)
    assert [node.what is Relay for node in program.nodes].count(True) == 1
    with program.launch("threads"):
        senders.send(1, 10, 100)
        total = 0
        while total < 4 * 111:
            total += mailbox.get(PATIENCE)  # type: ignore[operator]
        assert total == 4 * 111
        assert mailbox.items() == []


def test_every_host_has_a_copy() -> None:
    program = Program("copies")
    mailbox = program.mailbox("state", "latest", on="a,b", spread="all")
    senders = program.add(Sender, mailbox, on="a,b", per_host=1)
    with program.launch("threads"):
        senders[0].send("news")
        assert senders.read() == ["news", "news"]


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "stack"}, {"spread": "ring"}, {"spread": "all"}, {"combine": "mean"}, {"spread": "tree"}],
    ids=str,
)
def test_mailboxes_that_do_not_exist(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Program("wrong").mailbox("box", **wrong)  # type: ignore[arg-type]


def test_a_mailbox_after_the_end() -> None:
    program = Program("ended")
    mailbox = program.mailbox("box")
    with program.launch("threads"):
        mailbox.put(1)
    with pytest.raises((RuntimeError, NodeLost)):
        mailbox.get(0)
