"""known_hosts, as OpenSSH reads and writes it (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).

Host certificates (``@cert-authority``) are not checked, as paramiko does not negotiate them: such a host is a new one
here, and its plain key is recorded.
"""

from __future__ import annotations

import base64
import fcntl
import fnmatch
import hashlib
import hmac
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import paramiko
from msgspec import Struct

from mesh.backends.ssh.ahead import SSH_PORT
from mesh.core.errors import HostUnreachable

STEP = "host-key"  # of connecting, that fails here
_writing = threading.Lock()


class Line(Struct, frozen=True):
    """A line of a known_hosts file."""

    path: Path
    number: int
    marker: str  # "", "@revoked" or "@cert-authority"
    hosts: str
    kind: str
    key: bytes

    def names(self, name: str) -> bool:
        """Return True if the line is about a host, ``host`` or ``[host]:port``."""
        if self.hosts.startswith("|1|"):
            _, _, salt, digest = self.hosts.split("|", 3)
            return hmac.compare_digest(_digest(salt, name), digest)
        found = False
        for pattern in self.hosts.split(","):
            negated = pattern.startswith("!")
            # Only * and ? are special there; [ begins a name with a port.
            escaped = pattern.removeprefix("!").replace("[", "[[]")
            if fnmatch.fnmatchcase(name.lower(), escaped.lower()):
                if negated:
                    return False
                found = True
        return found


def _digest(salt: str, name: str) -> str:
    try:
        key = base64.b64decode(salt)
    except ValueError:
        return ""
    return base64.b64encode(hmac.new(key, name.lower().encode(), hashlib.sha1).digest()).decode()


class KnownHosts:
    """The lines of one file. There may be thousands, for hundreds of hosts: whose a line is, is looked up."""

    def __init__(self, path: Path) -> None:
        """A line that is none is left out, as OpenSSH does. Raises OSError."""
        self._lines: list[Line] = []
        self._by_name: dict[str, list[int]] = {}  # places in _lines
        self._patterns: list[int] = []  # and of those that must be tried
        for number, written in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
            words = written.split()
            if not words or words[0].startswith("#"):
                continue
            marker = words.pop(0) if words[0].startswith("@") else ""
            if len(words) < 3:
                continue
            try:
                key = base64.b64decode(words[2], validate=True)
            except ValueError:
                continue
            self._add(Line(path, number, marker, words[0], words[1], key))

    def _add(self, line: Line) -> None:
        place = len(self._lines)
        self._lines.append(line)
        if line.hosts.startswith("|") or any(character in line.hosts for character in "*?!"):
            self._patterns.append(place)
        else:
            for name in line.hosts.lower().split(","):
                self._by_name.setdefault(name, []).append(place)

    def about(self, name: str) -> list[Line]:
        """The lines about a host, ``host`` or ``[host]:port``, in their order."""
        tried = (place for place in self._patterns if self._lines[place].names(name))
        return [self._lines[place] for place in sorted({*self._by_name.get(name.lower(), ()), *tried})]


_read: dict[Path, tuple[tuple[int, int, int], KnownHosts]] = {}  # with what the file looked like then


def lines_about(name: str, paths: Sequence[Path]) -> list[Line]:
    """Return the lines about a host from all readable files. Read a file again when it has changed."""
    lines: list[Line] = []
    for path in paths:
        try:
            found = path.stat()
            look = found.st_ino, found.st_size, found.st_mtime_ns
            if path not in _read or _read[path][0] != look:
                _read[path] = look, KnownHosts(path)
        except OSError:
            continue
        lines += _read[path][1].about(name)
    return lines


class Checker(Struct, frozen=True):
    """Decides about the keys of one host."""

    host: str  # the name that is connected to, or HostKeyAlias
    port: int
    files: tuple[Path, ...]  # the first one is where a new key is written; none: nowhere
    more_files: tuple[Path, ...] = ()  # that are only read: the system's
    strict: bool = False  # refuse a new key
    hashed: bool = False  # write names as hashes

    @property
    def name(self) -> str:
        """The host as it stands in the files."""
        return self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}"

    def known_kinds(self) -> list[str]:
        """Return the kinds of the host's recorded keys: a server with several is asked for one of these."""
        return [line.kind for line in self._lines() if not line.marker]

    def check(self, key: paramiko.PKey) -> None:
        """Accept a key, recording it if the host is new. Raises HostUnreachable."""
        with _writing:  # several connections may meet one host
            lines = self._lines()
            if any(line.marker == "@revoked" and line.key == key.asbytes() for line in lines):
                told = _told(key.get_name(), key.asbytes())
                raise HostUnreachable(f"the host key is revoked ({told})", step=STEP)
            plain = [line for line in lines if not line.marker]
            if any(line.key == key.asbytes() for line in plain):
                return
            same_kind = [line for line in plain if line.kind == key.get_name()]
            if same_kind or plain:
                raise self._changed((same_kind or plain)[0], key)
            if self._is_known_without_port(key):
                return
            if self.strict:
                raise self._refused(key)
            self._record(key)

    def _lines(self) -> list[Line]:
        return lines_about(self.name, [*self.files, *self.more_files])

    def _is_known_without_port(self, key: paramiko.PKey) -> bool:
        """Return True if the key is recorded for port 22 of the host: it then counts for other ports, as in OpenSSH."""
        lines = lines_about(self.host, [*self.files, *self.more_files]) if self.port != SSH_PORT else []
        return any(not line.marker and line.key == key.asbytes() for line in lines)

    def _changed(self, known: Line, key: paramiko.PKey) -> HostUnreachable:
        return HostUnreachable(
            f"the host key has changed: {known.path}:{known.number} has {_told(known.kind, known.key)}, "
            f"the host has {_told(key.get_name(), key.asbytes())}",
            hint="somebody may be in between; if the machine was made anew, forget the old key:\n"
            f"ssh-keygen -R '{self.name}' -f {known.path}",
            step=STEP,
        )

    def _refused(self, key: paramiko.PKey) -> HostUnreachable:
        where = self.files[0] if self.files else "~/.ssh/known_hosts"
        port = "" if self.port == SSH_PORT else f" -p {self.port}"
        return HostUnreachable(
            f"the host key is not recorded, and new ones are refused ({_told(key.get_name(), key.asbytes())})",
            hint=f"if the fingerprint is right:\nssh-keyscan{port} {self.host} >> {where}",
            step=STEP,
        )

    def _record(self, key: paramiko.PKey) -> None:
        if not self.files:
            return
        path = self.files[0]
        name = self.name
        if self.hashed:
            salt = base64.b64encode(os.urandom(20)).decode()
            name = f"|1|{salt}|{_digest(salt, name)}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                complete = size == 0 or os.pread(descriptor, 1, size - 1) in (b"\n", b"")
                file.write(f"{'' if complete else chr(10)}{name} {key.get_name()} {key.get_base64()}\n".encode())
        except OSError as error:
            hint = (
                "without that, nobody would notice if the key changes; UserKnownHostsFile in ssh_config names another"
            )
            raise HostUnreachable(
                f"its new host key cannot be written to {path}: {error.strerror}", hint=hint, step=STEP
            ) from error


def _told(kind: str, key: bytes) -> str:
    """A key's fingerprint, as ssh-keygen -l has it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"{kind} SHA256:{digest}"
