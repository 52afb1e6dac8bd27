"""Nodes for the tests of programs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy

from mesh.program import Handle, here, stop, stop_reason, wait_for_stop


class Strange(Exception):
    """Its constructor takes two arguments, and it cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


class Server:
    """Serves, and can end in many ways."""

    hung, changing = 0, threading.Lock()

    def where(self) -> tuple[str, str, int, int]:
        place = here()
        return place.label, place.host, place.attempt, os.getpid()

    def echo(self, value: object) -> object:
        return value

    def add(self, one: numpy.ndarray, other: float) -> numpy.ndarray:
        return one + other

    def count(self, limit: int) -> Iterator[int]:
        yield from range(limit)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def fail(self) -> None:
        raise Strange(1, 2)

    def hang(self) -> None:
        with self.changing:
            self.hung = self.hanging() + 1
        threading.Event().wait()

    def hanging(self) -> int:
        """Return how many calls hang here."""
        return self.hung

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_first(self, path: str) -> int:
        """End the process of the first attempt, and return the number of calls that have begun."""
        with open(path, "a") as file:
            file.write("x")
        if here().attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.path.getsize(path)

    def leave(self, status: int) -> None:
        os._exit(status)

    def stop_all(self, code: int) -> None:
        threading.Thread(target=stop, args=(code, "asked to"), daemon=True).start()

    def ports(self) -> int:
        """Return the port at which other hosts call this node."""
        number = json.loads(os.environ["MESH_NODE_SOCKETS"])["tcp"]
        with socket.socket(fileno=os.dup(number)) as own:
            return int(own.getsockname()[1])

    def visible(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def environ(self, name: str) -> str:
        return os.environ.get(name, "")


class Killer:
    """Kills another node several times, with calls to it in flight, and prints each error and the attempt."""

    def __init__(self, server: Handle[Server], deaths: int) -> None:
        self.server, self.deaths = server, deaths

    def run(self) -> None:
        for _ in range(self.deaths):
            attempt = self.server.options(retries=200, timeout=60.0).where()[2]  # type: ignore[index]
            pending = [self.server.futures.hang() for _ in range(2)]
            errors = [self.server.futures.kill(), *pending]
            texts = [str(error.exception(60)) for error in errors]  # type: ignore[attr-defined]
            print(json.dumps([*texts, attempt]), flush=True)
        wait_for_stop()


class Caller:
    """Calls another node until that is lost, and keeps the error."""

    def __init__(self, other: Handle[Server]) -> None:
        self.other = other

    def hang_there(self) -> None:
        self.other.hang()

    def where_there(self) -> object:
        return self.other.where()


class Forker:
    """Forks processes that call another node, and goes on itself."""

    def __init__(self, other: Handle[Server]) -> None:
        self.other = other

    def errors_of_child(self) -> list[str]:
        """Return the errors of a forked process: of a call, of the stop, and of a call that is in flight."""
        assert self.other.echo(1) == 1
        pending = self.other.futures.hang()
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def work() -> None:
            for act in (lambda: self.other.echo(2), stop, lambda: pending.result(60)):  # type: ignore[attr-defined]
                try:
                    act()
                except Exception as error:
                    answers.put(f"{type(error).__name__}: {error}")

        child = context.Process(target=work)
        child.start()
        found = [answers.get() for _ in range(3)]
        child.join()
        assert not pending.done()  # type: ignore[attr-defined]
        pending.cancel()  # type: ignore[attr-defined]
        return found

    def terminated(self) -> set[int | None]:
        """Return the exit codes of forked processes that are asked to end at once."""
        codes = set()
        for _ in range(50):
            child = multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(60.0,))
            child.start()
            child.terminate()
            child.join()
            codes.add(child.exitcode)
        return codes

    def other_program(self) -> int:
        return subprocess.run([sys.executable, "-c", "pass"], check=False).returncode

    def call(self, value: object) -> object:
        return self.other.echo(value)


class Learner:
    """Calls a group, and stops the program."""

    def __init__(self, servers: list[Handle[Server]]) -> None:
        self.servers = servers

    def run(self) -> list[object]:
        found = [server.where() for server in self.servers]
        array = numpy.arange(200_000.0)
        assert (self.servers[0].methods.add(array, 1.0) == array + 1).all()
        stop(why="learned")
        return found


class Twin:
    """Calls its twin, which calls back: with one call at a time, both wait."""

    def call(self, other: Handle[Twin], own: Handle[Twin]) -> object:
        return other.options(timeout=60.0).answer(own)

    def answer(self, own: Handle[Twin]) -> object:
        return own.options(timeout=0.5).name()

    def name(self) -> str:
        return here().label


class Greedy(Server):
    """Takes more memory than its control group has."""

    def eat(self, group: str) -> int:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        return len(bytearray(400 << 20))


class Leaver:
    """Ends its process in its constructor."""

    def __init__(self, status: int) -> None:
        raise SystemExit(status)


def has_size(size: int) -> bytes:
    return os.urandom(size)


class Log:
    """Is on the client."""

    def __init__(self, place: object = None) -> None:
        self.lines: list[object] = []

    def write(self, value: object) -> int:
        self.lines.append(value)
        return len(self.lines)

    def add(self, one: numpy.ndarray, other: float) -> numpy.ndarray:
        return one + other

    def count(self, limit: int) -> Iterator[int]:
        yield from range(limit)

    def read(self) -> list[object]:
        return self.lines

    def fail(self) -> None:
        raise Strange(1, 2)


class Writer:
    """Calls the node on the client, from its constructor on."""

    def __init__(self, log: Handle[Log]) -> None:
        self.log = log
        self.found = log.write(here().label)

    def write(self, value: object) -> object:
        return self.log.write(value)

    def use(self) -> object:
        array = numpy.arange(300_000.0)
        assert (self.log.methods.add(array, 1.0) == array + 1).all()
        try:
            self.log.fail()
        except Strange as error:
            return list(self.log.stream.count(40)), str(error)
        return None

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Conductor:
    """Runs on the client, and calls nodes on hosts."""

    def __init__(self, writers: list[Handle[Writer]]) -> None:
        self.writers = writers

    def run(self) -> object:
        return [writer.write("conducted") for writer in self.writers], os.getpid(), here().host


class Late:
    """Is ready late, and leaves a file then."""

    def __init__(self, path: str) -> None:
        threading.Event().wait(1)
        with open(path, "w") as file:
            file.write("ready")


class Reader:
    """Needs the file at its start."""

    def __init__(self, path: str) -> None:
        with open(path) as file:
            self.text = file.read()

    def read(self) -> str:
        return self.text


def waits() -> str:
    wait_for_stop()
    return stop_reason()


def returns(value: int) -> tuple[int, str]:
    return value, here().host


def raises() -> None:
    raise Strange(3, 4)


def exits(status: int) -> None:
    raise SystemExit(status)


def stops_later(server: Handle[Server], path: str) -> None:
    """Stop the program with status 6, once a file is there; after 10 min in any case."""
    end = time.monotonic() + 600
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.05)
    assert server.echo(1) == 1
    stop(6)
