"""What a rank does while something dies. It travels to the test hosts as the workspace: python3 -S rank.py BEHAVIOURS

BEHAVIOURS: one for each rank, by commas, or one for all; "a+b" does both. Once it does so there is /tmp/up-RANK. A file
/tmp/finish lets it end with 0, /tmp/fail-RANK with 7. /tmp/wrote-RANK says how many lines it has printed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

LINE = 64  # bytes
ATOMIC = 4096  # bytes that a pipe takes whole or not at all (PIPE_BUF), so that no line is torn by us
TICK = 0.1  # seconds
FAST = 25 * ATOMIC // LINE  # lines in a tick, when it prints fast: 1 MB/s
STORM = int(os.environ.get("STORM", "200"))
DEVICE = "/tmp/device"


def lines(rank: int, begin: int, end: int) -> bytes:
    """The lines of a rank from one number to before another one. Anybody can tell what they must be."""
    return b"".join(b"%02d %09d %s\n" % (rank, number, b"." * (LINE - 14)) for number in range(begin, end))


def escape(*, deaf: bool, closed: bool, bare: bool) -> None:
    """Fork twice with setsid in between, and sleep there.

    deaf: ignore what asks it to end; closed: close stdin, stdout and stderr; bare: clear the environment
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if deaf:
        ignore_all()
    if closed:
        for number in range(3):
            os.close(number)
    if bare:
        os.execve("/bin/sleep", ["sleep", "5000"], {})
    time.sleep(5000)
    os._exit(0)


def ignore_all() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def fork_again(number: int, frame: object) -> None:
    """Told to end: hand over to a child that will not listen."""
    if os.fork():
        os._exit(0)
    ignore_all()


def storm() -> None:
    for _ in range(STORM):
        if not os.fork():
            signal.signal(signal.SIGTERM, fork_again)
            while True:
                signal.pause()


def hold() -> None:
    """Keep a device (an ordinary file) open, in a child that closes nothing and listens to nobody."""
    if not os.fork():
        ignore_all()
        device = os.open(DEVICE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(device, fcntl.LOCK_EX)
        time.sleep(5000)
        os._exit(0)


def main() -> None:
    rank = int(os.environ["RANK"])
    listed = sys.argv[1].split(",")
    behaviours = set(listed[rank % len(listed)].split("+"))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    count = os.open(f"/tmp/wrote-{rank}", os.O_WRONLY | os.O_CREAT)
    if "ignore-term" in behaviours:
        ignore_all()
    if "double-fork" in behaviours:
        escape(deaf=False, closed=True, bare=False)
        escape(deaf=True, closed=False, bare=False)
    if "bare" in behaviours:
        escape(deaf=True, closed=False, bare=True)
    if "storm" in behaviours:
        storm()
    if "device" in behaviours:
        hold()
    rate = 0 if "sleep" in behaviours or "nothing" in behaviours else FAST if "fast" in behaviours else 1
    printed = 0

    def say(number: int) -> None:
        nonlocal printed
        data = lines(rank, printed, printed + number)
        for place in range(0, len(data), ATOMIC):
            piece = data[place : place + ATOMIC]
            os.write(1, piece)
            printed += len(piece) // LINE
            os.pwrite(count, b"%012d" % printed, 0)

    spoken = int("nothing" not in behaviours)
    say(spoken)
    os.close(os.open(f"/tmp/up-{rank}", os.O_CREAT | os.O_WRONLY))
    while not os.path.exists("/tmp/finish"):
        if os.path.exists(f"/tmp/fail-{rank}"):
            os._exit(7)
        say(rate)
        time.sleep(TICK)
    say(spoken)
    os._exit(0)


if __name__ == "__main__":
    main()
