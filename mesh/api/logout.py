"""Ends of a login that end the steward with it."""

from __future__ import annotations

from mesh.agent.detached.logins import ends_with, user_name
from mesh.api.serving import Serving

LINGER = "loginctl enable-linger; mesh serve install"
TEXTS = {
    "login": "mesh serve ends when you log out, as systemd-logind has KillUserProcesses=yes; runs go on",
    "logins": "mesh serve ends with your last login, as you do not linger; runs go on",
}


def logout_notices(serving: Serving, root: str = "/") -> tuple[str, ...]:
    """Return a line for a steward that a logout would end, with the commands that keep it.

    serving: the steward; one that systemd starts needs no line. root: of the files of systemd
    """
    if not serving.pid or not serving.has_started or serving.at_boot:
        return ()
    text = TEXTS.get(ends_with(user_name(), root), "")
    return (f"{text}: {LINGER}",) if text else ()
