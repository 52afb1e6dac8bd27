"""A stand-in for a container engine: a daemon whose "containers" are processes of its own, and a client like docker.

It knows what mesh relies on: run [-d], create, start, ps [-a] [-q] with filters, stop, kill and rm -f; labels; a
start that goes on when its client is killed. Its words and states are those of Docker 20.10.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

VALUED = {"--label", "-l", "--name", "--network", "--filter", "-f", "-t", "-e"}


@contextlib.contextmanager
def engine(directory: Path, *, slow: float = 0.0) -> Iterator[Path]:
    """A running engine; yields the directory with its client ``docker``. slow: seconds that a start takes."""
    sock, place = directory / "engine.sock", directory / "engine"
    place.mkdir()
    client = place / "docker"
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} client {sock} "$@"\n')
    client.chmod(0o755)
    daemon = subprocess.Popen([sys.executable, "-I", "-S", __file__, "serve", str(sock), str(slow)])
    try:
        deadline = time.monotonic() + 10
        while not sock.exists():
            assert time.monotonic() < deadline, "the engine does not start"
            time.sleep(0.01)
        yield place
    finally:
        daemon.terminate()  # it kills its containers
        daemon.wait()


class Container:
    def __init__(self, labels: list[str], command: list[str]) -> None:
        self.name = secrets.token_hex(6)
        self.labels, self.command = labels, command
        self.lock = threading.Lock()  # held while it is being started
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> str:
        if self.process is None:
            return "created"
        return "running" if self.process.poll() is None else "exited"

    def start(self, slow: float) -> None:
        with self.lock:
            time.sleep(slow)
            # As in a container, what is not asked to end by a handler of its own does not end by SIGTERM.
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end(self, patience: float, number: int) -> None:
        with self.lock:
            process = self.process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Daemon:
    def __init__(self, sock: str, slow: float) -> None:
        self.slow = slow
        self.containers: dict[str, Container] = {}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(sock + ".new")
        self.listener.listen(64)
        os.rename(sock + ".new", sock)

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self.leave)
        while True:
            visitor, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(visitor,), daemon=True).start()

    def leave(self, number: int, frame: object) -> None:
        for container in list(self.containers.values()):
            if container.process is not None and container.process.poll() is None:
                container.process.kill()
                container.process.wait()
        os._exit(0)

    def answer(self, visitor: socket.socket) -> None:
        with visitor, contextlib.suppress(BrokenPipeError):
            with visitor.makefile("r") as file:
                words = json.loads(file.readline())
            out, status = self.do(words)
            visitor.sendall(json.dumps([out, status]).encode())

    def do(self, words: list[str]) -> tuple[str, int]:
        options, rest = parsed(words)
        flags = {word for word, value in options if value is None}
        values = [value for word, value in options if word in ("--label", "-l", "--filter", "-f") and value]
        match rest:
            case ["run" | "create" as verb, _, *command]:
                container = Container(values, command)
                self.containers[container.name] = container
                if verb == "create":
                    return container.name + "\n", 0
                container.start(self.slow)
                if "-d" in flags:
                    return container.name + "\n", 0
                assert container.process is not None
                return "", container.process.wait() & 255
            case ["ps"]:
                wanted = [value.partition("=")[2] for value in values if value.startswith("label=")]
                states = [value.partition("=")[2] for value in values if value.startswith("status=")]
                states = states or ([] if flags & {"-a", "-aq"} else ["running"])
                found = [c for c in self.containers.values() if set(wanted) <= set(c.labels)]
                return "".join(f"{c.name}\n" for c in found if not states or c.state in states), 0
            case ["start" | "stop" | "kill" | "rm" as verb, *names]:
                unknown = [name for name in names if name not in self.containers]
                for container in (self.containers[name] for name in names if name in self.containers):
                    if verb == "start":
                        container.start(self.slow)
                    elif verb == "stop":
                        container.end(float(dict(options).get("-t") or 10), signal.SIGTERM)
                    else:
                        container.end(10.0, signal.SIGKILL)
                return "", 1 if unknown else 0
        return "", 125


def parsed(words: list[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Options with their values, and the other words; what comes after an image is its command's."""
    options: list[tuple[str, str | None]] = []
    rest: list[str] = []
    while words:
        word, *words = words
        if word == "container" and not rest:
            continue
        if not word.startswith("-"):
            rest.append(word)
            if len(rest) == 2 and rest[0] in ("run", "create"):
                return options, [*rest, *words]
        elif word in VALUED or (not rest and word in ("-H", "--host", "--context", "--config")):
            value, *words = words
            options.append((word, value))
        else:
            options.append((word, None))
    return options, rest


def ask(sock: str, words: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(sock)
        except OSError:
            print("Cannot connect to the daemon. Is the daemon running?", file=sys.stderr)
            return 1
        visitor.sendall(json.dumps(words).encode() + b"\n")
        with visitor.makefile("r") as file:
            out, status = json.loads(file.read())
    sys.stdout.write(out)
    return int(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        Daemon(sys.argv[2], float(sys.argv[3])).serve()
    else:
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
