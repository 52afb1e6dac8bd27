"""The program of an agent: the first message decides what it does."""

from __future__ import annotations

import gc
import os
import select

from mesh.agent.base.directories import is_home_read_only, stand_in
from mesh.agent.control.channel import bring_channel
from mesh.agent.process import cgroups
from mesh.agent.process.spawning import close_inherited
from mesh.agent.run.run import Run
from mesh.protocol.first import FIRST, Begin, Channel, Follow, Forward, Reach
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.tables import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.guardian import Guardian
    from mesh.protocol.frames import Frame
    from mesh.protocol.requests import Request

FIRST_MESSAGE_S = 0.2  # in which the first message comes, unless the agent is kept for a later command
FIRST_MESSAGE_LIMIT_S = 900.0  # longer than any client keeps an agent waiting
READ_BYTES = 1 << 16


def main(before: bytes, guardian: Guardian) -> None:
    """Read the first message, answer with its marker, and begin a run, or bring its client what it asks for.

    before: the part of the first requests that was read already
    """
    close_inherited()
    decoder = Decoder(REQUESTS.sizes)
    try:
        frames = _first_frames(decoder, before)
        if not frames:
            return
        first = FIRST.read(frames[0][0])
        requests = [(REQUESTS.read(header), data) for header, data in frames[1:]]
    except FrameError as error:
        text = f"its client does not speak our protocol: {error}"
        lines = text + (f"; {error.hint}" if error.hint else "")
        os.write(2, f"{lines}\n".encode("utf-8", "replace"))
        return
    marker = b"\n%s\n" % first.marker.encode()
    if isinstance(first, Begin):
        _begin(first, marker, decoder, requests, guardian)
        return
    os.write(1, marker)
    if isinstance(first, Channel):
        bring_channel(first)
    elif isinstance(first, Follow):
        from mesh.agent.link.following import follow

        follow(first, decoder, requests)
    elif isinstance(first, Reach):
        from mesh.agent.nodes.reaching import reach

        reach(first)
    elif isinstance(first, Forward):
        from mesh.agent.forward.forwarding import forward

        forward(first)


def _begin(
    begin: Begin, marker: bytes, decoder: Decoder, requests: list[tuple[Request, bytes]], guardian: Guardian
) -> None:
    """Be the agent of a run."""
    is_moved = not begin.needs_home and is_home_read_only(begin.remote_dir)
    if is_moved:
        begin = begin.replaced(remote_dir=stand_in(begin.remote_dir))
    guardian.begin(begin.run, begin.node, begin.remote_dir, cgroups.name_of(begin.run, begin.node))
    run = Run(begin, decoder, guardian, is_moved)
    run.precede(marker)
    run.serve(requests)


def _first_frames(decoder: Decoder, before: bytes) -> list[Frame]:
    """Return the first frames of the client; none if it leaves, or sends nothing for long. Raises FrameError."""
    frames = decoder.feed(before)
    if not frames and not select.select([0], [], [], FIRST_MESSAGE_S)[0]:
        # The agent is kept for a later command: modules that it may need are there then.
        from mesh.agent.run import devices, network  # noqa: F401
        from mesh.agent.sync import sync  # noqa: F401

        cgroups.own("memory")
        gc.freeze()
    while not frames:
        # The connection of an agent that is kept may be dead without an end.
        chunk = os.read(0, READ_BYTES) if select.select([0], [], [], FIRST_MESSAGE_LIMIT_S)[0] else b""
        if not chunk:
            break
        frames = decoder.feed(chunk)
    return frames
