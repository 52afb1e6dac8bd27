"""The agent's loop: requests and beats come in on stdin, frames go out on stdout, processes in between.

Nothing in the loop blocks: what takes long is an errand, a process of its own, and what is little a chore, in a thread.
The loop alone forks, for which a chore is waited for.
"""

from __future__ import annotations

import gc
import os
import select
import time

from . import cgroups
from .client import Client, release
from .delivery import Delivery
from .detachment import Detachment
from .doors import bring_channel, containers_of, other_runs, send_over
from .ending import REAPED, Ending
from .errand import Chore, Errand, hint, why
from .frames import Decoder, FrameError
from .lean import deque, partial, signal
from .locking import Locking, cgroup_of
from .messages import ENCLOSED_BYTES, REQUEST_BYTES, first, request
from .outbox import Outbox
from .outfit import Outfit
from .processes import Process, descendants, look_at
from .spawning import close_inherited, first_environment
from .spool import Spool
from .state import State, is_home_read_only, machine_directory, machine_id, stand_in
from .visits import Visits
from .work import GATHER, Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .frames import Frame
    from .guardian import Guardian
    from .preparation import Preparation
    from .pull import Pull
    from .spare import Spare

SOON = 0.2  # seconds in which the first request comes, unless the agent is kept
PATIENCE = 1.0  # seconds for a chore, once everything is to end: it takes no further step
WAITING = 900.0  # seconds for the first request; longer than any client keeps an agent waiting
# Requests that do not wait for the step that is under way.
AT_ONCE = frozenset(("beat", "ack", "signal", "kill", "finish", "bye", "over"))
STUCK_LIMIT_S = 10.0  # while processes are being ended, the loop turns at least this often


class Agent:
    """Everything one agent knows. Built from the first frame; every other frame has a method do_TYPE.

    What few runs need is imported where they need it: an agent's start is paid on every host of every run.
    """

    def __init__(
        self,
        client: Client,
        begin: dict[str, Any],
        rest: list[Frame],
        guardian: Guardian,
        spare: Spare | None = None,
    ) -> None:
        """rest: frames that came with the first; spare: what waits to become the first rank"""
        self.client, self.begin, self.guardian = client, begin, guardian
        self.environment = first_environment()
        self.requests: deque[Frame] = deque(rest)  # that have not been obeyed yet
        self.obeyed = 0  # the number of the last order: those that are sent again are known by it
        place = machine_directory(begin["remote_dir"])
        self.out = Outbox(Spool(os.path.join(place, f"spool-{begin['run']}-{begin['node']}"), begin["spool"]))
        self.began = time.time()
        self.terminated = False  # somebody sent us SIGTERM
        self.parent = os.getppid()
        self.signalled = False  # the client had us signal the ranks
        self.failed = False
        self.share = f"share-{begin['run']}-{begin['node']}" if begin["share"] else ""
        links = begin["workspace_links"]
        self.state = State(begin["remote_dir"], begin["project"], self.share, links)
        self.errand: Errand | Chore | None = None  # what is under way; the next request waits for it
        self.is_leaving = False  # the processes have ended, and the last errand is under way
        self.delivery = Delivery(self, self.state, begin["run"])
        self.detachment = Detachment(self)
        self.locking = Locking(self, guardian)
        self.outfit = Outfit(self)
        self.preparation: Preparation | None = None  # of prerun, if there is any
        self.visits = Visits(self)
        self.work = Work(self)
        self.pull: Pull | None = None
        self.enclosed = b""  # what the client has sent for a question
        self.over: list[str] = []  # other runs here whose clients are over
        self.containers = containers_of(begin["remote_dir"], begin["run"], begin["node"])
        self.ending = Ending()
        self.spare = spare
        if spare is not None:
            self.ending.cgroup, self.ending.ours = spare.cgroup, spare.pid
        self.is_moved = False  # HOME is read-only, and what we keep is in /tmp
        self.is_clear = False  # every process of the run is gone, or named
        self.gather_until = 0.0  # monotonic: what is sent before may wait for more that goes with it

    # ---- the loop

    def run(self, marker: bytes) -> None:
        """Serve until every process of the run is gone and the client knows it, or is gone itself.

        marker: what our greeting begins with
        """
        self.out.precede(marker)
        self.wake, wake_end = os.pipe()
        for descriptor in (self.wake, wake_end, self.client.channel, self.out.channel):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self.on_signal)
        try:
            self.greet()
            if self.begin["lock"]:
                self.locking.do_lock({}, b"")
            self.obey_all()
        finally:  # what came of it goes along
            self.flush()
        try:
            while not self.is_done():
                self.serve(self.poll())
        finally:
            self.visits.close()
            self.locking.close()
            self.out.close()
            self.detachment.close()

    def on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            self.terminated = True

    def is_done(self) -> bool:
        """Nothing is left to be done, and the client knows it, or will never."""
        if self.client.is_detached:
            return self.is_clear and self.client.has_heard_last() and not self.detachment.is_needed
        return self.is_clear and (self.out.is_acknowledged or time.monotonic() > self.client.given_up_at())

    def poll(self) -> set[int]:
        """Wait for the next thing to do; return the ready descriptors."""
        now = time.monotonic()
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        moments = [self.work.next(now), float("inf") if self.is_clear else self.ending.next()]
        if self.is_clear or not self.ending.ordered:
            moments.append(self.client.given_up_at())
        if self.locking.is_waiting:
            moments.append(now + GATHER)
        if self.out.is_moving or (self.requests and self.errand is None):  # these came right behind the first
            moments.append(now)
        moments.append(self.detachment.next())
        if self.client.is_detached and self.is_clear:  # until the client has left
            moments.append(now + 1.0)
        for descriptor in self.detachment.followers.descriptors():
            poll.register(descriptor, select.POLLIN)
        for descriptor, events in [*self.detachment.events().items(), *self.work.events(now)]:
            poll.register(descriptor, events)
        if self.client.channel >= 0:
            poll.register(self.client.channel, select.POLLIN)
        if self.out and now < self.gather_until:
            moments.append(self.gather_until)
        elif self.out:
            poll.register(self.out.channel, select.POLLOUT)
        if self.visits.door is not None:
            poll.register(self.visits.door.fileno(), select.POLLIN)
        if self.preparation is not None and self.preparation.words >= 0:
            poll.register(self.preparation.words, select.POLLIN)
        if self.errand is not None:
            poll.register(self.errand.answer, select.POLLIN)
        if self.pull is not None and self.pull.channel >= 0 and self.pull.events(self.out.has_room):
            poll.register(self.pull.channel, self.pull.events(self.out.has_room))
        moments.append(self.locking.silence_at())
        self.guardian.renew(self.must_turn_by(now))
        wait = max(0.0, min(moments) - now)
        return {descriptor for descriptor, _ in poll.poll(min(wait, 3600.0) * 1000 + 0.5)}

    def must_turn_by(self, now: float) -> float:
        """Return the monotonic time until which ranks may live without another turn of this loop."""
        if self.ending.ordered and not self.is_clear:
            return max(now, self.ending.kill_at()) + STUCK_LIMIT_S
        return max(now, self.client.given_up_at())

    def serve(self, ready: set[int]) -> None:
        if self.wake in ready:
            drain(self.wake)
            self.reap()
        if self.client.channel in ready:
            self.receive()
        if self.out.channel in ready:
            self.flush()
        if self.visits.door is not None and self.visits.door.fileno() in ready:
            self.visits.receive(self.visits.door)
        if self.preparation is not None and self.preparation.words in ready:
            self.preparation.listen()
        if self.errand is not None and self.errand.answer in ready:
            self.errand.listen()
            if self.errand.is_done:
                self.end_errand()
        if self.pull is not None and self.pull.channel in ready:
            self.relay_pull(self.pull)
        self.work.serve(ready)
        for told in self.detachment.followers.listen(ready):
            self.obey(told, b"")
        self.detachment.meet(ready)
        self.look_at_the_clock()
        self.obey_all()
        self.detachment.write()

    # ---- the channel

    def flush(self) -> None:
        if not self.out.flush():
            self.lose_channel()

    def receive(self) -> None:
        try:
            for header, data in self.client.receive():
                header = request(header)
                number = header.get("n", 0)
                if number and number <= self.obeyed:
                    continue
                self.obeyed = number or self.obeyed
                if header["type"] in AT_ONCE:
                    self.obey(header, data)
                else:
                    self.requests.append((header, data))
        except FrameError as error:
            self.refuse(error)
        if self.client.channel < 0:
            self.lose_channel()

    def lose_channel(self) -> None:
        """Both ways, so that the client notices as well."""
        self.client.lose_channel()
        release(2)  # sshd tells the end of a channel only when this is closed as well
        if self.out.channel >= 0:
            release(self.out.channel)
            self.out.channel = -1

    def refuse(self, error: FrameError) -> None:
        """End the run of a client that has sent what is no request. A detached run only loses that client."""
        if self.client.is_detached:
            self.lose_channel()
            return
        self.client.refuse()
        self.fail("agent", f"its client does not speak our protocol: {error}")
        self.finish(signal.SIGTERM, self.begin["grace"])

    def obey(self, header: dict[str, Any], data: bytes) -> None:
        name = "do_" + header["type"]
        parts = (self, self.delivery, self.locking, self.outfit, self.work, self.detachment)
        try:
            getattr(next((part for part in parts if hasattr(part, name)), self), name)(header, data)
        except FrameError as error:
            self.refuse(error)

    def obey_all(self) -> None:
        """What the client has asked for, up to where something must be waited for."""
        while self.requests and self.errand is None:
            self.obey(*self.requests.popleft())

    def send_on_errand(self, work: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], None]) -> None:
        """Have something done that takes long; then is called with the answer. Raises OSError."""
        self.errand = Errand(work, then)

    def begin_chore(self, work: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], None]) -> None:
        """Have something done that is little; then is called with the answer. Raises OSError."""
        self.errand = Chore(work, then)

    def end_errand(self) -> None:
        ended, self.errand = self.errand, None
        assert ended is not None
        self.ending.look_now()
        ended.end()

    def is_over(self) -> bool:
        """True once nothing more is to be begun."""
        return self.failed or self.ending.ordered

    def is_done_with(self) -> bool:
        """Nothing of the run is left or held here: who hears that need not ask us to end it."""
        held = self.begin["owner"] or self.share or self.outfit.has_claimed or self.containers.used()
        return not (held or self.is_over() or self.client.is_detached) and self.ending.is_empty()

    def fail(self, step: str, message: str, hint: str = "", killed_by: int | None = None) -> None:
        """Send the first failure. killed_by: the signal that ends this agent, 0 for one that its guardian got"""
        if not self.failed:
            self.failed = True
            told = {"step": step, "message": message, "hint": hint, "time": time.time()}
            if killed_by is not None:
                told["signal"] = killed_by
            self.out.send({"type": "failed", **told})

    # ---- before the ranks

    def greet(self) -> None:
        """Say who we are."""
        self.out.send(
            {
                "type": "hello",
                "pid": os.getpid(),
                "time": time.time(),
                "machine": machine_id(),
                "runs": other_runs(self.begin["run"]),
            }
        )

    def do_ask(self, header: dict[str, Any], data: bytes) -> None:
        """Answer a question. Without a run we may block; a pull answers when everything was sent."""
        try:
            if self.work.ranks:  # about them
                tell = partial(_tell_stacks, self.visits.about(), self.begin["remote_dir"])
                self.send_on_errand(tell, self._send_stacks)
                return
            if header["question"] == "pull":
                from .pull import Pull

                self.visits.make_door()
                self.pull = Pull(header["paths"], self.state.workspace)
                return
            from .questions import answer

            if header["question"] == "stacks" and not ("run" in header and "tool" in header):
                raise FrameError("ask: stacks of no run")
            question = {**header, "over": self.over}
            self.guardian.renew(float("inf"))  # it may take longer than the lease; there are no ranks
            self.out.send({"type": "answer", "answer": answer(question, self.begin["remote_dir"], self.enclosed)})
        except OSError as error:
            self.fail("home", why(error), hint(error))

    def _send_stacks(self, found: dict[str, Any]) -> None:
        """Send stacks, or the reason why there are none: a signal for the ranks ends what looks at them too."""
        if "error" in found:
            notes = [[found["error"], found.get("hint", "")]]
            found = {"ranks": [], "silent": False, "stacks": [], "notes": notes}
        self.out.send({"type": "answer", "answer": found})

    def do_enclosed(self, header: dict[str, Any], data: bytes) -> None:
        """A piece of what the next question comes with."""
        if len(self.enclosed) + len(data) > ENCLOSED_BYTES:
            raise FrameError(f"enclosed: more than {ENCLOSED_BYTES} bytes")
        self.enclosed += data

    def do_reply(self, header: dict[str, Any], data: bytes) -> None:
        """What the client says to a pull."""
        if self.pull is not None:
            self.pull.give(data)

    def relay_pull(self, pull: Pull) -> None:
        """Hand on what a pull says, no faster than the client takes it: the spool is for what cannot wait."""
        pull.write()
        while self.out.has_room:
            data = pull.read()
            if not data:
                break
            self.out.send({"type": "piece"}, data)
            self.flush()
        self.tell_pull(pull)

    def tell_pull(self, pull: Pull) -> None:
        if not pull.is_over or self.is_over():
            return
        if pull.status == 0:
            self.out.send({"type": "answer", "answer": {}})
        else:
            self.fail("pull", "the process that reads the files was killed", "is there memory left on the host?")
        self.flush()

    def reap(self) -> None:
        """Take note of every child that has ended; orphans of the run are our children too."""
        self.ending.look_now()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self.work.has_ended(pid, status):
                continue
            if self.spare is not None and pid == self.spare.pid:
                self.spare.pid = 0
                self.dismiss_spare()
                continue
            if self.errand is not None and pid == self.errand.pid:
                self.end_errand()
            elif self.preparation is not None and pid == self.preparation.pid:
                self.preparation.ended(status)
            elif self.pull is not None and pid == self.pull.pid:
                self.pull.status = status
                self.tell_pull(self.pull)
            else:
                self.delivery.has_ended(pid)

    def dismiss_spare(self) -> None:
        """Nothing more is to become of it; something may have."""
        if self.spare is not None:
            self.spare.dismiss()
            self.spare, self.ending.ours = None, 0

    # ---- the end

    def do_beat(self, header: dict[str, Any], data: bytes) -> None:
        answer = {"type": "beat", "echo": header["time"], "time": time.time(), "orders": self.obeyed}
        self.out.answer(answer, time.monotonic())  # it goes with what it came with brings about

    def do_ack(self, header: dict[str, Any], data: bytes) -> None:
        """The client has our stream up to a place."""
        self.out.acknowledge(header["place"])
        self.flush()

    def do_bye(self, header: dict[str, Any], data: bytes) -> None:
        """The client leaves on purpose: we end the run by ourselves."""
        if self.client.is_detached:
            self.lose_channel()
            return
        self.client.leave()
        self.finish(signal.SIGTERM, self.begin["grace"])

    def do_over(self, header: dict[str, Any], data: bytes) -> None:
        """Tell other agents on this machine that their runs have ended: their clients are over."""
        self.over = header["runs"]
        send_over(self.over)

    def abandon(self) -> None:
        """End the run because its client is over. Keep what that client has not received."""
        if not self.client.is_detached:
            self.detachment.keep()
            self.client.leave()
            self.finish(signal.SIGTERM, self.begin["grace"])

    def do_signal(self, header: dict[str, Any], data: bytes) -> None:
        self.detachment.note_end(header.get("cause", "signal"), header["signal"], header.get("more", {}))
        self.dismiss_spare()
        self.signalled = True
        self.out.release()
        if self.detachment.is_said_again(header["signal"]):
            self.ending.kill_by(header["grace"])
            return
        self.ending.signal(header["signal"], header["grace"])

    def do_kill(self, header: dict[str, Any], data: bytes) -> None:
        self.dismiss_spare()
        self.signalled = True
        self.out.release()
        self.ending.kill_by(0.0)

    def do_finish(self, header: dict[str, Any], data: bytes) -> None:
        self.finish(header["signal"], header["grace"])

    def finish(self, number: int, grace: float) -> None:
        """End whatever is left of the run; then we leave."""
        self.dismiss_spare()
        self.out.release()
        if self.work.is_set_up() and not self.signalled:
            self.leave_setup()
        elif not self.ending.ordered:
            self.requests.clear()
            if self.errand is None:
                self.delivery.drop()
            else:  # a process ends like all others
                self.delivery.stop()
            self.ending.order(number, grace)
            if self.preparation is not None:
                self.preparation.release()  # after the signal, which is not for what its EXIT trap runs

    def leave_setup(self) -> None:
        """What a setup that ended by itself has left in the background is there on purpose."""
        if not self.is_clear:
            self.ending.ordered = True
            self.containers.stop(0.0)  # it has used none of the scripts: they are removed
            self.take_leave([], stays=descendants(os.getpid()))

    def look_at_the_clock(self) -> None:
        self.work.look_at_the_clock()
        self.locking.try_again()
        self.locking.note_silence()
        if self.terminated and not self.ending.ordered:
            orphaned = os.getppid() != self.parent
            reason = "its guardian was killed" if orphaned else "the agent was told to end (SIGTERM)"
            self.detachment.lose(reason)
            self.fail("agent", reason, killed_by=0 if orphaned else int(signal.SIGTERM))
            self.finish(signal.SIGTERM, self.begin["grace"])
        self.detachment.decide()
        if not self.ending.ordered and time.monotonic() > self.client.given_up_at():
            self.fail("agent", self.client.why())
            if not self.client.was_killed():
                self.detachment.keep()
            self.finish(signal.SIGTERM, self.begin["grace"])
        if not self.is_clear and not self.is_leaving:
            left = self.ending.step()
            stuck = self.stuck()
            if left is not None and time.monotonic() >= self.ending.ordered_at + self.patience(stuck):
                self.clean_up([*left, *stuck])

    def stuck(self) -> list[Process]:
        """The thread that a disk holds up, if one does: not even our end is its end."""
        if not isinstance(self.errand, Chore) or not self.ending.ordered:
            return []
        found = [thread for thread in look_at([self.errand.thread]) if thread.state == "D"]
        for thread in found:
            thread.pid = os.getpid()  # as people know it
        return found

    def patience(self, stuck: list[Process]) -> float:
        """For how many seconds a chore is waited for. Any other one ends when we leave."""
        if isinstance(self.errand, Chore):
            return REAPED if stuck else PATIENCE
        return 0.0

    def clean_up(self, left: list[Process]) -> None:
        """Every process is gone, or named: what takes long is left to an errand."""
        busy: list[str] = []
        if self.outfit.has_claimed:
            from . import devices

            busy = devices.blocked(devices.find(self.begin["devices"]))
        if not busy and not self.share and not self.containers.used():
            self.containers.stop(0.0)
            self.take_leave([process.told() for process in left])
            return
        patience, grace = self.begin["device_patience"], 0.0 if self.ending.is_hard else self.begin["grace"]
        if busy or self.containers.used():
            text = f"waiting for {', '.join([*busy, *['containers'] * self.containers.used()])}"
            self.out.send_urgently({"type": "notice", "text": text, "seconds": patience + grace})
            self.flush()
        self.is_leaving = True
        told = [process.told() for process in left]
        workspace = self.state.workspaces if self.share else ""
        work = partial(_clean_up, partial(self.containers.stop, grace), workspace, busy, patience)
        try:
            self.send_on_errand(work, lambda answer: self.take_leave(told + answer.get("left", [answer.get("error")])))
        except OSError as error:
            self.take_leave([*told, f"no process to look at {', '.join(busy)}: {why(error)}"])
        else:
            assert self.errand is not None
            self.ending.ours = self.errand.pid

    def take_leave(self, left: list[str], stays: list[Process] | None = None) -> None:
        """Everything is done: tell what the processes printed last, and leave.

        left: what is still there and why, one line each
        """
        self.reap()
        self.delivery.drop()
        self.work.tell_all()
        self.detachment.done()
        self.locking.withdraw()
        told = {"left": left, "stays": [process.told() for process in stays or []]}
        if self.out.is_behind:
            self.out.send_urgently({"type": "clear", **told})
        if not self.client.has_left or self.detachment.is_kept:
            self.out.send({"type": "gone", **told})
        cgroups.remove(self.ending.cgroup)
        self.locking.unlock()  # the client may fetch the rest of the output much later
        self.is_clear = True
        self.flush()


def _tell_stacks(about: dict[str, Any], remote_dir: str) -> dict[str, Any]:
    from . import stacks  # in the errand: what happens there ends no run

    return stacks.tell([about], remote_dir, {}, b"")


def _clean_up(
    stop_containers: Callable[[], list[str]], workspace: str, busy: list[str], patience: float
) -> dict[str, Any]:
    """Stop containers, wait until devices are free, and remove the copy that a run had for itself."""
    left = stop_containers()
    if busy:
        from . import devices

        left += devices.wait_until_free(busy, patience)
    if workspace:
        import shutil

        shutil.rmtree(workspace, ignore_errors=True)
        if os.path.exists(workspace):
            left.append(f"cannot remove {workspace}")
    return {"left": left}


def drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


def main(before: bytes, guardian: Guardian) -> None:
    """Read the first frame, answer with its marker, and do what it says: begin a run, or bring it a channel.

    before: what has been read already
    """
    close_inherited()
    decoder = Decoder(REQUEST_BYTES)
    spare = None
    try:
        frames = decoder.feed(before)
        if not frames and not select.select([0], [], [], SOON)[0]:
            # We are kept for a later command: what it may need is there then.
            from . import devices, network, sync  # noqa: F401

            cgroups.own("memory")
            gc.freeze()
            spare = _make_spare()
        while not frames:
            # One that is kept waits for the next command; its connection may be dead without a word.
            chunk = os.read(0, 65536) if select.select([0], [], [], WAITING)[0] else b""
            if not chunk:
                _forget(spare)
                return
            frames = decoder.feed(chunk)
        begin, *rest = ((first if place == 0 else request)(header) for place, (header, _) in enumerate(frames))
    except FrameError as error:
        _forget(spare)
        os.write(2, f"its client does not speak our protocol: {error}\n".encode("utf-8", "replace"))
        return
    others = [(header, data) for header, (_, data) in zip(rest, frames[1:])]
    marker = b"\n%s\n" % begin["marker"].encode()
    if begin["type"] == "begin":
        group = os.path.basename(spare.cgroup) if spare is not None else ""
        is_moved = not begin["needs_home"] and is_home_read_only(begin["remote_dir"])
        if is_moved:
            begin["remote_dir"] = stand_in(begin["remote_dir"])
        guardian.hear_of(begin["run"], begin["node"], begin["remote_dir"], group or cgroup_of(begin))
        agent = Agent(Client(decoder, begin["lease"], begin["return_within"]), begin, others, guardian, spare)
        agent.is_moved = is_moved
        agent.run(marker)
        return
    _forget(spare)
    os.write(1, marker)
    if begin["type"] == "channel":
        bring_channel(begin)
    else:
        from .following import follow

        follow(begin, decoder, others)


def _forget(spare: Spare | None) -> None:
    """There is to be no rank."""
    if spare is not None:
        spare.dismiss()
        cgroups.remove(spare.cgroup)


def _make_spare() -> Spare | None:
    from .spare import Spare

    def end(number: int, frame: object) -> None:
        """Before there is a run, which has its own way to end: our guardian may be gone, and sees to nothing."""
        _forget(spare)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        spare = Spare(os.getppid())
        signal.signal(signal.SIGTERM, end)
    except OSError:  # there is no process to have: the rank's own will tell
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    return spare
