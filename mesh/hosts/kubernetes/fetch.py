"""Program of the init container of a pod whose workspace mesh does not send: it fetches the files from their source.

``python3 -I -S -c TEXT JSON``: an object with `kind`, `into` (the workspace) and `record` (a file that gets the hash of
the tree), and what the kind needs. It needs Python 3.8 and the standard library. The last line that it prints to
standard error is the reason of a failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARCHIVE = "workspace.tar.gz"  # in the ConfigMap
COMMIT = frozenset("0123456789abcdef")
GIT_TRIES = 3  # of one git command that needs the network
KEY, HOST_KEYS, USER, PASSWORD = "ssh-privatekey", "known_hosts", "username", "password"  # files of a Secret
LOGIN = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$MESH_GIT_USER" "$MESH_GIT_PASSWORD"; }; f'


class Failed(Exception):
    """The reason why there is no workspace."""


def main(text: str) -> None:
    """Fetch the workspace, and write the hash of its tree. Raises Failed and OSError."""
    given = json.loads(text)
    into = given["into"]
    os.makedirs(os.path.dirname(into), 0o700, exist_ok=True)
    work = into + ".new"
    for old in (into, work):  # of an attempt that was cut short
        shutil.rmtree(old, ignore_errors=True)
    tree = FETCHERS[given["kind"]](given, work)
    os.rename(work, into)
    with open(given["record"], "w") as file:
        file.write(tree + " clean\n[]\n")


def fetch_git(given: Mapping[str, str], into: str) -> str:
    """Check out a commit; return the hash that git has for its tree."""
    with tempfile.TemporaryDirectory() as home:
        git = Git(into, home, given["secret_dir"])
        git("init", "-q", into)
        ref = given["ref"] or "HEAD"
        try:
            git.retried("fetch", "-q", "--depth", "1", "--no-tags", given["url"], ref)
            found = "FETCH_HEAD"
        except Failed:
            if not (len(ref) >= 7 and COMMIT.issuperset(ref)):
                raise
            # The server sends no single commit, or the id is a part of one.
            git.retried("fetch", "-q", given["url"], "+refs/*:refs/mesh/*")
            found = ref
        git("checkout", "-q", "--detach", found)
        tree = git("rev-parse", "HEAD^{tree}")
    shutil.rmtree(os.path.join(into, ".git"))
    return tree


class Git:
    """The git of the image, with credentials of a Secret. None stands in a command line."""

    def __init__(self, directory: str, home: str, secret: str) -> None:
        """home: a directory for this process alone; secret: of the Secret's files; "": there is none"""
        self._directory = directory
        self._options: list[str] = []
        self._environ = {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "HOME": home,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"):
            if name in os.environ:
                self._environ[name] = os.environ[name]
        if secret and not os.path.isdir(secret):
            raise Failed("the Secret of source: is not mounted at " + secret)
        if secret and os.path.exists(os.path.join(secret, KEY)):
            self._use_key(secret, home)
        elif secret:
            self._environ["MESH_GIT_USER"] = secret_text(secret, USER, "git")
            self._environ["MESH_GIT_PASSWORD"] = secret_text(secret, PASSWORD)
            self._options = ["-c", "credential.helper=", "-c", "credential.helper=" + LOGIN]

    def _use_key(self, secret: str, home: str) -> None:
        key, hosts = os.path.join(home, "key"), os.path.join(secret, HOST_KEYS)
        if not os.path.exists(hosts):
            raise Failed("the Secret has a key for ssh and no " + HOST_KEYS + " (ssh-keyscan HOST prints it)")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:  # ssh wants a file of its user alone
            file.write(secret_text(secret, KEY).rstrip("\n") + "\n")
        options = "-F none -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes"
        self._environ["GIT_SSH_COMMAND"] = f"ssh {options} -i {key} -o UserKnownHostsFile={hosts}"

    def retried(self, *words: str) -> str:
        """Do the same several times. Raises Failed with the last reason."""
        for left in reversed(range(GIT_TRIES)):
            try:
                return self(*words)
            except Failed:
                if not left:
                    raise
        raise AssertionError

    def __call__(self, *words: str) -> str:
        """Run git; return the line that it prints. Raises Failed."""
        place = ["-C", self._directory] if words[0] != "init" else []
        argv = ["git", *place, *self._options, *words]
        try:
            done = subprocess.run(argv, capture_output=True, env=self._environ)
        except FileNotFoundError:
            raise Failed("the image has no git, which source: needs") from None
        if done.returncode:
            told = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
            raise Failed(f"git {words[0]}: {told[-1] if told else f'exit {done.returncode}'}")
        return done.stdout.decode().strip()


def secret_text(secret: str, name: str, default: str = "") -> str:
    """Return the text of a file of the Secret. Raises Failed if it lacks one without a default."""
    try:
        with open(os.path.join(secret, name)) as file:
            return file.read().strip("\n")
    except FileNotFoundError:
        if default:
            return default
        raise Failed(f"the Secret of source: has no {name}") from None


def fetch_archive(given: Mapping[str, str], into: str) -> str:
    """Unpack the archive in a ConfigMap; return the hash of it."""
    path = os.path.join(given["archive_dir"], ARCHIVE)
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    os.mkdir(into, 0o700)
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            unpack(archive, member, into)
    return digest


def unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, into: str) -> None:
    """Make one entry of an archive that mesh has made. Raises Failed for one that would lie elsewhere."""
    parts = member.name.split("/")
    path = os.path.join(into, member.name)
    if member.name.startswith("/") or ".." in parts or os.path.realpath(os.path.dirname(path)) != os.path.dirname(path):
        raise Failed("the archive has an entry outside of the workspace")
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.isdir():
        os.mkdir(path, 0o700)
        os.chmod(path, stat.S_IMODE(member.mode) | stat.S_IRWXU)
    else:
        source = archive.extractfile(member)
        if source is None:
            raise Failed("the archive has an entry that is no file")
        with open(path, "wb") as file:
            shutil.copyfileobj(source, file)
        os.chmod(path, stat.S_IMODE(member.mode))
        os.utime(path, (member.mtime, member.mtime))


FETCHERS = {"git": fetch_git, "config_map": fetch_archive}


def run(words: Sequence[str]) -> int:
    """Fetch; return the exit status."""
    try:
        main(words[0])
    except (Failed, OSError, tarfile.TarError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
