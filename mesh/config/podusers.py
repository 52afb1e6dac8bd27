"""Reader of the file of ``mesh pods apply``: users with their quotas, and the dev pod that each of them gets."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from yaml.nodes import MappingNode

from mesh.config import podspec, yamlfile
from mesh.config.podspec import EXPECTED_QUANTITY, Plain
from mesh.config.section import Section
from mesh.config.userspaces import namespace_of
from mesh.core.errors import UsageError

KEYS = ("users", "dev")
USER_KEYS = ("cpu", "memory", "gpus", "storage", "pods", "key")
DEV_KEYS = (
    *("image", "cpu", "memory", "volume", "mount", "access", "storage_class"),
    *("gpu", "gang", "jobs", "server", "port", "start_timeout", "pod"),
)
ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")
SHARED = "ReadWriteMany"  # the access mode that pods on several nodes need
PODS_DEFAULT, PODS_MAX = 20, 10_000
GPUS_MAX = 100_000
ACCOUNTS = ("root", "tty")  # of the dev pod itself: of its passwd and group
PORT_LEAST = 1024  # an unprivileged user cannot listen below
EXPECTED_KEY = "a public key, or the path of its file, as ~/.ssh/id_ed25519.pub"
_KEY = re.compile(r"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9-]+(?:@openssh\.com)? [A-Za-z0-9+/=]+(?: .*)?")
_IMAGE = re.compile(r"\S+")


class PodUser(Struct, frozen=True, kw_only=True):
    """A user, and the most that the user's pods may have together."""

    name: str
    cpu: str
    memory: str
    storage: str  # of all claims
    gpus: int = 0
    pods: int = PODS_DEFAULT
    keys: tuple[str, ...] = ()  # public keys, by which the user logs in


class DevPod(Struct, frozen=True, kw_only=True):
    """The pod in which a user works, and the user's volume."""

    image: str
    cpu: str = "1"
    memory: str = "2Gi"
    volume: str = "10Gi"
    mount: str = "/TData"
    access: str = ACCESS_MODES[0]
    storage_class: str = ""  # "": the cluster's default
    gpu: str = "nvidia.com/gpu"  # the resource that ``gpus`` of a user counts
    gang: str = ""  # the kind of gangs that the users' pods may form; "": none
    jobs: bool = False  # users may make what `mesh pods render --as` prints
    server: str = "https://kubernetes.default.svc"  # the API server, as pods reach it
    port: int = 2222  # of sshd, on the pod's loopback address
    start_timeout: float = 600.0  # seconds until it runs
    pod: Plain = {}  # fields of its pod spec, merged last


class PodUsers(Struct, frozen=True, kw_only=True):
    """The users of a file, and their dev pod."""

    users: tuple[PodUser, ...]
    dev: DevPod


def read_pod_users(path: Path) -> PodUsers:
    """Read the file. Raises UsageError with all problems."""
    node, problems = yamlfile.load(path)
    if node is None or not isinstance(node, MappingNode):
        raise UsageError(f"{path}: expected users: and dev:", hint="docs/pods.md has an example")
    section = Section(node, "", KEYS, problems, "users: and dev:")
    for name in KEYS:
        if name not in section:
            problems.add(node, name, "is missing")
    problems.check()
    dev = _dev(Section(section.node("dev"), "dev", DEV_KEYS, problems, "a mapping with image:"))
    listed = yamlfile.mapping(section.node("users"), "users", problems, "users by name")
    users = []
    for name, (key, value) in listed.items():
        try:
            namespace_of(name)
        except UsageError as error:
            problems.add(key, f"users.{name}", str(error))
        if name in ACCOUNTS:
            problems.add(key, f"users.{name}", "is an account of the dev pod itself; choose another name")
        elif name.isdecimal():
            problems.add(key, f"users.{name}", "is a number, which can be that of an account; choose a name")
        own = Section(value, f"users.{name}", USER_KEYS, problems, "a mapping with cpu: and memory:")
        users.append(_user(name, own, dev, path.parent))
    problems.check()
    if not users:
        raise UsageError(f"{path}: users: lists none")
    return PodUsers(users=tuple(users), dev=dev)


def _dev(section: Section) -> DevPod:
    problems = section.problems
    image = section.text("image", "an image, as team/dev:1")
    if not _IMAGE.fullmatch(image):
        _add(section, "image", "expected an image, as team/dev:1, with mesh and sshd in it")
    defaults = DevPod(image=image)
    mount = section.text("mount", "a path, as /TData", defaults.mount)
    if not mount.startswith("/") or not mount.strip("/"):
        section.unexpected("mount", "an absolute path, as /TData")
    access = section.text("access", " or ".join(ACCESS_MODES), defaults.access)
    if access not in ACCESS_MODES:
        section.unexpected("access", " or ".join(ACCESS_MODES))
    gang = section.text("gang", podspec.VOLCANO)
    if gang not in ("", podspec.VOLCANO):
        section.unexpected("gang", podspec.VOLCANO)
    server = section.text("server", "an address, as https://10.0.0.1:6443", defaults.server)
    if not server.startswith("https://"):
        section.unexpected("server", "an address, as https://10.0.0.1:6443")
    pod: Plain = {}
    if "pod" in section:
        found = podspec.plain(section.node("pod"))
        if isinstance(found, dict):
            pod = {str(name): value for name, value in found.items()}
        else:
            problems.unexpected(section.node("pod"), section.where("pod"), "fields of a pod spec")
    return DevPod(
        image=image,
        cpu=_quantity(section, "cpu", defaults.cpu),
        memory=_quantity(section, "memory", defaults.memory),
        volume=_quantity(section, "volume", defaults.volume),
        mount=f"/{mount.strip('/')}",
        access=access,
        storage_class=section.text("storage_class", "the name of a storage class"),
        gpu=section.text("gpu", "the name of a resource, as nvidia.com/gpu", defaults.gpu),
        gang=gang,
        jobs=section.flag("jobs"),
        server=server.rstrip("/"),
        port=section.integer("port", defaults.port, PORT_LEAST, 65535),
        start_timeout=section.seconds("start_timeout", defaults.start_timeout),
        pod=pod,
    )


def _user(name: str, section: Section, dev: DevPod, directory: Path) -> PodUser:
    for key in ("cpu", "memory"):
        if key not in section:
            _add(section, key, "is missing: a quota needs it")
    return PodUser(
        name=name,
        cpu=_quantity(section, "cpu", "1"),
        memory=_quantity(section, "memory", "1Gi"),
        storage=_quantity(section, "storage", dev.volume),
        gpus=section.integer("gpus", 0, 0, GPUS_MAX),
        pods=section.integer("pods", PODS_DEFAULT, 1, PODS_MAX),
        keys=_keys(section, directory),
    )


def _add(section: Section, key: str, text: str) -> None:
    """Note a problem with a key, which may not be there."""
    if key in section:
        section.add(key, text)
    else:
        section.problems.lines.append(f"{section.problems.path}: {section.where(key)}: {text}")


def _quantity(section: Section, key: str, default: str) -> str:
    found = section.text(key, EXPECTED_QUANTITY, default)
    if not podspec.is_quantity(found):
        section.unexpected(key, EXPECTED_QUANTITY)
    return found


def _keys(section: Section, directory: Path) -> tuple[str, ...]:
    """Return the public keys of a user. A path is relative to the directory of the file."""
    text = section.text("key", EXPECTED_KEY)
    if text and not _KEY.fullmatch(text):
        try:
            text = (directory / Path(text).expanduser()).read_text()
        except (OSError, RuntimeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            section.add("key", f"cannot read {text} ({why}); expected {EXPECTED_KEY}")
            return ()
    lines = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if any(not _KEY.fullmatch(line) for line in lines) or (text and not lines):
        section.add("key", f"expected {EXPECTED_KEY}")
        return ()
    return lines
