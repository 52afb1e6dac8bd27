"""The reader of a detached run: a process per client, which sends the run's journal to it.

It asks the run's agent only to wake it and to pass orders on. So there may be any number of clients, each with its own
place, as slow as it likes. After the end of the agent, the journal is all that is left of the run.
"""

from __future__ import annotations

import os
import select
import socket
import time

from mesh.agent.base.directories import boot_id, machine_id, places_of
from mesh.agent.base.light import dumps, loads
from mesh.agent.control.sockets import remove_socket, send_request, socket_path
from mesh.agent.link.journal import ABOUT, FACTS, FETCHED, journal_directory
from mesh.agent.link.journal_reader import EmptySource, JournalReader
from mesh.agent.link.outbox import Outbox
from mesh.agent.process.sweep import end_rest
from mesh.protocol import control, journal
from mesh.protocol.answers import Beat, Failed, Owner
from mesh.protocol.frames import FrameError
from mesh.protocol.kinds import as_it_is
from mesh.protocol.messages import VersionError, read_record
from mesh.protocol.replies import Run
from mesh.protocol.requests import Ack, Bye, Order
from mesh.protocol.requests import Beat as AskedBeat
from mesh.protocol.tables import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.protocol.first import Follow
    from mesh.protocol.frames import Decoder
    from mesh.protocol.requests import Request

    Requests = list[tuple[Request, bytes]]

FAREWELL_LIMIT_S = 5.0  # for the client to receive the last messages
SILENCE_LIMIT_S = 900.0  # without a request, after which the connection is dead
ANSWER_BYTES = 1 << 16  # of the agent


def follow(request: Follow, decoder: Decoder, rest: Requests) -> None:
    """Serve one client until it leaves or has everything. rest: requests that came with the first"""
    _Follower(request, decoder).serve(rest)


def _remote_dir(request: Follow) -> str:
    """Return the directory that has the run's journal: the one in /tmp if the run found its HOME read-only."""
    places = places_of(request.remote_dir)
    return next((p for p in places if os.path.isdir(journal_directory(p, request.run, request.node))), places[0])


class _Follower:
    """A client, the journal that it reads, and the connection to the run's agent."""

    def __init__(self, request: Follow, decoder: Decoder) -> None:
        self._request, self._decoder = request, decoder
        self._remote_dir = _remote_dir(request)
        self._directory = journal_directory(self._remote_dir, request.run, request.node)
        self._orders = 0  # the number of the last order that the agent has
        self._agent: socket.socket | None = None  # the connection to the run's agent
        self._journal: JournalReader | None = None
        self._out = Outbox(EmptySource(), request.place)
        self._caught_up = False
        self._end = -1  # the place after the last frame of the journal, once that was sent
        self._until = float("inf")  # the end of this process, monotonic
        self._received_at = time.monotonic()

    def serve(self, rest: Requests) -> None:
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        if self._begin():
            self._take(rest)
        else:
            self._until = time.monotonic() + FAREWELL_LIMIT_S
        try:
            while time.monotonic() < min(self._until, self._received_at + SILENCE_LIMIT_S) and self._turn():
                pass
        finally:
            if self._journal is not None:
                if self._has_all() and not self._request.only_end:
                    self._mark_fetched()
                self._journal.close()

    def _begin(self) -> bool:
        """Find the run; return False if there is nothing to follow."""
        run = self._connect()
        try:
            if run.state:  # the run has its client, and perhaps a journal for when that leaves
                raise FileNotFoundError
            with open(os.path.join(self._directory, ABOUT)) as file:
                self._about = journal.read_about(loads(file.read()))
            self._journal = JournalReader(self._directory, self._request.have)
        except VersionError as error:
            failed = Failed(step="agent", message=str(error), hint=error.hint, time=time.time())
            self._out.send_urgently(failed)
            return False
        except (OSError, ValueError, FrameError):
            self._out.send_urgently(journal.NoJournal(state=run.state, about=run.about))
            return False
        self._out = Outbox(self._journal, self._request.place)
        is_on = self._agent is not None
        self._out.send_urgently(journal.Following(time=time.time(), machine=machine_id(), is_on=is_on))
        return True

    def _connect(self) -> Run:
        """Connect to the run's agent. Return its run, without a state unless the run has its client."""
        run = Run(run=self._request.run, node=self._request.node, about=Owner(), attached=False, ranks=[])
        path = socket_path(self._request.run, self._request.node)
        try:
            self._agent = send_request(path, control.Follow(client=self._request.client))
            self._agent.settimeout(FAREWELL_LIMIT_S)
            answer = loads(self._agent.recv(ANSWER_BYTES))
            if isinstance(answer, dict) and "obeyed" in answer:
                self._orders = read_record("follow", control.Confirmed, answer).obeyed
                self._agent.setblocking(False)
                return run
            run = read_record("follow", Run, answer, as_it_is)
        except socket.timeout:  # the agent hangs, which does not mean that it is gone
            if self._agent is not None:
                self._agent.setblocking(False)
                return run
        except (OSError, ValueError, FrameError):
            pass
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        return run

    def _turn(self) -> bool:
        """Wait for the next event and serve it; return False at the end."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if self._out:
            poll.register(1, select.POLLOUT)
        if self._agent is not None:
            poll.register(self._agent.fileno(), select.POLLIN)
        wait = min(self._until, self._received_at + SILENCE_LIMIT_S) - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, wait) * 1000 + 0.5)}
        if self._agent is not None and self._agent.fileno() in ready:
            self._receive_confirmations(self._agent)
        stays = self._receive() if 0 in ready else True
        stays = self._flush() and stays
        if self._journal is not None:
            self._read(self._journal)
        return self._flush() and stays

    def _flush(self) -> bool:
        is_open = self._out.flush()
        if self._end < 0 and self._journal is not None and self._journal.is_whole and not self._journal:
            self._end = self._out.places[1]
        return is_open

    def _read(self, reader: JournalReader) -> None:
        """Report that the client has all that is there so far, and end with the journal."""
        if not self._caught_up and not reader:
            self._caught_up = True
            self._out.send_urgently(journal.CaughtUp())
        if self._agent is None and not reader and self._until == float("inf"):
            reader.end()
            if not reader.is_whole:
                self._out.send_urgently(self._end_without_agent())
                self._until = time.monotonic() + FAREWELL_LIMIT_S
        if self._has_all() and self._agent is None:
            self._until = 0.0

    def _has_all(self) -> bool:
        """Return True if the client has the journal to its end."""
        return 0 <= self._end <= self._out.places[0]

    def _receive(self) -> bool:
        try:
            chunk = os.read(0, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        self._received_at = time.monotonic()
        try:
            requests = [(REQUESTS.read(header), data) for header, data in self._decoder.feed(chunk)]
        except FrameError as error:
            return self._refuse(error)
        return self._take(requests) and bool(chunk)

    def _take(self, requests: Requests) -> bool:
        """Serve requests; return False once the client leaves, or sends anything else."""
        try:
            for request, _ in requests:
                self._serve_request(request)
        except FrameError as error:
            return self._refuse(error)
        return not any(isinstance(request, Bye) for request, _ in requests)

    def _refuse(self, error: FrameError) -> bool:
        os.write(2, f"its client does not speak our protocol: {error}\n".encode("utf-8", "replace"))
        self._until = 0.0
        return False

    def _serve_request(self, request: Request) -> None:
        if isinstance(request, Bye):
            return
        if isinstance(request, AskedBeat):
            self._out.send_urgently(Beat(echo=request.time, time=time.time(), orders=self._orders))
        elif isinstance(request, Ack):
            self._out.acknowledge(request.place)
        elif not isinstance(request, Order) or not request.n:
            raise FrameError(f"{request.NAME}: no n")
        elif request.n > self._orders:
            if self._agent is None:
                self._orders = request.n  # the ranks that it was for are gone
                return
            try:
                self._agent.send(dumps(request.header()).encode())
            except OSError:  # the agent leaves; or it hangs, and the client repeats the order on its next channel
                pass

    def _receive_confirmations(self, agent: socket.socket) -> None:
        try:
            while True:
                text = agent.recv(ANSWER_BYTES)
                if not text:
                    raise ConnectionResetError
                confirmed = read_record("follow", control.Confirmed, loads(text))
                self._orders = max(self._orders, confirmed.obeyed)
        except BlockingIOError:
            pass
        except OSError:
            agent.close()
            self._agent = None

    def _end_without_agent(self) -> journal.NoAgent:
        """End what a killed agent left, and report when and why it ended, if that can be found out."""
        was_restarted = self._about.boot != boot_id()
        left = [] if self._request.only_reads else self._end_rest(was_restarted)
        if was_restarted:
            return journal.NoAgent(left=left, why="the machine was started anew", time=_boot_time())
        numbers = [int(name) for name in os.listdir(self._directory) if name.isdigit()]
        files = [FACTS, *(str(number) for number in sorted(numbers)[-1:])]
        changed = max(os.stat(os.path.join(self._directory, name)).st_mtime for name in files)
        return journal.NoAgent(left=left, why="", time=changed)

    def _end_rest(self, was_restarted: bool) -> list[str]:
        """End the rest of the run here; return lines about all that stays."""
        run, node = self._request.run, self._request.node
        left = end_rest(run, node, self._remote_dir, self._about.cgroup, was_restarted=was_restarted)
        remove_socket(run, node)
        return left

    def _mark_fetched(self) -> None:
        try:
            with open(os.path.join(self._directory, FETCHED), "w"):
                pass
        except OSError:
            pass


def _boot_time() -> float:
    """Return when the machine was started, in seconds since the epoch."""
    with open("/proc/stat") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "btime":
                return float(value)
    return time.time()
