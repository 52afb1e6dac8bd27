"""The errors that a user can act on. A class exists only where a caller treats it differently."""

from __future__ import annotations


class MeshError(Exception):
    """A failure that the user can act on; hint is the next thing to try, or ""."""

    exit_code = 125  # mesh failed, not the command; same number as docker run and timeout(1)

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint and hasattr(self, "add_note"):  # a program that does not catch it shows the hint as well
            self.add_note(f"  {hint}")


class UsageError(MeshError):
    """The command line or a configuration file is wrong; nothing was tried."""

    exit_code = 2


class NoHosts(MeshError):
    """A cluster has no hosts now; a run would make them."""


class UnknownCluster(UsageError):
    """There is no cluster of the name that was given."""


class AmbiguousRun(UsageError):
    """A word that may mean several runs; newest is the id of the newest one."""

    def __init__(self, message: str, *, newest: str) -> None:
        super().__init__(message, hint=f"name one of them, as {newest}")
        self.newest = newest


class HostUnreachable(MeshError):
    """No channel to a host could be opened; step is what failed, one of events.CONNECTING.

    is_final: another attempt would fail as well, as the host is no more
    """

    def __init__(self, message: str, *, hint: str = "", step: str = "reach", is_final: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.step, self.is_final = step, is_final


class ChannelClosed(MeshError):
    """The other end of a channel is gone; what was sent last may not have arrived."""


class OutputClosed(MeshError):
    """The reader of our standard output is gone."""

    exit_code = 141  # 128 + SIGPIPE, as a shell reports it


class PathRefused(MeshError):
    """The reason why a path is not written; the others are."""
