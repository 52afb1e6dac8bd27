"""Logging in: which keys and passwords are tried, in which order, and the error when the server takes none."""

from __future__ import annotations

import base64
import copy
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import paramiko

from mesh.backends.ssh.passwords import Passwords
from mesh.core.errors import HostUnreachable

PASSPHRASE_TRIES = 3  # for one key
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


class Secrets:
    """Keys and passwords of one command: each is read, or asked for, once. Keys stay in memory only."""

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._lock = threading.Lock()
        self._keys: dict[Path, paramiko.PKey | None] = {}

    def key(self, path: Path) -> paramiko.PKey | None:
        """The private key in a file; None if it cannot be used. An encrypted one is asked for."""
        with self._lock:
            if path not in self._keys:
                self._keys[path] = self._load(path)
            return self._keys[path]

    def _load(self, path: Path) -> paramiko.PKey | None:
        try:
            return read_key(path)
        except paramiko.PasswordRequiredException:
            pass
        except (paramiko.SSHException, OSError, ValueError):
            return None
        wrong = ""
        for left in range(PASSPHRASE_TRIES - 1, -1, -1):
            typed = self._passwords.ask(f"{wrong}Passphrase for {path}: ")
            if not typed:
                return None
            try:
                return read_key(path, typed)
            except (paramiko.SSHException, ValueError):
                wrong = f"Wrong passphrase, {left} more {'try' if left == 1 else 'tries'}.\n"
        return None

    def password(self, user: str) -> str:
        """The password of a user; "" if there is none."""
        return self._passwords.of(user)


class Login:
    """How one connection logs in; paramiko calls authenticate()."""

    def __init__(
        self,
        user: str,
        secrets: Secrets,
        files: Sequence[Path],
        *,
        certificates: Sequence[Path] = (),
        only_files: bool,
        environ: Mapping[str, str],
    ):
        """files: private keys that are named for the host

        certificates: CertificateFile; only_files: IdentitiesOnly
        """
        self._user, self._secrets = user, secrets
        self._files = [path for path in files if path.is_file()]
        self._certificates = certificates
        self._only_files, self._environ = only_files, environ
        self._tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Raises HostUnreachable that lists what was tried."""
        allowed: Sequence[str] = ()
        agent = paramiko.Agent() if self._environ.get("SSH_AUTH_SOCK") else None
        try:
            for name, key in self._keys(agent):
                try:
                    transport.auth_publickey(self._user, key)
                    return
                except paramiko.BadAuthenticationType as error:
                    allowed = error.allowed_types
                    break
                except paramiko.AuthenticationException:
                    self._tried.append(name)
        finally:
            if agent is not None:
                agent.close()
        if not allowed:
            allowed = self._ask_what_is_allowed(transport)
        if {"password", "keyboard-interactive"} & set(allowed):
            password = self._secrets.password(self._user)
            if password:
                try:
                    transport.auth_password(self._user, password, fallback=True)
                    return
                except paramiko.AuthenticationException:
                    self._tried.append("the password")
        tried = ", ".join(self._tried) or "nothing (no key was found, and no password is set)"
        takes = ", ".join(allowed) or "nothing that mesh supports"
        raise HostUnreachable(f"login refused; tried: {tried}; the server takes: {takes}", step="login")

    def _ask_what_is_allowed(self, transport: paramiko.Transport) -> Sequence[str]:
        try:
            transport.auth_none(self._user)
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except paramiko.AuthenticationException:
            pass
        return ()

    def _keys(self, agent: paramiko.Agent | None) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield keys to offer: named files (by the agent if it holds them), then the agent's, then the usual files."""
        held: dict[bytes, paramiko.PKey] = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
        for path in self._files:
            by_agent = held.pop(_public_part(path), None)
            key = by_agent or self._secrets.key(path)
            if key is None:
                self._tried.append(f"{path} (cannot be read, or its passphrase is missing)")
            else:
                yield from self._with_certificates(path, key)
                yield (f"{path} (by the agent)" if by_agent else str(path)), key
        if self._only_files:
            return
        for key in held.values():
            yield f"the agent's {key.get_name()} key", key
        if not self._files:
            for name in DEFAULT_KEYS:
                path = Path.home() / ".ssh" / name
                if path.is_file() and _public_part(path) not in held:
                    usual = self._secrets.key(path)
                    if usual is not None:
                        yield from self._with_certificates(path, usual)
                        yield str(path), usual

    def _with_certificates(self, path: Path, key: paramiko.PKey) -> Iterator[tuple[str, paramiko.PKey]]:
        """The key with each certificate that there is for it: beside it, or named by CertificateFile."""
        for certificate in (Path(f"{path}-cert.pub"), *self._certificates):
            if certificate.is_file():
                certified = copy.copy(key)
                try:
                    certified.load_certificate(str(certificate))
                except (OSError, ValueError):  # of another kind of key, or none
                    continue
                yield f"{path} with its certificate", certified


def read_key(path: Path, passphrase: str | None = None) -> paramiko.PKey:
    """A private key.

    Raises PasswordRequiredException, OSError, and SSHException for what is no key, or with a wrong passphrase.
    """
    problem = paramiko.SSHException(f"{path} is no private key")
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key_file(str(path), passphrase)
        except paramiko.PasswordRequiredException:
            raise
        except paramiko.SSHException as error:
            problem = error
    raise problem


def _public_part(path: Path) -> bytes:
    """Return the key in the .pub file beside a private key; b"" if there is none."""
    try:
        words = Path(f"{path}.pub").read_text().split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, ValueError):
        return b""


def expanded(path: str) -> Path:
    """A path of ssh_config, with ~ and variables."""
    return Path(os.path.expandvars(os.path.expanduser(path)))
