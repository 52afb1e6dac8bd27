"""mesh forward: ports of hosts as ports of this machine."""

from __future__ import annotations

from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.speech import say, show


@command(
    "forward",
    "Hosts",
    "CLUSTER [LOCAL:]PORT ...",
    takes=Takes.PATHS,
    examples=(
        ("mesh forward pod:0 6006", "TensorBoard of the first host, until Ctrl-C"),
        ("mesh forward pod 9000:8080", "port 8080 of all hosts, here at 9000, 9001 and so on"),
        ("mesh forward pod:0 --socket ~/board.sock 6006", "no other user of this machine can connect"),
    ),
)
def forward(given: Given) -> int:
    """Reach ports of hosts at ports of this machine."""
    from mesh.api import forwarding

    return forwarding.forward(
        given.words,
        forwarding.chosen(given[o.NAMED_CLUSTER], given.options(), given[o.CLUSTERS]),
        socket=given[d.SOCKET],
        show=lambda line: show([line]),
        notify=say,
    )
