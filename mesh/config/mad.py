"""A run of MAD Engine, from the flags of its SSH runner and an INI file with the same names as keys."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from mesh.config.hosts import NoHost, check_port, expand, split
from mesh.config.project import VARIABLE
from mesh.config.settings import read_seconds
from mesh.config.yamlfile import did_you_mean
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.run import MULTI_NODE_ARGS

REQUIRED = ("model", "nodes", "ssh-user")
DEFAULTS = {"master-port": "4000", "shared-data-path": "/nfs/data", "timeout": "3600", "madengine-path": "madengine"}
FLAGS = (
    *("model", "nodes", "ssh-user", "ssh-password", "password-env", "ssh-key", "master-addr", "master-port"),
    *("shared-data-path", "nccl-interface", "gloo-interface", "timeout", "madengine-path", "additional-args"),
    "working-directory",
)
SECTIONS = ("cluster", "ssh", "training", "madengine")
# The runner's own files have other names for these flags.
OTHER_NAMES = {
    ("ssh", "user"): "ssh-user",
    ("ssh", "key"): "ssh-key",
    ("ssh", "key-file"): "ssh-key",
    ("ssh", "password"): "ssh-password",
    ("madengine", "path"): "madengine-path",
}
OF_ITS_OWN = {("ssh", "timeout"), ("ssh", "max-retries")}  # for the runner's own connections, which mesh does not have
PASSWORD = "ssh-password"
CLUSTER = "mesh mad"
NO_PASSWORD = UsageError(
    "a password is not taken from a command line or a file: there others can read it, and it stays",
    hint="--ssh-password without a value asks for it; or put it into a variable and name that:\n"
    "--password-env MY_PASSWORD, or password_env = MY_PASSWORD in the [ssh] section of --config. A password that\n"
    "stood there should be changed",
)


class MadJob(Struct, frozen=True, kw_only=True):
    """The job of madengine, and its nodes."""

    model: str  # the tag of a model
    nodes: tuple[Host, ...]
    password_env: str = ""  # the variable with the password; "": keys, or ask the user
    ask_password: bool = False  # before the first connection
    master_addr: str = ""  # where the ranks meet; "": the first node, at the address that the others use
    master_port: int = 4000
    shared_data_path: str = "/nfs/data"
    nccl_interface: str = ""  # "": on each node the one towards master_addr
    gloo_interface: str = ""  # likewise
    timeout: float = 3600.0  # seconds, from the start
    madengine_path: str = "madengine"  # a name on PATH of the node, or a path
    additional_args: tuple[str, ...] = ()
    working_directory: str = ""  # on the nodes, relative to the home there; "": the workspace

    @property
    def cluster(self) -> Cluster:
        """Return the nodes, under a name that stands in no cluster.yaml."""
        return Cluster(name=CLUSTER, hosts=self.nodes, password_env=self.password_env, ask_password=self.ask_password)

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words for every node; MULTI_NODE_ARGS stands for those that differ."""
        command = (self.madengine_path, "run", "--tags", self.model, "--additional-context", MULTI_NODE_ARGS)
        return (*command, "--force-mirror-local", self.shared_data_path, *self.additional_args)


def read_mad(typed: Mapping[str, str | bool | None], file: str, environ: Mapping[str, str]) -> MadJob:
    """Return the job of a command line.

    typed: by FLAGS; "", None and False: not given; True: ask for an ssh-password
    file: of --config; "": none. A flag wins over it
    Raises UsageError.
    """
    if isinstance(typed.get(PASSWORD), str) and typed[PASSWORD]:
        raise NO_PASSWORD
    found = {**DEFAULTS, **(_read_file(Path(file).expanduser()) if file else {})}
    found |= {flag: value for flag, value in typed.items() if isinstance(value, str) and value}
    if typed.get(PASSWORD) and not typed.get("password-env"):
        found.pop("password-env", None)  # of the file
    missing = [f"--{flag}" for flag in REQUIRED if not found.get(flag)]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given", hint="on the command line, or in the file of --config")
    user, variable = found["ssh-user"], found.get("password-env", "")
    if variable and (not VARIABLE.fullmatch(variable) or not environ.get(variable)):
        # The value is left out of the message, because it may be the password itself.
        raise UsageError("--password-env: expected the name of a variable that is set")
    return MadJob(
        model=found["model"],
        nodes=_nodes(found["nodes"], user, _key(found.get("ssh-key", ""))),
        password_env=variable,
        ask_password=(bool(typed.get(PASSWORD)) or PASSWORD in found) and not variable,
        master_addr=_address(found.get("master-addr", "")),
        master_port=_port(found["master-port"]),
        shared_data_path=_there("shared-data-path", found["shared-data-path"]),
        nccl_interface=_interface("nccl-interface", found),
        gloo_interface=_interface("gloo-interface", found),
        timeout=read_seconds("--timeout", found["timeout"]) or 0.0,
        madengine_path=_there("madengine-path", found["madengine-path"]),
        additional_args=_words(found.get("additional-args", "")),
        working_directory=found.get("working-directory", ""),
    )


def _read_file(path: Path) -> dict[str, str]:
    """Return the flags of a file, by name; "" for an ssh-password that the user is asked for. Raises UsageError."""
    parser = configparser.ConfigParser(interpolation=None, allow_no_value=True, default_section="")
    try:
        text = path.read_text(encoding="utf-8-sig")
        parser.read_string(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', '') or error}") from error
    except configparser.Error as error:
        raise UsageError(f"{path}{_line_of(error)}: {_told(error)}", hint="as in: [cluster], nodes = a,b") from None
    found: dict[str, str] = {}
    problems = []
    for section in parser.sections():
        if section not in SECTIONS:
            near = did_you_mean(section, list(SECTIONS))
            problems.append(f"{_line(text, section)}: [{section}]: unknown section{near}")
            continue
        for key, value in parser[section].items():
            flag = key.replace("_", "-")
            if (section, flag) in OF_ITS_OWN:
                continue
            flag = OTHER_NAMES.get((section, flag), flag)
            # A key with blanks is a line without "=", which may hold a password.
            place = f"{_line(text, section, key)}: {section}.{key}" if not re.search(r"\s", key) else f": [{section}]"
            problems += [f"{place}: {problem}" for problem in _wrong(section, flag, value or "", found)]
            found[flag] = value or ""
    if problems:
        raise UsageError("\n".join(f"{path}{problem}" for problem in problems))
    return found


def _wrong(section: str, flag: str, value: str, found: Mapping[str, str]) -> Iterator[str]:
    if flag not in FLAGS:
        yield f"unknown key{did_you_mean(flag, list(FLAGS))}" if not re.search(r"\s", flag) else "expected KEY = VALUE"
    elif flag in found:
        yield "is given twice"
    elif flag == PASSWORD and value:
        yield f"{NO_PASSWORD}; name a variable instead: password_env = MY_PASSWORD"
    elif flag != PASSWORD and not value:
        yield "has no value"


def _line(text: str, section: str, key: str = "") -> str:
    """Return ``:LINE`` of a key, or of the section itself; "" if it cannot be found."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^]]*)\]", line)
        inside = header.group(1) == section if header else inside
        name = "" if header else re.split(r"[=:]", line, maxsplit=1)[0].strip().lower()
        if inside and name == key:
            return f":{number}"
    return ""


def _line_of(error: configparser.Error) -> str:
    """Return ``:LINE`` of a line that cannot be parsed."""
    number = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), None)
    return f":{number}" if number else ""


def _told(error: configparser.Error) -> str:
    """Describe a parse error without the line itself, which may hold a password."""
    if isinstance(error, configparser.DuplicateOptionError | configparser.DuplicateSectionError):
        return "is given twice"
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"expected a section first, one of {', '.join(f'[{section}]' for section in SECTIONS)}"
    return "expected KEY = VALUE"


def _nodes(text: str, user: str, key: str) -> tuple[Host, ...]:
    hosts: list[Host] = []
    try:
        # A comma inside brackets belongs to a range.
        for part in re.split(r",(?![^\[]*\])", text):
            for written in expand(part.strip()) if part.strip() else ():
                own, address, port = split(written)
                name = f"{address}:{port}" if port and any(host.address == address for host in hosts) else address
                if any(host.name == name for host in hosts):
                    raise UsageError(f"--nodes: {name} is listed twice")
                hosts.append(Host(name=name, address=address, port=port, user=own or user, identity_file=key))
        split(f"{user}@host")
    except NoHost as error:
        raise UsageError(f"--nodes, --ssh-user: {error}") from error
    if not hosts:
        raise UsageError("--nodes: expected hosts, separated by commas")
    return tuple(hosts)


def _key(written: str) -> str:
    if not written:
        return ""
    try:
        path = Path(written).expanduser()
        if path.is_file():
            return str(path)
    except (OSError, RuntimeError, ValueError):  # ~user without such a user, or an invalid path
        pass
    raise UsageError(f"--ssh-key: there is no file {written}", hint="the path of a private key on this machine")


def _address(written: str) -> str:
    try:
        user, address, port = split(written or "x")
    except NoHost as error:
        raise UsageError(f"--master-addr: {error}") from error
    if user or port:
        hint = "the port is --master-port"
        raise UsageError(f"--master-addr: expected an address alone, found {written!r}", hint=hint)
    return address if written else ""


def _port(written: str) -> int:
    try:
        return check_port(written)
    except NoHost as error:
        raise UsageError(f"--master-port: {error}") from error


def _there(flag: str, written: str) -> str:
    """Check a path on the nodes. madengine gets it unchanged, so that no shell could expand ~."""
    if written.startswith("~") or "\0" in written or "$" in written:
        hint = "write ~ and $HOME out, as /home/me"
        raise UsageError(f"--{flag}: expected a path on the nodes, found {written!r}", hint=hint)
    return written


def _interface(flag: str, found: Mapping[str, str]) -> str:
    written = found.get(flag, "")
    if any(character.isspace() or character in "/\0" for character in written):
        raise UsageError(f"--{flag}: expected the name of a network interface, found {written!r}")
    return written


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--additional-args: {str(error).lower()}: a shell could not read it either") from error
