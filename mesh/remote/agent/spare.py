"""A process that waits to become a rank: an agent that is kept for a later command makes it while there is time.

To fork is most of what a short command has its agent do: the kernel copies its tables, and then each page that one of
the two writes to. Here that is done before anybody waits for it.
"""

from __future__ import annotations

import marshal
import os
import struct

from . import cgroups
from .doors import group_of, remove_kept_groups, rights_of
from .lean import call, contents, pointer, signal, socket, socketpair
from .spawning import NOT_EXECUTABLE, Setting, become, begin_anew, changed_signals, in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lean import Socket

ORDER = 1 << 17  # bytes; what is more is left to a fork
MADV_POPULATE_WRITE = 23  # asm-generic/mman-common.h; Linux 5.14


class Spare:
    """Serves once. It has nothing of the agent's but memory: no channel, no lock."""

    def __init__(self, guardian: int) -> None:
        """guardian: the pid of the agent's. Raises OSError."""
        agent, changed = os.getpid(), changed_signals()
        self._way, theirs = socketpair(socket.SOCK_SEQPACKET)
        self._way.setblocking(False)
        remove_kept_groups()
        self.cgroup = cgroups.make(group_of(guardian))
        try:
            self.pid = cgroups.fork(self.cgroup)  # 0 once it serves, or is gone
        except OSError:
            cgroups.remove(self.cgroup)
            raise
        if not self.pid:
            _wait(theirs, agent, changed)
        theirs.close()
        own_pages()

    def become(self, argv: Sequence[bytes], setting: Setting, stdin: int, stdout: int, stderr: int) -> int:
        """As ``spawn``. 0 if that cannot be: then nothing has come of it."""
        if not self.pid or setting.cgroup != self.cgroup:
            return 0
        given = setting.environment, setting.directory, setting.umask, setting.limits, setting.cgroup
        order = marshal.dumps((list(argv), given))
        try:
            if len(order) > ORDER:
                return 0
            self._way.sendmsg([order], [rights_of(stdin, stdout, stderr)])
        except OSError:  # it was killed, or there is no room
            return 0
        self._way.close()
        pid, self.pid = self.pid, 0
        return pid

    def dismiss(self) -> None:
        """It will not be wanted."""
        self._way.close()
        pid, self.pid = self.pid, 0
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _wait(theirs: Socket, agent: int, changed: Sequence[int]) -> None:
    """In the child: until it is known what to become. Does not return."""
    try:
        begin_anew(agent, changed)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # the channel must end with the agent
            os.dup2(null, number)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != theirs.fileno():
                try:
                    os.close(int(name))
                except OSError:  # the one that listed the directory
                    pass
        own_pages()
        room = socket.CMSG_SPACE(struct.calcsize("3i"))
        order, rights, _, _ = theirs.recvmsg(ORDER, room, socket.MSG_CMSG_CLOEXEC)
        if not order:
            os._exit(0)
        argv, given = marshal.loads(order)
        descriptors = dict(enumerate(struct.unpack("3i", rights[0][2])))
    except BaseException:
        os._exit(NOT_EXECUTABLE)
    in_child(argv, lambda: become(argv, Setting(*given), descriptors))


def own_pages() -> None:
    """Have a copy of every page that is shared until somebody writes to it."""
    for line in contents("/proc/self/maps").rstrip("\n").split("\n"):
        place, rights = line.split(" ", 2)[:2]
        if rights == "rw-p":
            first, beyond = (int(number, 16) for number in place.split("-"))
            call("madvise", pointer(first), pointer(beyond - first), MADV_POPULATE_WRITE)  # it may fail
