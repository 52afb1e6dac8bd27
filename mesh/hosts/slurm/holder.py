"""The holder of an allocation: it runs the switchboard and one step, and ends the allocation that nobody uses.

It is the batch script of an allocation that mesh has asked for, or a process of the login node beside one that was
there. ``render.py`` puts it behind a shell line, and its values into a call at the end. It needs Python 3.8.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh.agent.switchboard.attempts import Attempts
    from mesh.agent.switchboard.board import Board

TURN_S = 1.0  # the longest wait for frames
COMMAND_TIMEOUT_S = 20.0
STOP_S = 10.0  # for idle nodes to end
REPORT_BYTES = 1 << 16
STDERR_BYTES = 2000  # of srun, for the last words
REASON_TRIES, REASON_PAUSE_S = 3, 0.2  # until Slurm has the reason of a SIGTERM
PUBLISH_TRIES, PUBLISH_PAUSE_S = 3, 1.0  # to write the comment of the job
ENVIRON = {**os.environ, "SLURM_TIME_FORMAT": "standard"}  # of Slurm's commands, whose times are read
NOT_FOR_SRUN = ("SLURM_EXPORT_ENV", "SLURM_CPUS_PER_TASK")  # of a batch script, which would change the step
UNUSED = "nobody has used it"  # begins the reason of an idle allocation
HIDDEN = ("SLURM", "SRUN", "SBATCH", "PMI", "PMIX")  # variables of a step with one task on each node begin so


class Given(NamedTuple):
    """The values of a holder, as ``render.py`` writes them."""

    mark: str  # begins the comment of the job
    job: str  # beside which it runs; "": that of the batch script
    comment: str  # of the user
    hold: float  # seconds
    until: float  # seconds since the epoch, before which the allocation stays
    warn: Sequence[float]  # a signal, and seconds before the end; empty: none
    digest: str  # of the request, for clients
    ports: Sequence[int]  # the first and the last one of the switchboard; 0: any
    python: Sequence[str]  # the words that run it on the nodes
    task: str  # the program of each node, see task.py
    srun: Sequence[str]  # its options
    program: str  # the zip of the switchboard, in base 64
    key: str  # of the switchboard, as PEM
    file: str  # of a holder beside an allocation, for clients
    is_by_ssh: int = 0  # 1: clients reach the nodes by SSH, and nodes report through srun
    local: str = ""  # mesh's directory on nodes, which they make and remove; "": they do not
    home: str = "~/.mesh"  # mesh's directory where a client may leave the attempts of a detached run
    attempts: str = ""  # of the run that this allocation was asked for; "": none
    attempt: int = 0  # the number of the one that begins here


class Holder:
    """The switchboard and the step of one allocation."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._job = given.job or os.environ["SLURM_JOB_ID"]
        self._board: Board | None = None
        self._attempts: Attempts | None = None
        self._step: subprocess.Popen[bytes] | None = None
        self._reason, self._signalled = "", False  # why the allocation is being ended; it received SIGTERM
        self._words = os.memfd_create("srun")  # its standard error; a pipe that nobody reads would stop it

    def listen(self) -> int:
        """Open the port of the switchboard, and return it. Raises OSError if none of the site's range is free."""
        held = os.memfd_create("switchboard")
        os.write(held, base64.b64decode(self._given.program))
        sys.path.insert(0, f"/proc/self/fd/{held}")
        from mesh.agent.switchboard.board import Board
        from mesh.agent.switchboard.hold import port_range

        ports = tuple(self._given.ports) if any(self._given.ports) else port_range(printed("show", "config"))
        self._board = Board(self._given.key, ports)
        return self._board.listen()

    def enter(self) -> str:
        """Take on the attempt that this allocation was asked for. Return why there is none to begin; "": go on."""
        from mesh.agent.switchboard.attempts import Attempts

        given = self._given
        self._attempts = Attempts(self._job, given.home, given.attempts, given.attempt)
        signal.signal(signal.SIGCONT, self._attempts.call)
        nodes = printed("show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split() if given.attempts else ()
        return self._attempts.enter(nodes) if given.attempts else ""

    def run(self, port: int, addresses: Sequence[str], before_end: Callable[[str], object]) -> str:
        """Hold the allocation until nobody uses it, or it is ended; return why.

        port, addresses: at which nodes reach the switchboard
        before_end: called before any connection ends, with the reason; "" if Slurm ends it
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        from mesh.agent.switchboard.endtime import EndTime
        from mesh.agent.switchboard.hold import Ending, Hold, has_other_steps, in_words

        board, given = self._board, self._given
        end_time = EndTime(["scontrol", "show", "job", self._job], ENVIRON)
        assert board is not None
        hold = Hold(time.monotonic(), given.hold, given.until, is_by_ssh=bool(given.is_by_ssh))
        ending = Ending(given.warn[1] if given.warn else 0.0)
        stop_at = float("inf")  # for nodes that do not end
        self._start_step(port, addresses)
        while True:
            end = end_time.look(time.monotonic())
            board.run_once(min(TURN_S, ending.next_in(end, time.time())))
            if self._signalled and not self._reason:
                before_end("")
                self._reason = self._why()
                self._stop_nodes(self._reason)
                board.notify_clients("the allocation is being ended: " + self._reason)
            wall = time.time()
            notice = ending.due(end, wall)
            if notice:
                board.notify_clients(notice)
            if given.is_by_ssh:
                self._read_reports()
            if ending.warns(end, wall):
                self._order(f"signal {given.warn[0]:g}")
            assert self._step is not None
            if self._step.poll() is not None:
                reason = self._reason or f"its step has ended ({self._last_words()})"
                if not self._reason:
                    self._reason = reason
                    before_end(reason)
                return reason
            if not self._reason:
                is_starting = self._attempts is not None and self._attempts.is_starting
                is_over = hold.is_over(board.idle_since, time.monotonic(), wall) and not is_starting
                if is_over and not given.job and has_other_steps(printed("show", "step", self._job)):
                    hold.keep(time.monotonic())
                    is_over = False
                unused = f"{UNUSED} for {in_words(hold.idle_limit)}" if is_over else ""
                self._reason = self._attempts.look(board, unused) if self._attempts is not None else unused
                if self._reason:
                    board.refuse_clients(self._reason)
                    before_end(self._reason)
                    self._stop_nodes(self._reason)
                    stop_at = time.monotonic() + STOP_S
            if time.monotonic() >= stop_at:
                self._stop_step()

    def close(self) -> None:
        """End the step, if it goes on, and the switchboard."""
        if self._step is not None and self._step.poll() is None:
            self._stop_step()
        if self._board is not None:
            self._board.close()

    # ---- the step

    def _start_step(self, port: int, addresses: Sequence[str]) -> None:
        given = self._given
        options = sized(given.srun, os.environ.get("SLURM_JOB_NUM_NODES", ""))
        argv = ["srun", *options, *given.python, "-I", "-S", "-c", given.task]
        environ = {key: value for key, value in os.environ.items() if key not in NOT_FOR_SRUN}
        self._step = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if given.is_by_ssh else subprocess.DEVNULL,
            stderr=self._words,
            env=environ,
            start_new_session=True,
        )
        data = {"program": given.program, "key": given.key, "addresses": addresses, "port": port, "hidden": HIDDEN}
        data.update(local=given.local, watches=given.is_by_ssh)
        self._write(json.dumps(data))
        if self._step.stdout is not None:
            os.set_blocking(self._step.stdout.fileno(), False)
        elif self._step.stdin is not None:
            self._step.stdin.close()

    def _write(self, line: str) -> None:
        """Send a line to the programs of all nodes."""
        assert self._step is not None
        assert self._step.stdin is not None
        try:
            self._step.stdin.write(line.encode() + b"\n")
            self._step.stdin.flush()
        except (OSError, ValueError):  # it has ended already, which is seen later
            pass

    def _order(self, text: str) -> None:
        """Send a text to all nodes, by the way that there is to them."""
        assert self._board is not None
        if self._given.is_by_ssh:
            self._write(text)
        else:
            self._board.notify_nodes(text)

    def _stop_nodes(self, reason: str) -> None:
        """Have the programs of all nodes end."""
        assert self._board is not None
        assert self._step is not None
        if not self._given.is_by_ssh:
            self._board.stop_nodes(reason)
        elif self._step.stdin is not None:
            try:
                self._step.stdin.close()
            except OSError:  # it has ended already
                pass

    def _read_reports(self) -> None:
        """Note which nodes have agents, by the lines of their programs."""
        assert self._board is not None
        assert self._step is not None
        assert self._step.stdout is not None
        try:
            chunk = os.read(self._step.stdout.fileno(), REPORT_BYTES)
        except OSError:  # there is none now
            return
        for line in chunk.decode("utf-8", "replace").splitlines():
            name, _, is_busy = line.rpartition(" ")
            if name and is_busy in ("0", "1"):
                self._board.note_busy(name, is_busy == "1")

    def _stop_step(self) -> None:
        """End the step, whose nodes have no agent any more."""
        assert self._step is not None
        self._step.send_signal(signal.SIGTERM)
        try:
            self._step.wait(COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._step.kill()
            self._step.wait()

    def _last_words(self) -> str:
        """Return the last line that srun has written to its standard error."""
        assert self._step is not None
        if self._step.returncode < 0:
            return f"srun was killed by signal {-self._step.returncode}"
        begin = max(0, os.fstat(self._words).st_size - STDERR_BYTES)
        words = os.pread(self._words, STDERR_BYTES, begin).decode("utf-8", "replace").strip().splitlines()
        return words[-1] if words else f"exit {self._step.returncode}"

    # ---- Slurm

    def _note(self, number: int, frame: object) -> None:
        self._signalled = True

    def _why(self) -> str:
        """Return why Slurm ends the allocation."""
        for _ in range(REASON_TRIES):
            fields = scontrol("show", "job", self._job)
            state, reason = fields.get("JobState"), fields.get("Reason")
            if state == "PREEMPTED" or fields.get("PreemptTime", "None") != "None":
                return "it was preempted"
            if state == "TIMEOUT" or reason == "TimeLimit":
                return "its time is up"
            if state == "NODE_FAIL" or reason == "NodeDown":
                return "one of its nodes has failed"
            if state in ("COMPLETING", "CANCELLED"):
                return "it was cancelled"
            time.sleep(REASON_PAUSE_S)
        return "it received SIGTERM"


def sized(words: Sequence[str], nodes: str) -> list[str]:
    """Return the options of srun with the number of the job's nodes, if they have none.

    >>> sized(["--mem=0"], "2"), sized(["--nodes=3"], "2"), sized([], "")
    (['--mem=0', '--nodes=2', '--ntasks=2'], ['--nodes=3'], [])
    """
    is_sized = not nodes or any(one.startswith("--nodes=") for one in words)
    return [*words, *([] if is_sized else [f"--nodes={nodes}", f"--ntasks={nodes}"])]


def scontrol(*words: str) -> dict[str, str]:
    """Return the fields that scontrol shows; {} if it fails."""
    return dict(word.split("=", 1) for word in printed(*words).split() if "=" in word)


def printed(*words: str) -> str:
    """Return what scontrol prints; "" if it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, timeout=COMMAND_TIMEOUT_S, env=ENVIRON)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def publish(job: str, text: str) -> None:
    """Write the comment of a job."""
    words: list[str | bytes] = ["scontrol", "update", "JobId=" + job, as_bytes("Comment=" + text)]
    for attempt in range(PUBLISH_TRIES):
        time.sleep(PUBLISH_PAUSE_S if attempt else 0.0)
        try:
            done = subprocess.run(words, capture_output=True, timeout=COMMAND_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if not done.returncode:
            return


def as_bytes(text: str) -> bytes:
    """Return a text in UTF-8. JSON has written a character beyond U+FFFF as two, which Python does not join.

    >>> as_bytes("a\\ud83d\\ude80") == "a\\U0001f680".encode()
    True
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def own_address() -> str:
    """Return the address of this node, as Slurm's other nodes have it."""
    fields = scontrol("show", "node", os.environ.get("SLURMD_NODENAME", ""))
    return fields.get("NodeAddr") or socket.gethostname()


def hold_batch(given: Given) -> None:
    """Be the batch script of an allocation that mesh has asked for. Its end is that of the allocation."""
    job, address = os.environ["SLURM_JOB_ID"], own_address()
    holder = Holder(given)

    def withdraw(reason: str) -> None:
        """Have no client take the address any more. Slurm's own end leaves no time for that."""
        if reason:
            publish(job, f"{given.mark} ended: {reason}")

    try:
        port = holder.listen()
        reason = holder.enter()
        if not reason:
            publish(job, f"{given.mark} {address}:{port} {given.comment}".strip())
            reason = holder.run(port, [address], withdraw)
    except Exception as error:
        withdraw(f"{type(error).__name__}: {error}")
        raise
    withdraw(reason)
    holder.close()


def hold_beside(given: Given) -> None:
    """Be a process of the login node, beside an allocation that was there; write the address to standard output.

    It outlives the login. Its end is that of its step, and of nothing else of the allocation.
    """
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        with os.fdopen(read) as file:
            sys.stdout.write(file.read())
        sys.stdout.flush()
        return
    os.close(read)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    holder, host, place = Holder(given), socket.gethostname(), os.path.expanduser(given.file)
    with os.fdopen(write, "w") as answer:
        try:
            port = holder.listen()
            text = json.dumps({"address": f"{host}:{port}", "key": given.key, "digest": given.digest})
            write_private(place, text)
        except OSError as error:
            answer.write(f"{error}\n")
            return
        answer.write(text + "\n")
    try:
        holder.run(port, [host], lambda reason: remove_own(place, text))
    finally:
        remove_own(place, text)
        holder.close()


def write_private(place: str, text: str) -> None:
    """Write a file in one step that only this user can read. Raises OSError."""
    os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    new = f"{place}.{os.getpid()}"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.rename(new, place)


def remove_own(place: str, text: str) -> None:
    """Remove a file, if it has this text: a holder on another login node may have written its own."""
    try:
        with open(place) as file:
            is_own = file.read() == text
        if is_own:
            os.unlink(place)
    except OSError:  # it was removed
        pass


def main(given: Given) -> None:
    """Hold an allocation."""
    (hold_beside if given.job else hold_batch)(given)
