"""Attempts of a detached run on allocations: the holder of each judges it, and has the next one wait in Slurm's queue.

Their directory is in mesh's directory, which login node and nodes share. A client writes it, and a file with the number
of the job beside it. The holder of that job submits the next one, which Slurm starts once the job has ended, for
whatever reason. Each next holder looks first how the attempt before has ended. So a decision is made by whoever is
there, from the same files, and a holder that was killed has left nothing undecided.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time

from mesh.agent.switchboard.judging import LOST_STATUS, Judged, is_tried_again, judge, read_journals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

    from mesh.agent.switchboard.board import Board
    from mesh.protocol.frames import Header

PREFIX = "attempts-"  # of the directory, and of the record beside it, which stays
WORDS, PLAN, PROGRAM, SCRIPT = "given.json", "plan.json", "program.zip", "script"
TAKEN = "taken.json"  # the answer of the first holder
CLAIM = "claim-"  # with the number of an attempt: a job has taken it on
STOP, REPORTED = "stop", "first.json"  # of a client: there is no next attempt; the status of the first one
JOBS_AHEAD = 2  # that wait: one may be killed before it has submitted another one
LOOK_INTERVAL_S = 1.0
SEARCH_INTERVAL_S = 20.0  # between two looks for a client's files, if no client calls: its signal may get lost
CALL_S = 20.0  # after a client's call, in which its files are looked for at each turn
READ_INTERVAL_S = 2.0  # between two looks at the journals
QUIET_S = 4.0  # without an agent on any node, which reports every 2 s
LEAVE_LIMIT_S = 20.0  # for clients to leave an allocation that ends for its next attempt
BEGIN_LIMIT_S = 60.0  # for the programs on the nodes to read their files
START_LIMIT_S = 300.0  # for all nodes to connect
PAUSE_S = 0.5  # between two looks at the last words of the attempt before
COMMAND_TIMEOUT_S = 60.0
TRIES, TRY_PAUSE_S = 3, 1.0  # of a command of Slurm
NOTHING = "nobody has used it"  # begins the reason of an allocation that ends at once, as in hosts/slurm/holder.py
RENEWED = '"attempt": {}'  # in the batch script


class Attempts:
    """The attempts that the holder of one allocation looks after: one run at a time."""

    def __init__(self, job: str, home: str, name: str = "", attempt: int = 0) -> None:
        """job: of this holder; home: mesh's directory; name: of the attempts' directory; "": a client may leave one"""
        self._job, self._home = job, os.path.join(os.path.expanduser(home), "slurm")
        self._name, self._attempt = name, attempt
        self._given: Header = {}  # the words of the client; {}: there are none
        self._waiting: List[str] = []  # the jobs of the next attempts, each of which waits for the one before
        self._is_starting = False  # nodes are waited for
        self._ends = ""  # why the allocation is to end now; "": it is not
        self._reason, self._reason_at = "", 0.0  # the same, once clients have left
        self._look_at, self._read_at, self._limit = 0.0, 0.0, float("inf")
        self._search_at = self._called_until = 0.0  # monotonic: the next look for a client's files; the end of a call
        self._was_busy, self._busy_at = False, 0.0
        self._stop_at = float("inf")
        self._nodes: List[str] = []
        self._began_at = float("inf")
        self._is_bare = False  # the last attempt has begun, and needs no file any more

    # ---- the first attempt

    def call(self, number: int = 0, frame: object = None) -> None:
        """Have the files of a client looked for, which it has just left. It is a handler of signals."""
        self._called_until = time.monotonic() + CALL_S

    def _search(self, now: float) -> None:
        """Look for the files of a client, which are rarely there: the home directory is shared by many nodes."""
        if now >= self._search_at or now < self._called_until:
            self._search_at = now + SEARCH_INTERVAL_S
            self._take()

    def _take(self) -> None:
        """Take the attempts that a client has left for this job, submit the next job, and answer."""
        mark = f"{self._job}.{PREFIX[:-1]}"
        if mark not in _names(self._home):  # a list is never an old one of the network's file system
            return
        try:
            with open(os.path.join(self._home, mark)) as file:
                self._name = file.read().strip()
            os.unlink(os.path.join(self._home, mark))
        except OSError:  # the client has withdrawn it
            return
        self._attempt = 0
        if not self._load():
            return
        self._was_busy, self._stop_at = False, float("inf")
        self._waiting = []
        problem = self._submit()
        if problem:
            self._cancel_waiting()
            self._given = {}
        else:
            self._note_begin()
        _write(os.path.join(self._place, TAKEN), {"problem": problem})

    # ---- a later attempt

    def enter(self, nodes: Sequence[str]) -> str:
        """Submit the next job, and judge the attempt before. Return why there is nothing to begin; "": there is."""
        self._nodes = list(nodes)
        if not self._load() or not self._claim():
            return f"{NOTHING}: its run has ended"
        listed = self._record().get("waiting", [])
        self._waiting = listed[listed.index(self._job) + 1 :] if self._job in listed else []
        self._submit()
        last = self._last_begun()
        judged = self._last_words(last)
        self._note_end(last, judged)
        if self._is_stopped() or not is_tried_again(judged, self._given["statuses"], attempt=last):
            self._finish()
            return f"{NOTHING}: its run has ended"
        self._note_begin()
        self._is_starting, self._limit = True, time.monotonic() + START_LIMIT_S
        return ""

    def _claim(self) -> bool:
        """Return True for the first job of an attempt: one that was killed may have submitted another one unnoticed."""
        try:
            path = os.path.join(self._place, f"{CLAIM}{self._attempt}")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return False
        return True

    def _last_begun(self) -> int:
        """Return the number of the last attempt that has begun: a holder may die before it does anything."""
        begun = (one for one in range(self._attempt - 1, 0, -1) if self._judged(one).has_begun)
        return next(begun, 0)

    def _last_words(self, attempt: int) -> Judged:
        """Wait until each host of an attempt has reported its end: an agent may outlive its allocation for a time."""
        until = time.monotonic() + float(self._given["patience"])
        judged = self._judged(attempt)
        while judged.has_begun and not judged.is_over and time.monotonic() < until and not self._is_stopped():
            time.sleep(PAUSE_S)
            judged = self._judged(attempt)
        return judged

    def _start(self, board: Board, now: float) -> None:
        """Send the order to begin, once all nodes are connected."""
        if self._is_stopped():
            self._finish()
            self._ends = "its run was stopped"
        elif now > self._limit:
            self._is_starting, self._ends = False, "not all of its nodes have connected"
        elif set(self._nodes) <= set(board.nodes):
            self._is_starting, self._was_busy, self._busy_at, self._began_at = False, True, now, now
            board.notify_nodes("begin " + json.dumps(self._order()))

    def _order(self) -> Header:
        words = [self._given["python"], "-I", "-S", *(os.path.join(self._place, one) for one in (PROGRAM, PLAN))]
        env = {
            "MESH_POD_RUN": self._given["runs"][self._attempt],
            "MESH_POD_ATTEMPT": str(self._attempt),
            "MESH_FIRST_POD": self._nodes[0],
        }
        return {"names": self._nodes, "env": env, "words": [*words, self._place]}

    # ---- while the allocation lives

    @property
    def is_starting(self) -> bool:
        """True while nodes are waited for."""
        return self._is_starting

    def look(self, board: Board, unused: str) -> str:
        """Do what is due; return why the allocation is to end, or "". unused: why it ends else, as nobody uses it"""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL_S
            self._act(board, now)
        if self._ends or self._is_starting or self._reason:
            return self._ends
        if unused and self._given:
            judged = self._judged(self._attempt)
            if not (judged.has_begun or self._attempt):  # no client has begun them
                self._finish()
            else:
                self._decide(judged, now)
        return unused and (self._reason or unused)

    def _act(self, board: Board, now: float) -> None:
        if self._reason:
            if not board.busy and (board.idle_since is not None or now > self._reason_at + LEAVE_LIMIT_S):
                self._ends = self._reason
        elif not self._given:
            self._search(now)
        elif self._is_starting:
            self._start(board, now)
        else:
            self._watch(bool(board.busy), now)

    def _watch(self, is_busy: bool, now: float) -> None:
        """Judge the attempt once it is over."""
        self._busy_at = now if is_busy else self._busy_at
        self._was_busy = self._was_busy or is_busy
        is_quiet = now > self._busy_at + QUIET_S
        if self._is_stopped():
            self._cancel_waiting()
            self._stop_at = min(self._stop_at, now + float(self._given["patience"]))
            if is_quiet or now > self._stop_at:
                self._ends = "" if is_quiet else "its run was stopped"
                self._finish()
            return
        if now < self._read_at:
            return
        self._read_at = now + READ_INTERVAL_S
        if not (is_quiet and self._was_busy) and not self._is_over_first():
            if self._is_last and self._attempt and now > self._began_at + BEGIN_LIMIT_S:
                self._is_bare = True
                shutil.rmtree(self._place, ignore_errors=True)
            return
        judged = self._judged(self._attempt)
        if judged.is_over or (is_quiet and (judged.has_begun or self._attempt)):
            self._decide(judged, now)

    def _is_over_first(self) -> bool:
        """Return True if the first host has reported its end, which it does after all others."""
        run = self._given["runs"][self._attempt]
        (messages,) = read_journals(self._given["remote_dir"], run, [0])
        has_gone = any(message.get("type") == "gone" for message in messages)
        return has_gone or not (self._attempt or self._reported() is None)

    def _reported(self) -> Judged | None:
        """Return how the first attempt has ended while its client was there; None: it has not."""
        if REPORTED not in _names(self._place):
            return None
        try:
            with open(os.path.join(self._place, REPORTED)) as file:
                return Judged(int(json.load(file)), is_stopped=False, has_begun=True, is_over=True)
        except (OSError, ValueError):
            return None

    def _decide(self, judged: Judged, now: float) -> None:
        self._note_end(self._attempt, judged)
        if is_tried_again(judged, self._given["statuses"], attempt=self._attempt) and self._has_next():
            self._reason, self._reason_at = f"the next attempt follows, as this one ended with {judged.status}", now
        else:
            self._finish()

    def _has_next(self) -> bool:
        """Return True if the job of the next attempt waits; it may have been cancelled by hand."""
        if self._is_last or self._is_stopped():
            return False
        self._submit()
        return bool(self._waiting) and self._is_there(self._waiting[0])

    # ---- Slurm

    def _submit(self) -> str:
        """Submit the jobs of the next attempts that are missing; return why one was not, or ""."""
        for number in range(self._attempt + 1 + len(self._waiting), len(self._given["runs"])):
            if len(self._waiting) >= JOBS_AHEAD:
                break
            try:
                with open(os.path.join(self._place, SCRIPT)) as file:
                    text = file.read()
            except OSError as error:
                return str(error)
            script = text.replace(RENEWED.format(1), RENEWED.format(number), 1)
            before = self._waiting[-1] if self._waiting else self._job
            words = [*self._given["submit"], f"--dependency=afterany:{before}"]
            status, out = _run(words, script.encode("utf-8", "surrogateescape"))
            if status:
                return f"sbatch: {out.strip() or status}"
            self._waiting.append(out.strip().partition(";")[0])
        return ""

    def _cancel_waiting(self) -> None:
        """Cancel the jobs of the next attempts, the last one first."""
        for attempt in range(TRIES if self._waiting else 0):
            time.sleep(TRY_PAUSE_S if attempt else 0.0)
            status, _ = _run(["scancel", "--quiet", *reversed(self._waiting)])
            if not status or not any(map(self._is_there, self._waiting)):
                break
        self._waiting = []

    def _is_there(self, job: str) -> bool:
        """Return True unless Slurm has no such job any more."""
        status, out = _run(["env", "-uSQUEUE_STATES", "squeue", "--noheader", f"--jobs={job}", "--format=%i"])
        return out.strip() == job if not status else "Invalid job id" not in out

    # ---- files

    @property
    def _is_last(self) -> bool:
        return self._attempt + 1 >= len(self._given["runs"])

    @property
    def _place(self) -> str:
        return os.path.join(self._home, self._name)

    def _load(self) -> bool:
        """Read the words of the client. Return False if they are gone: the attempts are over."""
        try:
            with open(os.path.join(self._place, WORDS)) as file:
                self._given = json.load(file)
        except (OSError, ValueError):
            self._given = {}
        return bool(self._given)

    def _is_stopped(self) -> bool:
        names = _names(self._place)
        return not self._is_bare and (STOP in names or WORDS not in names)

    def _judged(self, attempt: int) -> Judged:
        if not attempt and (reported := self._reported()) is not None:
            return reported
        ranks = self._given["ranks"]
        return judge(read_journals(self._given["remote_dir"], self._given["runs"][attempt], range(len(ranks))), ranks)

    def _record(self) -> Header:
        try:
            with open(self._place + ".json") as file:
                found: Header = json.load(file)
        except (OSError, ValueError):
            found = {"cluster": self._given.get("cluster", ""), "runs": self._given.get("runs", []), "attempts": []}
        return found

    def _note_begin(self) -> None:
        """Write down that an attempt is this job's, and which jobs have the next ones."""
        record = self._record()
        entry = {"run": self._given["runs"][self._attempt], "job": self._job, "status": None}
        record.update(attempts=[*record["attempts"], entry], waiting=self._waiting, is_over=False)
        _write(self._place + ".json", record)

    def _note_end(self, attempt: int, judged: Judged) -> None:
        record = self._record()
        for one in record["attempts"]:
            if one["run"] == self._given["runs"][attempt]:
                one["status"] = judged.status if judged.has_begun else LOST_STATUS
        _write(self._place + ".json", record)

    def _finish(self) -> None:
        """Note that no other attempt follows, and remove all that the attempts needed."""
        record = self._record()
        record.update(waiting=[], is_over=True)
        if record["attempts"]:
            _write(self._place + ".json", record)
        self._cancel_waiting()
        shutil.rmtree(self._place, ignore_errors=True)
        self._given, self._is_starting, self._is_bare = {}, False, False


def _names(place: str) -> List[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _write(path: str, value: object) -> None:
    """Write JSON in one step, for this user alone. What the disk has no room for is left out."""
    new = f"{path}.{os.getpid()}"
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(value, file)
        os.rename(new, path)
    except OSError:
        pass


def _run(words: Sequence[str], data: bytes = b"") -> tuple[int, str]:
    """Run a command of Slurm; return its exit status, and what it has written."""
    try:
        done = subprocess.run(words, input=data, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout if not done.returncode else done.stderr).decode("utf-8", "replace")
