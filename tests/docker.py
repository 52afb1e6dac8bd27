"""A stand-in for docker: a daemon whose containers are its own children, and the program that talks to it.

    python -m tests.docker SOCKET              the daemon
    python -m tests.docker SOCKET docker ...   the program: run [-d], create, start, ps, stop, kill as docker has them

What matters of docker is here: a container is no descendant of whoever runs it, ``run`` without -d waits for it and
hands signals on, labels select, stop is SIGTERM and then SIGKILL, and a start goes on when its client is killed: until
it is over, the container is "created", and stop waits for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Daemon:
    """Its containers, by id."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[subprocess.Popen[bytes], list[str]]] = {}
        self.created: dict[str, tuple[list[str], list[str]]] = {}
        self.lock = threading.Lock()
        self.starting: dict[str, threading.Lock] = {}
        self.slow = 0.0  # seconds that a start takes

    def answer(self, request: dict[str, Any]) -> Any:
        if request["do"] == "slow":
            self.slow = request["seconds"]
            return None
        if request["do"] == "starting":
            return [name for name, lock in list(self.starting.items()) if lock.locked()]
        if request["do"] in ("start", "stop"):
            with self.starting[request["name"]]:
                if request["do"] == "start":
                    time.sleep(self.slow)
                    return self.act(request)
                if request["name"] not in self.running:
                    return None
        return self.act(request)

    def act(self, request: dict[str, Any]) -> Any:
        with self.lock:
            if request["do"] == "create":
                name = f"c{len(self.created):011d}"
                self.created[name] = request["argv"], request["labels"]
                self.starting[name] = threading.Lock()
                return name
            if request["do"] == "start":
                argv, labels = self.created[request["name"]]
                child = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL)
                self.running[request["name"]] = child, labels
                return child.pid
            if request["do"] == "ps":
                wanted = set(request["labels"])
                if "status=created" in wanted:
                    waiting = self.created.keys() - self.running.keys()
                    return [name for name in waiting if wanted - {"status=created"} <= set(self.created[name][1])]
                return [
                    n for n, (child, labels) in self.running.items() if child.poll() is None and wanted <= set(labels)
                ]
        child, _ = self.running[request["name"]]
        if request["do"] == "signal":
            child.send_signal(request["number"])
        elif request["do"] == "stop":
            child.terminate()
            try:
                child.wait(request["seconds"])
            except subprocess.TimeoutExpired:
                pass
            kill(child)
        return child.wait() if request["do"] in ("wait", "stop") else None


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a container with all its processes, as the engine does."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # all have ended
        pass


def serve(path: str) -> None:
    daemon = Daemon()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(daemon.answer(json.loads(self.rfile.readline()))).encode())

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(path, Handler) as server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            server.serve_forever()
        finally:
            for child, _ in daemon.running.values():
                kill(child)
                child.wait()


def ask(path: str, **request: object) -> Any:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(json.dumps(request).encode() + b"\n")
        sock.shutdown(socket.SHUT_WR)
        return json.loads(b"".join(iter(lambda: sock.recv(65536), b"")))


def program(path: str, words: list[str]) -> int:
    while words and words[0].startswith("-"):  # docker's own options; these take a value
        words = words[2:] if words[0] in ("--context", "-H") else words[1:]
    if words[:1] == ["container"]:
        words = words[1:]
    command, *rest = words
    labels, detached, seconds = [], False, 10.0
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word.startswith("--label="):
            labels.append(word.partition("=")[2])
        elif word in ("--label", "--filter", "-t", "--name"):
            value = rest.pop(0)
            labels += [value.removeprefix("label=")] if word in ("--label", "--filter") else []
            seconds = float(value) if word == "-t" else seconds
        detached = detached or word == "-d"
    if command == "ps":
        print("\n".join(ask(path, do="ps", labels=labels)))
    elif command == "stop":
        for name in rest:
            ask(path, do="stop", name=name, seconds=seconds)
    elif command in ("kill", "rm"):
        for name in rest:
            ask(path, do="signal", name=name, number=signal.SIGKILL)
    elif command == "create":
        print(ask(path, do="create", argv=rest[1:], labels=labels))
    elif command == "start":
        ask(path, do="start", name=rest[0])
    elif command == "run":
        name = ask(path, do="create", argv=rest[1:], labels=labels)  # rest[0] is the image
        ask(path, do="start", name=name)
        if not detached:
            signal.signal(signal.SIGTERM, lambda number, _: ask(path, do="signal", name=name, number=number))
            return int(ask(path, do="wait", name=name)) & 0xFF
        print(name)
    else:
        print(json.dumps(words))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(program(sys.argv[1], sys.argv[3:]))


def install(directory: Path, sock: Path, name: str = "docker") -> None:
    """Put the program into a directory of PATH."""
    repository = Path(__file__).parent.parent
    script = f'#!/bin/sh\ncd {repository} && exec {sys.executable} -S -E -m tests.docker {sock} docker "$@"\n'
    (directory / name).write_text(script)
    (directory / name).chmod(0o755)
