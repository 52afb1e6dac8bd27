"""The end of a login, at which the system may end its processes, and with them a detached run.

systemd-logind has each login in a group of its own, session-N.scope, and where its configuration has it so
(KillUserProcesses and the exceptions to it, logind.conf(5)) it ends all processes in there at the logout, also of a
user who lingers. Processes of a user's own service manager are in user@UID.service. That ends with the user's last
login, unless the user lingers.
"""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIGURATION = "systemd/logind.conf"
# Where it may be, the strongest first: systemd.syntax(7).
PLACES = ("etc", "run", "usr/local/lib", "usr/lib")
TRUE, FALSE = ("1", "yes", "y", "true", "t", "on"), ("0", "no", "n", "false", "f", "off")
KILLS, ONLY, EXCLUDED = "KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers"


def user_name() -> str:
    """Return the name of this user, or its number where the host has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def ends_with(user: str, root: str = "/") -> str:
    """Return the event that ends the processes of this login, as far as a few files show it.

    "login": the end of this login; "logins": that of the user's last one; "": neither
    """
    groups = place_of(_read(os.path.join(root, "proc/self/cgroup"))).split("/")
    if any(name.startswith("session-") and name.endswith(".scope") for name in groups):
        return "login" if kills(*settings(_configuration(root)), user) else ""
    lingers = os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))
    is_managers = any(name.startswith("user@") and name.endswith(".service") for name in groups)
    return "logins" if is_managers and not lingers else ""


def place_of(cgroups: str) -> str:
    """Return systemd's control group from the text of /proc/PID/cgroup.

    >>> place_of("1:name=systemd:/user.slice/session-4.scope"), place_of("3:cpu:/a\\n0::/b")
    ('/user.slice/session-4.scope', '/b')
    """
    found = [line.split(":", 2) for line in cgroups.splitlines() if line.count(":") >= 2]
    return "".join(path for _, controllers, path in found if controllers in ("", "name=systemd"))


def settings(texts: Iterable[str]) -> tuple[dict[str, bool], dict[str, list[str]]]:
    """Return the settings in logind's files: of truths and of lists of users; those that are in none are left out.

    texts: of the files, the strongest last
    """
    truths: dict[str, bool] = {}
    users: dict[str, list[str]] = {}
    for text in texts:
        section = ""
        for line in text.splitlines():
            name, equals, value = (part.strip() for part in line.partition("="))
            if name.startswith("["):
                section = name
            elif section == "[Login]" and name in (ONLY, EXCLUDED) and equals:
                users[name] = [*users.get(name, []), *value.split()] if value else []
            elif section == "[Login]" and name == KILLS and value.lower() in TRUE + FALSE:
                truths[name] = value.lower() in TRUE
            elif section == "[Login]" and name == "#" + KILLS:  # the file has the compiled value in this way
                truths.setdefault(name, value.lower() in TRUE)
    return truths, users


def kills(truths: Mapping[str, bool], users: Mapping[str, Sequence[str]], user: str) -> bool:
    """Return True if the end of a login of this user ends all its processes. truths, users: as from ``settings``

    >>> kills({"KillUserProcesses": True}, {}, "me"), kills({"KillUserProcesses": True}, {}, "root")
    (True, False)
    """
    if user in users.get(EXCLUDED, ["root"]):
        return False
    if users.get(ONLY):
        return user in users[ONLY]
    return truths.get(KILLS, truths.get("#" + KILLS, False))


def _configuration(root: str) -> list[str]:
    """Return the texts of logind's files, the strongest last."""
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
