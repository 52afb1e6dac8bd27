"""Program in each pod of a declared job: starts the pod's part of a run that no client has begun.

``python3 -I -S ZIP PLAN SECRET``: the plan's file, and the directory of the job's Secret. The zip holds the agent as
well. The run begins once all pods have met in the first one, and goes on as a detached run does. The exit status is
that of the ranks here, or NOT_BEGUN.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
import traceback
import zipfile

from mesh.agent.declared.agent import Agent
from mesh.agent.declared.meeting import Host, MeetingOver, Member, listener
from mesh.agent.declared.plan import BadPlan, filled, new_run_id, read_plan, with_passed
from mesh.agent.link.tls import tls_context
from mesh.protocol.frames import Decoder, FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh.protocol.frames import Header
    from mesh.protocol.frames import Header as Value

NOT_BEGUN = 125
KEY, VARIABLES = "key", "variables"  # files of the Secret
AGENT, OPENING, LIBRARY, BOOT = "agent.zip", "opening", "library", "boot"  # members of this program
OWN = ("MESH_POD_NAME", "MESH_POD_ADDRESS", "MESH_POD_SLICE", "MESH_POD_ATTEMPT", "MESH_POD_RUN", "MESH_FIRST_POD")
INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in each pod of an Indexed Job
ANSWER_TIMEOUT_S = 60.0  # of an agent, for what does not take long
MET_TIMEOUT_S = 20.0  # for agents to meet; as in engine/supervisor/introduction.py, and more


class NotBegun(Exception):
    """The reason why there is no run."""


class Inbox:
    """The messages of the pod's agent and of the other pods, in one queue."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[str, object]] = queue.Queue()
        self._kept: dict[str, object] = {}
        self.may_end = False  # the agent keeps the run by itself, and may end with it
        self._is_ended = False  # the agent has

    def take_message(self, header: Header) -> None:
        """Take a message of the agent."""
        kind = header.get("type")
        if kind in ("failed", "busy"):
            told = header.get("message") or "another run is in this pod"
            self._queue.put(("failed", f"{header.get('step', 'lock')}: {told}"))
        elif kind in WANTED:
            self._queue.put((str(kind), header))

    def take_round(self, values: list[Value]) -> None:
        """Take the values of all pods."""
        self._queue.put(("round", values))

    def fail(self, why: str) -> None:
        """Note that the meeting is over."""
        self._queue.put(("failed", why))

    def end(self, why: str) -> None:
        """Note that the agent has ended."""
        self._queue.put(("ended", why))

    def message(self, kind: str, limit: float | None = None) -> Header:
        """Return the agent's next message of a kind. Raises NotBegun for a failure, or after so many seconds."""
        found = self._wait(kind, limit)
        assert isinstance(found, dict)
        return found

    def values(self, limit: float | None = None) -> list[Value]:
        """Return the values of the next round. Raises as ``message``."""
        found = self._wait("round", limit)
        assert isinstance(found, list)
        return found

    def _wait(self, kind: str, limit: float | None) -> object:
        until = None if limit is None else time.monotonic() + limit
        while kind not in self._kept:
            if self._is_ended and kind in WANTED:
                raise NotBegun("its agent has ended")
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                found, value = self._queue.get(timeout=left)
            except queue.Empty:
                raise NotBegun(f"no answer ({kind}) after {limit:g} s") from None
            self._is_ended = self._is_ended or found == "ended"
            if found == "failed" or (self._is_ended and not self.may_end):
                raise NotBegun(str(value))
            self._kept[found] = value
        return self._kept.pop(kind)


WANTED = ("locked", "ready", "started", "detached", "stays-attached", "introduced")


class Part:
    """This pod's part of the run, up to the moment at which it goes on by itself."""

    def __init__(self, plan: Header, secret: str, program: zipfile.ZipFile, node: int) -> None:
        """secret: the directory of the job's Secret; node: the number of this pod"""
        self._plan, self._program, self._node = plan, program, node
        with open(os.path.join(secret, KEY)) as file:
            self._key = file.read()
        with open(os.path.join(secret, VARIABLES)) as file:
            self._variables: dict[str, str] = json.load(file)
        self._inbox = Inbox()
        self._member: Member | None = None
        self.agent: Agent | None = None
        self._may_be_alone = False  # the agent may keep its ranks without this program
        self.run = ""

    def begin(self) -> None:
        """Begin the run together with all other pods. Raises NotBegun, and MeetingOver; then no rank is left."""
        plan, inbox = self._plan, self._inbox
        pods = self._meet()
        attempt = os.environ.get("MESH_POD_ATTEMPT") or "0"
        mine = self._mine()
        own = filled(mine, self.run, attempt, pods, self._variables, plan.get("secret", ""))
        argv = [plan["python"], "-I", "-S", "-c", self._program.read(BOOT).decode()]
        environ = {name: value for name, value in os.environ.items() if name not in (*OWN, INDEX)}
        self.agent = agent = Agent(argv, environ, self._program.read(OPENING), self._program.read(AGENT))
        begin = own["begin"]
        now = time.time()
        begin["marker"] = os.urandom(16).hex()
        begin["about"]["since"] = begin["plan"]["created"] = now
        if begin["owner"]:
            begin["owner"]["since"] = now
        agent.begin(begin, inbox.take_message, inbox.end)
        inbox.message("locked", ANSWER_TIMEOUT_S)
        self._round({})
        agent.ask(own["prepare"], self._program.read(LIBRARY))
        ready = inbox.message("ready")
        if ready.get("status"):
            raise NotBegun(f"{own['prepare']['program']}: no such command, or not executable")
        self._round({})
        start = own["start"]
        env = {**own["prepare"]["finds"]["env"], **ready["interfaces"]}
        start["finds"] = {**own["prepare"]["finds"], "env": env}
        agent.order(start)
        for _ in start["ranks"]:
            inbox.message("started", ANSWER_TIMEOUT_S)
        self._may_be_alone = True
        agent.order({"type": "detach"})
        inbox.message("detached", ANSWER_TIMEOUT_S)
        inbox.may_end = True
        self._round({})

    def introduce(self) -> None:
        """Have the agents meet, so that a failure in one pod ends the run in all."""
        assert self.agent is not None
        plan, inbox, agent = self._plan, self._inbox, self.agent
        if not plan["introduce"]:
            return
        request = {"type": "introduce", "node": self._node, "host_grace": plan["host_grace"], "credentials": self._key}
        port = 0
        if not self._node:
            agent.order({**request, "address": "", "port": 0})
            port = int(inbox.message("introduced", ANSWER_TIMEOUT_S)["port"])
        first = self._round({"port": port, "address": os.environ.get("MESH_POD_ADDRESS", "")})[0]
        if self._node and first["port"]:
            agent.order({**request, "address": first["address"], "port": first["port"]})
            met = inbox.message("introduced", MET_TIMEOUT_S)
            if met["reason"]:
                sys.stderr.write(f"this pod does not meet the first one: {met['reason']}\n")
        self._round({})

    def leave(self) -> None:
        """Leave the agent, and the meeting."""
        if self.agent is not None:
            self.agent.leave()
        if self._member is not None:
            self._member.leave()

    def fail(self, why: str) -> None:
        """Report a failure to all other pods, and end what has begun here."""
        if self.agent is not None and self._may_be_alone:
            self.agent.order({"type": "kill"})
        if self._member is not None:
            try:
                self._member.send({"failed": why})
            except MeetingOver:
                pass

    def _meet(self) -> Sequence[Mapping[str, str]]:
        """Wait until all pods are there; return name and address of each."""
        plan, inbox = self._plan, self._inbox
        limit, count = float(plan["start_timeout"]), int(plan["nodes"])
        address, port = os.environ["MESH_FIRST_POD"], int(plan["port"])
        if not self._node:
            Host(tls_context(self._key, server=True), listener(port), count).start()
            address = "127.0.0.1"
        self._member = member = Member(tls_context(self._key, server=False), (address, port), self._node, limit)
        import threading

        threading.Thread(target=member.listen, args=(inbox.take_round, inbox.fail), daemon=True).start()
        own = {"name": os.environ["MESH_POD_NAME"], "address": os.environ["MESH_POD_ADDRESS"]}
        member.send({**own, "run": os.environ.get("MESH_POD_RUN") or new_run_id(time.time())})
        try:
            pods = inbox.values(limit)
        except NotBegun as error:
            raise NotBegun(f"not all {count} pods have met: {error}") from None
        self.run = str(pods[0]["run"])
        return pods

    def _round(self, value: Value) -> list[Value]:
        """Wait until all pods have come so far; return the value of each. Prerun may take long elsewhere."""
        assert self._member is not None
        self._member.send(value)
        return self._inbox.values()

    def _mine(self) -> Header:
        """Return this pod's requests, with the environment that it shares with all pods."""
        plan, own = self._plan, self._plan["pods"][self._node]
        env = with_passed({**plan["env"], **own["env"]}, plan.get("passed", ()), sorted(self._variables))
        finds = {"env": env, "interface": plan["interface"], "targets": own["targets"]}
        start = {"type": "start", "argv": own["argv"], "ranks": own["ranks"], "finds": None, "detach": True}
        begin = {**plan["begin"], "node": self._node, "ports": plan["begin"]["ports"] if not self._node else []}
        return {"begin": begin, "prepare": {**plan["prepare"], "finds": finds, **own["prepare"]}, "start": start}


def status_of(remote_dir: str, run: str, node: int) -> int:
    """Return the exit status of a run in this pod by its journal: that of the first rank that failed there.

    NOT_BEGUN if no journal has it.
    """
    ended, place = [], os.path.join(remote_dir, "machines")
    for machine in os.listdir(place) if os.path.isdir(place) else ():
        try:
            with open(os.path.join(place, machine, f"tape-{run}-{node}", "facts"), "rb") as file:
                frames = Decoder().feed(file.read())
        except (OSError, FrameError):
            continue
        ended += [header for header, _ in frames if header.get("type") == "exited"]
    if not ended:
        return NOT_BEGUN
    codes = [128 + one["signal"] if one.get("signal") else one.get("code") or 0 for one in ended]
    return next((code for code in codes if code), 0)


def node_of(plan: Header) -> int:
    """Return the number of this pod, counted through all slices. Raises BadPlan."""
    try:
        node = int(os.environ.get("MESH_POD_SLICE") or 0) * int(plan["per_slice"]) + int(os.environ[INDEX])
    except (KeyError, ValueError):
        raise BadPlan(f"{INDEX} is not set: this is no pod of an Indexed Job") from None
    if not 0 <= node < len(plan["pods"]):
        raise BadPlan(f"the plan has {len(plan['pods'])} pods, and this is number {node}")
    return node


def main(words: Sequence[str]) -> int:
    """Run this pod's part; return the exit status."""
    part: Part | None = None

    def end(number: int, frame: object) -> None:
        """Pass SIGTERM on to the agent, and stay until it has ended its ranks."""
        if part is None or part.agent is None:
            sys.exit(128 + number)
        part.agent.terminate()

    signal.signal(signal.SIGTERM, end)
    try:
        with open(words[0]) as file:
            plan = read_plan(file.read())
        part = Part(plan, words[1], zipfile.ZipFile(sys.argv[0]), node_of(plan))
        part.begin()
    except (NotBegun, MeetingOver, BadPlan, OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"the run has not begun: {error}\n")
        if part is not None:
            part.fail(str(error))
            part.leave()
            if part.agent is not None:
                part.agent.process.wait()
        return NOT_BEGUN
    try:
        part.introduce()
    except (NotBegun, MeetingOver) as error:  # where the run has ended by now, there is nobody to meet
        sys.stderr.write(f"the pods have not met again: {error}\n")
    part.leave()
    assert part.agent is not None
    part.agent.process.wait()
    return status_of(plan["begin"]["remote_dir"], part.run, node_of(plan))


def run(words: Sequence[str]) -> None:
    """Run this pod's part, and end this process with the exit status.

    Its daemon threads end with it. In an image without libgcc_s.so.1 they would make the interpreter's own end abort.
    """
    try:
        status = main(words)
    except SystemExit as ended:  # by SIGTERM
        status = int(ended.code or 0)
    except Exception:
        traceback.print_exc()
        status = NOT_BEGUN
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run(sys.argv[1:])
