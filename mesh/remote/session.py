"""The local end of one agent: requests out, events in. One per host; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from mesh.core.errors import HostUnreachable
from mesh.core.events import (
    AsksPassword,
    Connected,
    Event,
    Heard,
    HostNotice,
    LeftOut,
    Lost,
    Output,
    PrepareFailed,
    Reconnecting,
    Stream,
)
from mesh.core.interfaces import Channel
from mesh.core.module import ModuleStep
from mesh.core.nodes import Arrived
from mesh.core.text import one_line
from mesh.protocol import answers, nodes
from mesh.protocol.answers import ANSWERS, Lacks, Owner
from mesh.protocol.first import Channel as ChannelRequest
from mesh.protocol.first import First, Program
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import Message, Table, encode
from mesh.protocol.requests import Ack, Bye, Lock, Over
from mesh.remote import ending
from mesh.remote.blob import blob, lacking, opening
from mesh.remote.callbacks import Callbacks
from mesh.remote.events import event_of
from mesh.remote.greeting import MAX_BANNER_BYTES, new_marker, refusal
from mesh.remote.owners import owner_line
from mesh.remote.requests import Requests

if TYPE_CHECKING:
    from mesh.protocol.frames import Header

ACKNOWLEDGED_BYTES = 128 << 10  # of an agent's stream that are acknowledged together
HEADER_BYTES = 1 << 20  # of a message; lists of processes and paths are the longest
ANSWER_BYTES = 16 << 20  # of the message that answers a question: stacks, or all detached runs of a host


class Session(Requests):
    """Talks to one agent, through one channel after the other.

    ``events`` is for the host's own thread; the other methods may be called from any. None of them raises when the
    channel is gone: ``events`` shows what became of it. From the start of the ranks on, orders are numbered and sent
    again through the next channel, until the agent has confirmed them.

    Every message is checked by the table and against what was asked for (asked.py) where it is read.
    """

    _table: ClassVar[Table[Message]] = ANSWERS
    _first_step: ClassVar[str] = "python"  # that fails where the host does not greet as ours do

    def __init__(
        self, node: int, first_rank: int, channel: Channel, callbacks: Callbacks | None = None, address: str = ""
    ) -> None:
        """address: by which the other hosts reach this one, as the backend has it"""
        self.node = node
        super().__init__(channel, self._table.sizes)
        self._callbacks, self._address = callbacks or Callbacks(), address
        self._received_at = time.monotonic()  # when the last bytes came
        self.waiting = False  # for bytes of the channel; the host is silent only while a thread reads it
        self.place = 0  # how much of the agent's stream has come, in bytes: whole frames
        self._acknowledged = 0
        self._taken_over: set[str] = set()  # runs whose owner was dead
        self._has_brought = False  # a second channel was offered to the agent
        self._is_detached = False  # the agent goes on without us
        self._first_rank = first_rank
        self._streams: dict[tuple[object, object], tuple[int, Stream]] = {}  # of which there was output, as it is named
        self._is_greeted = False  # a message has come from a program of our version
        self._cgroup = ""  # where the run's processes are there, in case that its agent is killed
        self._over = False  # the last event was posted, or is about to be
        self._why = ""  # the last channel ended
        self._why_hung_up = ""  # if we did, to try another one
        self.absence = ending.Absence()
        self.opened = time.monotonic()  # when the channel was
        self.awaits_login = True  # the login on the host has not started our program
        self._login_limit = 0.0  # seconds that it had for that, once they are over

    @property
    def active_at(self) -> float:
        """Return when bytes were last received or sent, on the monotonic clock."""
        return max(self._received_at, self._sender.sent_at)

    def acknowledge(self, place: int, *, now: bool = False) -> None:
        """Note that the stream up to this place is here for good; now: send that to the agent at once."""
        if (now or place - self._acknowledged >= ACKNOWLEDGED_BYTES) and not self._sender.given_up:
            self._acknowledged = place
            self._send(Ack(place=place))

    def leave(self) -> None:
        """Leave the agent for good, whatever it is doing: it ends the run, unless that is detached."""
        self._asked.end()
        if self._sender.give_up(ending.GIVEN_UP) and not self._over:
            self._send(Bye())

    def try_another(self, reason: str) -> None:
        """End a silent channel, and try another one if the agent listens for it."""
        if self._may_come_back:
            self._why_hung_up = reason
            self._sender.channel.close()

    def end_login(self, limit: float) -> None:
        """Close a channel whose login has not started our program. limit: the seconds that it had"""
        self._login_limit, self.awaits_login = limit, False
        self._sender.channel.close()

    def give_up(self, reason: str) -> None:
        """Hang up on a host that has fallen silent: it is lost for that reason."""
        self._sender.given_up = reason
        self._sender.channel.close()

    def close(self) -> None:
        """Hang up for good: the agent ends whatever is left by itself."""
        self._sender.give_up(ending.GIVEN_UP)
        self._sender.channel.close(leave=self._is_detached)

    # ---- events

    def events(self) -> Iterator[Event]:
        """Yield what the agent sends, through as many channels as it takes.

        The last one is Gone, or Lost or PrepareFailed where the agent could not take its leave. ``place`` is how much
        of the agent's stream is in the events so far: acknowledge it once nothing of that can be lost any more.
        """
        yield from self._read()
        while not self._over:
            if self._sender.is_attached:
                self._sender.detach()
                self.absence.begin(0.0 if self._is_detached else self._return_within)
                yield Reconnecting(time=time.time(), node=self.node, reason=self._why)
            try:
                channel = self._callbacks.reopen()
                reason = f"{self._why}, and it could not be reached again"
            except HostUnreachable as error:  # it is final
                channel, reason = None, one_line(str(error))
            if channel is None:
                yield self._lost(ending.cut_off(self._sender.given_up or reason, self.absence))
                return
            self._bring(channel)
            yield from self._read()

    def _bring(self, channel: Channel) -> None:
        """Offer the agent another channel; it goes on where its stream has reached us."""
        self._sender.channel, self.opened = channel, time.monotonic()
        self._has_brought = True
        self.awaits_login, self._login_limit = True, 0.0
        if self._sender.given_up:
            channel.close()
        self._marker = new_marker()
        self._sender.send_at_once(opening() + encode(self._first()))

    def _first(self) -> First:
        """Return the first message through another channel."""
        return ChannelRequest(
            marker=self._marker,
            run=self._run,
            node=self._agent,
            have=self.place,
            remote_dir=self._remote_dir,
            cgroup=self._cgroup,
            age=time.monotonic() - self._begun,
        )

    def _read(self) -> Iterator[Event]:
        """Yield the events of one channel; set ``_over`` if there is to be no other one."""
        decoder, begin = Decoder(self._data_bytes), self.place
        greeted, has_all, banner = False, False, b""
        try:
            while chunk := self._receive():
                if not greeted:
                    banner += chunk
                    if not has_all and lacking() in banner:
                        has_all, self.awaits_login = True, False
                        self._sender.send_at_once(encode(Program(), blob()))
                    _, found, chunk = banner.partition(b"\n%s\n" % self._marker.encode())
                    greeted = bool(found)
                    self.awaits_login = self.awaits_login and not greeted
                    if not greeted and len(banner) > MAX_BANNER_BYTES:
                        break
                    if not greeted:
                        continue
                # Before memory is taken for what comes.
                decoder.header_bytes = ANSWER_BYTES if self._asked.awaits_answer else HEADER_BYTES
                frames = decoder.feed(chunk)
                for (header, data), end in zip(frames, decoder.ends, strict=True):
                    self.place = begin + end
                    if header.get("type") == answers.Output.NAME:
                        yield from self._output(header, data)
                        continue
                    message = self._table.read(header, one_line)
                    self._is_greeted = True
                    if isinstance(message, answers.Gone):  # the last one: the agent leaves once it is acknowledged
                        self.acknowledge(self.place, now=True)
                    yield from self._event(message, data)
                # Beats are no events, and must not fill the agent's window in a quiet run.
                if self.place - self._acknowledged >= 2 * ACKNOWLEDGED_BYTES:
                    yield Heard(time=time.time(), node=self.node)
        except FrameError as error:
            self.leave()
            self._over = True
            yield refusal(error, self.node, self._first_step, is_greeted=self._is_greeted)
            return
        finally:
            self.awaits_login = False
        if not self._over:
            yield from self._channel_ended(greeted, banner)

    def _channel_ended(self, greeted: bool, banner: bytes) -> Iterator[Event]:
        """Yield the events of a channel that ended without a goodbye; try no other one if the run is over there."""
        if self._sender.given_up:
            self._over = True
            yield self._lost(ending.cut_off(self._sender.given_up, self.absence))
        elif not self._may_come_back:
            self._over = True
            farewell = self._sender.channel.farewell()
            if greeted:
                yield self._lost(ending.lost_agent(farewell))
            else:
                error = ending.failed_start(farewell, banner, self._login_limit, self._callbacks.explain)
                message, step = one_line(str(error)), error.step
                yield PrepareFailed(time=time.time(), node=self.node, step=step, message=message, hint=error.hint)
        elif greeted and self._sender.is_attached:
            farewell = self._sender.channel.farewell()
            self._why = self._why_hung_up or "the connection ended"
            # The guardian's own status: the agent is no more.
            if farewell.is_agents and farewell.status is not None and farewell.status >= 0:
                self._over = True
                yield self._lost(ending.lost_agent(farewell))

    def _lost(self, end: ending.LostAgent) -> Lost:
        """Return the event of a lost host; first the reason that the backend has, unless that is the client's."""
        is_known = self._sender.given_up == ending.GIVEN_UP or end["return_within"]
        reason = ending.explained(end["reason"], "" if is_known else one_line(self._callbacks.why()))
        told: ending.LostAgent = {**end, "reason": reason}
        return Lost(time=time.time(), node=self.node, **told)

    def _receive(self) -> bytes:
        # Silence counts only while the channel is read.
        if self._sender.is_attached and not self.waiting:
            self._received_at = time.monotonic()
        self.waiting = True
        chunk = self._sender.channel.receive()
        if chunk and (self._sender.is_attached or not self.awaits_login):  # a login that prints is no sign of the agent
            self._received_at = time.monotonic()
        return chunk

    def _output(self, header: Header, data: bytes) -> Iterator[Event]:
        rank, stream = key = self._stream_of(header)
        self.printed[key] = self.printed.get(key, 0) + len(data)
        yield Output(time=time.time(), node=self.node, rank=rank, stream=stream, data=data)

    def _stream_of(self, header: Header) -> tuple[int, Stream]:
        """Return the rank and the stream of output. Raises FrameError.

        The header is checked when the stream's first output comes, because a host may send hundreds of MB in a second.
        """
        try:
            return self._streams[header["rank"], header["stream"]]
        except (KeyError, TypeError):
            message = self._table.read(header, one_line)
            assert isinstance(message, answers.Output)
            return self._stream(message)

    def _stream(self, message: answers.Output | answers.LeftOut) -> tuple[int, Stream]:
        """Return the rank and the stream of a message, and note it as checked. Raises FrameError."""
        found = self._streams[message.rank, message.stream] = self._asked.stream(message, self._first_rank)
        return found

    def _event(self, message: Message, data: bytes) -> Iterator[Event]:
        """Act on a message, and yield its events."""
        self._asked.check(message)
        match message:
            case answers.Hello():
                yield self._connected(message)
            case answers.Beat(echo=echo, time=there, orders=orders, held=held):
                self._set_clock(time.time() - held, sent=echo, there=there)
                self._sender.forget(orders)
            case answers.Busy(owner=owner) if self._may_take_over(owner):
                yield self._take_over(owner)
            case answers.NoSocket():
                self._may_come_back = False
            case answers.NoAgent(left=left):
                yield self._no_agent(left)
            case answers.Piece():
                yield from self._callbacks.receive(data)
                self.acknowledge(self.place)  # it is here, whatever the main thread is doing
            case nodes.Connecting() | nodes.Relayed() | nodes.RelayTaken() | nodes.RelayEnded():
                self._callbacks.relay(message, data)
            case answers.Taken(rank=rank, bytes=count):
                self._callbacks.taken(rank, count)
            case answers.Step() | answers.Applying():
                yield from self._module_step(message)
            case answers.WantsFiles(step=number):
                self.send_files(number)
            case answers.AsksPassword():
                yield AsksPassword(time=time.time(), node=self.node, step=self._asked.step)
            case answers.Attached(orders=orders):
                if self._attach(orders):
                    yield self._event_of(message, data)
            case answers.LeftOut(bytes=count):
                rank, stream = key = self._stream(message)
                self.printed[key] = self.printed.get(key, 0) + count
                yield LeftOut(time=time.time(), node=self.node, rank=rank, stream=stream, bytes=count)
            case nodes.Restarted(rank=rank) if rank in self._arriving:
                event = self._event_of(message, data)
                printed = self._arriving.pop(rank)
                yield Arrived(time=event.time, node=self.node, rank=rank, attempt=message.attempt, printed=printed)
                yield event
            case answers.Answer():
                yield self._event_of(message.replaced(answer=self._asked.read_answer(message)), data)
            case _:
                if isinstance(message, answers.Locked):
                    self._cgroup = message.cgroup
                elif isinstance(message, answers.Detached):
                    self._is_detached = True
                elif isinstance(message, answers.Gone):
                    self._over = True
                yield self._event_of(message, data)

    def _event_of(self, message: Message, data: bytes) -> Event:
        limit = self._data_bytes.get(Lacks.NAME, 0)
        return event_of(message, data, node=self.node, sent=self.sent, lacks_bytes=limit, offset=self._offset)

    def _module_step(self, message: answers.Step | answers.Applying) -> Iterator[ModuleStep]:
        """Yield the event of a module's step; a command of a setup has none."""
        number, state = (message.number, "check") if isinstance(message, answers.Step) else (message.step, "apply")
        if module := self._asked.module(number):
            yield ModuleStep(time=time.time(), node=self.node, module=module, step=number, state=state)

    def _connected(self, hello: answers.Hello) -> Connected:
        now = time.time()
        self._offset = hello.time - now  # until the first beat is back
        self._sender.owe_beat()
        self._end_runs_that_are_over(hello.runs)
        return Connected(
            time=now,
            node=self.node,
            address=self._address,
            machine=hello.machine,
            is_locking=self._is_locking,
            is_preparing=self._is_preparing,
        )

    def _no_agent(self, left: Sequence[str]) -> Lost:
        """Return the event of an agent that is gone. left: processes that it has left there"""
        if self._sender.is_attached:
            raise FrameError("no-agent: an agent sends it")
        self._over = True
        return self._lost(ending.gone_agent(left, self.absence))

    def _attach(self, confirmed: int) -> bool:
        """Continue on another channel; return False if the agent had this one. confirmed: as in ``_go_on``"""
        if not self._has_brought:
            raise FrameError("attached: no channel was offered")
        if self._sender.is_attached:
            # The message for a channel that broke soon comes through the next one, before that one's.
            self._sender.forget(confirmed)
            return False
        self._go_on(confirmed)
        return True

    def _may_take_over(self, owner: Owner) -> bool:
        return bool(owner.run) and owner.run not in self._taken_over and self._callbacks.is_dead(owner)

    def _end_runs_that_are_over(self, runs: Sequence[str]) -> None:
        """Have agents end whose runs have ended here: the host was cut off then. runs: ids of all others on the host"""
        if over := [run for run in runs if self._callbacks.is_dead(Owner(run=run))]:
            self._send(Over(runs=over))

    def _take_over(self, owner: Owner) -> HostNotice:
        """End what is left of a run whose client is over. Once: the agent waits for the lock while that run ends."""
        self._taken_over.add(owner.run)
        self._asked.note(Lock)
        self._send(Lock(take_over=owner.run))
        text = f"ending what is left of a run whose client is over: {owner_line(owner)}"
        return HostNotice(time=time.time(), node=self.node, text=text)

    def _go_on(self, confirmed: int) -> None:
        """Send what has not reached the agent: it has the new channel. confirmed: the number of its last order"""
        self._why_hung_up, self.absence.began = "", None
        self._sender.attach(confirmed)
        self.acknowledge(self.place, now=True)
