"""The process of a node. Its agent starts it with sockets and files that the environment names."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from types import FrameType
from typing import Dict

from mesh.program.runtime import codec, failures, frames, plain
from mesh.program.runtime.book import CONNECT_TIMEOUT_S, Book, role_of
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.control import Control, Message, stop_message
from mesh.program.runtime.errors import CLIENT, ENDED, CannotTravel
from mesh.program.runtime.frames import Frame, read_frame
from mesh.program.runtime.here import Context, Here, set_process_context
from mesh.program.runtime.links import Link
from mesh.program.runtime.listening import Listener
from mesh.program.runtime.member import FAILURE_STATUS, Member, exit_status
from mesh.program.runtime.program_file import enter, load_main
from mesh.program.runtime.retrying import wait_for_others
from mesh.program.runtime.serving import Server

LINK_NEWS_TIMEOUT_S = 5.0  # for the news that explains the end of a link, while the program runs
SIGNALS = (signal.SIGTERM, signal.SIGINT)  # that end a node
REASON_TIMEOUT_S = 0.5  # for the reason of a signal to be read
NEWS_TIMEOUT_S = 1.0  # for the end of the program to arrive after the loss of a node
ANSWERS_TIMEOUT_S = 1.0  # for the answers of running calls at the end
LOSSES = (ConnectionError, EOFError)
GONE = {"ended": ENDED, "failed": "it has failed", "lost": "its host is lost"}
LOST = "its host is lost: {}"
RESULT_BYTES_LIMIT = 60 << 20  # of the value of a function or ``run``, which goes through the client's channel


class Process:
    """The node of this process."""

    def __init__(self, environ: "Dict[str, str]") -> None:
        """Read what the agent has written. Raises KeyError and OSError where it did not."""
        about, self._body, self._buffers = read_payload(environ["MESH_PAYLOAD"])
        self.about = about
        role = environ["MESH_LABEL"]
        hosts = {str(label): str(host) for label, host in _dict(about["hosts"]).items()}
        self._labels = {role_of(label): label for label in hosts}
        label = self._labels[role]
        index = int(role.rpartition("/")[2])
        self._directory = os.path.dirname(environ["MESH_ADDRESS_BOOK"])
        key_file = environ.get("MESH_LINK_KEY", "")
        book = Book(environ["MESH_ADDRESS_BOOK"], key_file, role)
        self._control = Control(int(environ["MESH_CONTROL_FD"]), self._take, self._lose_agent)
        place = str(about["program"]), label

        def connect(wanted: str) -> Link:
            if hosts.get(wanted) == CLIENT:
                return caller.adopted(wanted, CONNECT_TIMEOUT_S)
            return book.connect(wanted)

        caller = Caller(place, connect, hosts, is_trusting=True, news_timeout=LINK_NEWS_TIMEOUT_S)
        count = int(str(about["count"]))
        attempt = int(environ.get("MESH_ATTEMPT", "0")) + 1
        host = environ.get("MESH_HOST", hosts[label])  # a node that has moved gets the name of its new host
        here = Here(str(about["name"]), label, index, count, host, int(environ.get("RANK", "0")), attempt)
        self._context = Context(here, caller, self._stop)
        self._context.report = self._report
        self._server = Server(self._context, int(str(about["concurrency"])), int(str(about["backlog"])), self._die)
        self._listener = Listener(json.loads(environ["MESH_NODE_SOCKETS"]), key_file, self._server.attach)
        self._reporting = threading.Lock()
        self._held = threading.local()  # of a thread that forks: its mask of signals
        self._signals: "queue.SimpleQueue[int]" = queue.SimpleQueue()  # its put may interrupt any other call

    def work(self) -> int:
        """Make, serve and run the node; return the exit status."""
        set_process_context(self._context)
        os.register_at_fork(before=self._hold_signals, after_in_parent=self._free_signals, after_in_child=self._leave)
        threading.Thread(target=self._note_signal, name="mesh-signal", daemon=True).start()
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the agent has blocked them for the start
        self._control.start()
        self._listener.start()
        try:
            enter(self.about)
            load_main(self.about)
            self._check_version()
            codec.provide_cloudpickle(str(self.about.get("cloudpickle", "")))
            member = Member(self._context, self._server, bool(self.about["calls_run"]))
            wait_for_others(self._context, [str(one) for one in _list(self.about["after"])])
            member.construct(self._body, self._buffers)
            self._body, self._buffers = b"", []  # the object has what it needs of them
            self._control.send({"ready": True})
            if not member.runs:
                self._context.stopped.wait()
                return 0
            value = member.run()
            while self.about["on_exit"] == "restart" and not self._context.stopped.is_set():
                value = member.run()
            self._report("value", value)
        except SystemExit as error:
            return exit_status(error)
        except BaseException as error:
            return self._failed(error)
        return 0

    def _hold_signals(self) -> None:
        """Block signals in this thread: Python forgets those that come between a fork and the end of its hooks."""
        self._held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _free_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._held.mask)

    def _leave(self) -> None:
        """Stop acting as a node in a process that was just forked: calls fail, and signals have their usual effect."""
        for part in (self._control, self._listener, self._server, self._context.caller):
            part.leave()
        self._context.stop_program = self._refuse_stop
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        self._free_signals()

    def _refuse_stop(self, code: int, why: str) -> None:
        raise self._context.caller.forked()

    def finish(self) -> None:
        """Let running calls be answered, such as the one that has stopped the program."""
        self._server.finish(ANSWERS_TIMEOUT_S)

    def _check_version(self) -> None:
        """Raise RuntimeError for byte code of another Python, which classes without a file travel as."""
        wanted = self.about.get("byte_code")
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if wanted and wanted != own:
            here = self._context.here
            text = f"{here.label} on {here.host}: Python {own} cannot read byte code of Python {wanted} of the client"
            raise RuntimeError(f"{text}; put the classes in a file, or name an interpreter by python=")

    def _failed(self, error: BaseException) -> int:
        """Report a failure, unless the program is stopped: calls and waits break then."""
        if isinstance(error, LOSSES) or isinstance(error.__cause__, LOSSES):
            self._context.stopped.wait(NEWS_TIMEOUT_S)
        if self._context.stopped.is_set():
            if not isinstance(error, LOSSES):
                failures.print_failure(error, "")
            return 0
        here = self._context.here
        failures.print_failure(error, "")
        self._report("failure", failures.describe(error, here.label, here.host))
        return exit_status(error) or FAILURE_STATUS

    def _die(self, error: BaseException) -> None:
        """End the process for the failure of a call that has no caller waiting."""
        status = self._failed(error)
        sys.stdout.flush()
        os._exit(status)

    def _report(self, kind: str, value: object) -> None:
        """Send the value or failure of the node by a file of the private directory."""
        with self._reporting:
            body, buffers = plain.dumps((kind, value))
            size = len(body) + sum(memoryview(one).nbytes for one in buffers)
            if size > RESULT_BYTES_LIMIT:
                here = self._context.here
                limit = f"at most {RESULT_BYTES_LIMIT:,} are sent"
                raise CannotTravel(f"{here.label} on {here.host}: its result has {size:,} bytes; {limit}")
            path = os.path.join(self._directory, f"result-{self._context.here.rank}")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                for piece in Frame(frames.RESULT, body=body, buffers=buffers).pieces():
                    file.write(piece)
            self._control.send({"result": path})

    # ---- the agent

    def _stop(self, code: int, why: str) -> None:
        self._control.send(stop_message(code, why))

    def _take(self, message: Message) -> None:
        if "stop" in message:
            self._context.set_stopped(str(message["stop"]))
        elif "news" in message:
            self._note(str(message["news"]), str(message.get("state")), str(message.get("why") or ""))

    def _note(self, role: str, state: str, why: str) -> None:
        """Act on the state of another node. why: it is gone"""
        label = self._labels.get(role, role)
        if state in GONE:
            self._context.caller.lose(label, LOST.format(why) if state == "lost" and why else why or GONE[state])
        elif state == "restarting" and why.startswith(GONE["lost"]):  # its link does not end by itself
            self._context.caller.cut(label, f"{why}; it is started again elsewhere")
        elif state == "restarting":
            self._context.caller.note_restart(label, f"{why or GONE['failed']}; it is started again")
        else:
            self._context.caller.find(label)

    def _lose_agent(self) -> None:
        self._context.set_stopped("signal")

    def _on_signal(self, number: int, frame: "FrameType | None") -> None:
        self._signals.put(number)

    def _note_signal(self) -> None:
        """Note the first signal. What it has interrupted may hold a lock of the context, or of Python's threads."""
        self._signals.get()
        self._control.catch_up(REASON_TIMEOUT_S)  # the agent sends the reason before the signal
        self._context.set_signalled(REASON_TIMEOUT_S)


def read_payload(path: str) -> "tuple[Dict[str, object], bytes, list[object]]":
    """Return the description of a node, its pickled object and the buffers of that. Raises OSError, ValueError."""
    with open(path, "rb") as file:

        def fill(view: memoryview) -> None:
            while view.nbytes:
                count = file.readinto(view)
                if not count:
                    raise ValueError(f"{path}: it ends early")
                view = view[count:]

        frame = read_frame(fill)
    body, *buffers = frame.buffers
    return _dict(plain.loads(frame.body)), bytes(body), list(buffers)


def _dict(value: object) -> "Dict[str, object]":
    if not isinstance(value, dict):
        raise ValueError("no description of a node")
    return value


def _list(value: object) -> "list[object]":
    return value if isinstance(value, list) else []


def main() -> None:
    """Run the node of this process."""
    process = Process(dict(os.environ))
    status = process.work()
    process.finish()
    for number in (signal.SIGTERM, signal.SIGINT):  # Python's own end would let them end the process
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
