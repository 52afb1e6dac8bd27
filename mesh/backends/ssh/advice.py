"""Messages of a host that SSH did not reach, or whose login did not start the agent."""

from __future__ import annotations

import socket

from mesh.backends.ssh.command_line import ssh_command
from mesh.backends.ssh.connection import SshConnection
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import HostUnreachable
from mesh.core.interfaces import NoAgent
from mesh.core.text import last_line

NEW_PASSWORD = b"password change required"  # openssh/session.c, when there is no terminal


def no_agent(end: NoAgent) -> HostUnreachable:
    """Return why a login ended, or took too long, before the agent started."""
    last = last_line(end.stderr or end.banner)
    if end.limit:
        message = f"its login shell did not start mesh's agent within {end.limit:g} s"
        message += f"; the last that it printed: {last}" if last else ", and printed nothing"
        hint = "try `ssh HOST true`: a start-up file there (.bashrc, .zshenv, config.fish) may wait for input, or\n"
        hint += "`exec` another program. Where it only needs longer: --connect-timeout SECONDS"
        return HostUnreachable(message, hint=hint, step="login")
    if NEW_PASSWORD in (end.stderr + end.banner).lower():
        message = "its user must choose a new password before anything else"
        return HostUnreachable(message, hint="do that once: `ssh -t HOST` asks for it", step="login")
    status = "" if end.status is None else f" (exit {end.status})"
    message = f"the login shell ended before our agent started{status}" + (f": {last}" if last else "")
    hint = "try `ssh HOST true`: its start-up files (.bashrc, .cshrc, config.fish) may end the login;\n"
    hint += "python: of cluster.yaml, if there is one, must name a Python that works"
    return HostUnreachable(message, hint=hint, step="python")


def advice(cluster: Cluster, host: Host, step: str) -> str:
    """Return the hint for a host that failed at a step: its own, if it has one, and a command to try."""
    known = f"{host.hints[step]}\n" if step in host.hints else ""
    return f"{known}try by hand: {ssh_command(cluster, host)}"


def target(connection: SshConnection) -> str:
    """Return where a connection leads, for people."""
    return f"{connection.user}@{connection.host} port {connection.port}"


def reason(error: BaseException) -> str:
    """Return in words why a connection failed; paramiko's own words for an early end are few."""
    if isinstance(error, TimeoutError | socket.timeout):
        return "timed out"
    if isinstance(error, EOFError):
        return "the server ended the connection"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    text = str(error) or type(error).__name__
    # The latter is how paramiko's key exchange runs out of time.
    silent = "banner" in text or "No existing session" in text
    return "no SSH server answered in time, or it has too many logins at once" if silent else text
