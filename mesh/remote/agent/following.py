"""A client comes to a run that goes on by itself, or has ended: a process of its own reads the run's tape to it.

The run's agent is asked for nothing but to be woken and to pass orders on, so that there may be any number of clients,
each with its own place, as slow as it likes. When the agent is gone, the tape is what is left of the run.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time

from .doors import door_of, end_rest, knock
from .frames import Decoder, FrameError
from .messages import order, request
from .outbox import Outbox
from .playback import Nothing, Playback
from .state import boot_id, machine_id, places_of
from .tape import ABOUT, FACTS, FETCHED, tape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .frames import Frame

LAST = 5.0  # seconds for the client to take the last words
SILENT = 900.0  # seconds without a beat after which there is no client at the other end of a connection that is dead


def follow(request: dict[str, Any], decoder: Decoder, rest: list[Frame]) -> None:
    """Serve one client until it leaves or has everything.

    request: "run", "node", "remote_dir"; "client": the same through all channels of a client; "have": bytes of each
    stream that it has; "place": bytes that have come to it through earlier channels; "only_reads": end nothing here;
    "only_end": the client does not want the output, which stays to be fetched
    """
    _Following(request, decoder).serve(rest)


def _place_of(request: dict[str, Any]) -> str:
    """Return the remote_dir that has the run's tape: the one in /tmp if the run found its HOME read-only."""
    places = places_of(request["remote_dir"])
    return next((p for p in places if os.path.isdir(tape_of(p, request["run"], request["node"]))), places[0])


class _Following:
    def __init__(self, request: dict[str, Any], decoder: Decoder) -> None:
        self._request, self._decoder = {**request, "remote_dir": _place_of(request)}, decoder
        self._directory = tape_of(self._request["remote_dir"], request["run"], request["node"])
        self._obeyed = 0
        self._link: socket.socket | None = None  # to the run's agent
        self._tape: Playback | None = None
        self._out = Outbox(Nothing(), request["place"])
        self._caught_up = False
        self._end = -1  # the place after the last frame of the tape, once that was passed
        self._until = float("inf")  # when we leave, monotonic
        self._heard = time.monotonic()

    def serve(self, rest: list[Frame]) -> None:
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        if self._begin():
            self._take(rest)
        else:
            self._until = time.monotonic() + LAST
        try:
            while time.monotonic() < min(self._until, self._heard + SILENT) and self._turn():
                pass
        finally:
            if self._tape is not None:
                if self._has_all() and not self._request["only_end"]:
                    self._fetched()
                self._tape.close()

    def _begin(self) -> bool:
        """Find the run; False if there is nothing to follow."""
        request = self._request
        told: dict[str, Any] = {}
        try:
            door = door_of(request["run"], request["node"])
            self._link = knock(door, {"type": "follow", "client": request["client"]}, [])
            self._link.settimeout(LAST)
            told = json.loads(self._link.recv(65536) or b"{}")
        except socket.timeout:  # it hangs, which is no reason to take it for dead
            told = {"obeyed": 0}
        except (OSError, ValueError):
            pass
        if self._link is not None and "obeyed" in told:
            self._obeyed = told["obeyed"]
            self._link.setblocking(False)
        elif self._link is not None:
            self._link.close()
            self._link = None
        state = told.get("state", "")  # of a run that has its client, though there may be a tape for when that leaves
        try:
            if state:
                raise FileNotFoundError
            with open(os.path.join(self._directory, ABOUT)) as file:
                self._about = json.load(file)
            self._tape = Playback(self._directory, request["have"])
        except (OSError, ValueError):
            self._out.send_urgently({"type": "no-tape", "state": state, "about": told.get("about", {})})
            return False
        self._out = Outbox(self._tape, request["place"])
        hello = {"time": time.time(), "machine": machine_id(), "is_on": self._link is not None}
        self._out.send_urgently({"type": "following", **hello})
        return True

    def _turn(self) -> bool:
        """Wait for the next thing, and do it; False once we are done."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if self._out:
            poll.register(1, select.POLLOUT)
        if self._link is not None:
            poll.register(self._link.fileno(), select.POLLIN)
        wait = min(self._until, self._heard + SILENT) - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, wait) * 1000 + 0.5)}
        if self._link is not None and self._link.fileno() in ready:
            self._hear(self._link)
        stays = self._receive() if 0 in ready else True
        stays = self._flush() and stays
        if self._tape is not None:
            self._look(self._tape)
        return self._flush() and stays

    def _flush(self) -> bool:
        is_open = self._out.flush()
        if self._end < 0 and self._tape is not None and self._tape.is_whole and not self._tape:
            self._end = self._out.places[1]
        return is_open

    def _look(self, tape: Playback) -> None:
        if not self._caught_up and not tape:
            self._caught_up = True
            self._out.send_urgently({"type": "caught-up"})
        if self._link is None and not tape and self._until == float("inf"):
            tape.end()
            if not tape.is_whole:
                self._out.send_urgently(self._bury())
                self._until = time.monotonic() + LAST
        if self._has_all() and self._link is None:
            self._until = 0.0

    def _has_all(self) -> bool:
        """Whether the client has the tape to its end."""
        return 0 <= self._end <= self._out.places[0]

    def _receive(self) -> bool:
        try:
            chunk = os.read(0, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        self._heard = time.monotonic()
        try:
            requests = [(request(header), data) for header, data in self._decoder.feed(chunk)]
        except FrameError as error:
            return self._refuse(error)
        return self._take(requests) and bool(chunk)

    def _take(self, requests: list[Frame]) -> bool:
        """Do what the client asks for; False once it leaves, or sends what is no request."""
        try:
            for header, _ in requests:
                if header["type"] != "bye":
                    self._obey(header)
        except FrameError as error:
            return self._refuse(error)
        return not any(header["type"] == "bye" for header, _ in requests)

    def _refuse(self, error: FrameError) -> bool:
        os.write(2, f"its client does not speak our protocol: {error}\n".encode("utf-8", "replace"))
        self._until = 0.0
        return False

    def _obey(self, header: dict[str, Any]) -> None:
        if header["type"] == "beat":
            told = {"echo": header["time"], "time": time.time(), "orders": self._obeyed}
            self._out.send_urgently({"type": "beat", **told})
        elif header["type"] == "ack":
            self._out.acknowledge(header["place"])
        elif order(header)["n"] > self._obeyed:
            if self._link is None:
                self._obeyed = header["n"]  # there is nothing any more that it is for
                return
            try:
                self._link.send(json.dumps(header).encode())
            except OSError:  # it is leaving; or it hangs, and the client says it again through its next channel
                pass

    def _hear(self, link: socket.socket) -> None:
        try:
            while True:
                text = link.recv(65536)
                if not text:
                    raise ConnectionResetError
                self._obeyed = max(self._obeyed, json.loads(text).get("obeyed", 0))
        except BlockingIOError:
            pass
        except OSError:
            link.close()
            self._link = None

    def _bury(self) -> dict[str, Any]:
        """The agent is gone without its last words: end what is left, and say when and why, as far as we know."""
        left = [] if self._request["only_reads"] else self._sweep()
        if self._about.get("boot") != boot_id():
            return {"type": "no-agent", "left": left, "why": "the machine was started anew", "time": _boot_time()}
        changed = os.stat(os.path.join(self._directory, FACTS)).st_mtime
        last = max([changed, *(os.stat(path).st_mtime for path in self._last_piece())])
        return {"type": "no-agent", "left": left, "why": "", "time": last}

    def _sweep(self) -> list[str]:
        """End what is left of the run here; return what stays."""
        return end_rest(self._request, self._about.get("cgroup", ""), self._about.get("boot") != boot_id())

    def _last_piece(self) -> list[str]:
        numbers = sorted(int(name) for name in os.listdir(self._directory) if name.isdigit())
        return [os.path.join(self._directory, str(number)) for number in numbers[-1:]]

    def _fetched(self) -> None:
        try:
            with open(os.path.join(self._directory, FETCHED), "w"):
                pass
        except OSError:
            pass


def _boot_time() -> float:
    """When the machine was started, in seconds since the epoch."""
    with open("/proc/stat") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "btime":
                return float(value)
    return time.time()
