"""The way of a new channel of a client to the agent of its run."""

from __future__ import annotations

import os
import time

from mesh.agent.control.sockets import remove_socket, send_request, socket_path
from mesh.agent.process.sweep import end_rest
from mesh.protocol import control
from mesh.protocol.answers import NoAgent
from mesh.protocol.messages import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.protocol.first import Channel


def bring_channel(begin: Channel) -> None:
    """Pass stdin and stdout, a new channel, to the agent of a run, and stay as long as the agent needs them.

    Where the agent is gone, end the rest of its run, and send the client the result.
    """
    try:
        agent = send_request(socket_path(begin.run, begin.node), control.Channel(have=begin.have), [0, 1])
    except OSError:
        was_restarted = time.clock_gettime(time.CLOCK_BOOTTIME) < begin.age
        left = end_rest(begin.run, begin.node, begin.remote_dir, begin.cgroup, was_restarted=was_restarted)
        remove_socket(begin.run, begin.node)
        os.write(1, encode(NoAgent(left=left)))
        return
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    agent.recv(1)  # no message comes: it returns when the agent is done with the channel
