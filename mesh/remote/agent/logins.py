"""Whether the system ends what a login leaves behind, and with it a run that is to go on without its client.

systemd-logind has each login in a group of its own, session-N.scope, and where its configuration says so
(KillUserProcesses and the exceptions to it, logind.conf(5)) it ends at the logout all that is in there, also of a user
who lingers. What a user's own service manager has started is in user@UID.service, which ends with the user's last
login, but not if he lingers.
"""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CONFIGURATION = "systemd/logind.conf"
# Where it may be, the strongest first: systemd.syntax(7).
PLACES = ("etc", "run", "usr/local/lib", "usr/lib")
TRUE, FALSE = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")
KILLS, ONLY, EXCLUDED = "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers"


def user_name() -> str:
    """Who we are; a number where the host has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def ends_with(user: str, root: str = "/") -> str:
    """What ends our processes: "login", the end of the one by which we came; "logins", the end of the user's last one.

    "": neither, as far as a few files tell.
    """
    groups = place_of(_read(os.path.join(root, "proc/self/cgroup"))).split("/")
    if any(name.startswith("session-") and name.endswith(".scope") for name in groups):
        return "login" if kills(settings(_configuration(root)), user) else ""
    lingers = os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))
    is_managers = any(name.startswith("user@") and name.endswith(".service") for name in groups)
    return "logins" if is_managers and not lingers else ""


def place_of(cgroups: str) -> str:
    """Where systemd has us, by the text of /proc/PID/cgroup.

    >>> place_of("1:name=systemd:/user.slice/session-4.scope"), place_of("3:cpu:/a\\n0::/b")
    ('/user.slice/session-4.scope', '/b')
    """
    found = [line.split(":", 2) for line in cgroups.splitlines() if line.count(":") >= 2]
    return "".join(path for _, controllers, path in found if controllers in ("", "name=systemd"))


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """What logind's files say: a truth and two lists of users, and nothing that they do not say.

    texts: theirs, the strongest last
    """
    found: dict[str, Any] = {}
    for text in texts:
        section = ""
        for line in text.splitlines():
            name, equals, value = (part.strip() for part in line.partition("="))
            if name.startswith("["):
                section = name
            elif section == "[Login]" and name in (ONLY, EXCLUDED) and equals:
                found[name] = [*found.get(name, []), *value.split()] if value else []
            elif section == "[Login]" and name == KILLS and value.lower() in TRUE + FALSE:
                found[name] = value.lower() in TRUE
            elif section == "[Login]" and name == "#" + KILLS:  # in this way the file tells what was compiled in
                found.setdefault(name, value.lower() in TRUE)
    return found


def kills(found: dict[str, Any], user: str) -> bool:
    """Whether the end of a login of this user ends all its processes; found: as ``settings`` returns it.

    >>> kills({"KillUserProcesses": True}, "me"), kills({"KillUserProcesses": True}, "root")
    (True, False)
    """
    if user in found.get(EXCLUDED, ["root"]):
        return False
    if found.get(ONLY):
        return user in found[ONLY]
    return bool(found.get(KILLS, found.get("#" + KILLS, False)))


def _configuration(root: str) -> list[str]:
    """The texts of logind's files, the strongest last."""
    mains = [os.path.join(root, place, CONFIGURATION) for place in PLACES]
    parts: dict[str, str] = {}
    for main in mains:
        try:
            for name in os.listdir(main + ".d"):
                if name.endswith(".conf"):
                    parts.setdefault(name, os.path.join(main + ".d", name))
        except OSError:
            pass
    main = next((path for path in mains if os.path.exists(path)), "")
    return [_read(path) for path in [main, *(parts[name] for name in sorted(parts))]]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
