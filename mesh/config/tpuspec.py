"""Reader of what `tpu:` asks to be made: JOBMAN's keys, and those of mesh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config.hosts import NoHost, split
from mesh.config.interpolation import as_node
from mesh.config.section import Section
from mesh.config.tpu import INTERNAL_IP, SHAPES
from mesh.config.tpuflags import Value, read_flags
from mesh.config.yamlfile import Problems, scalar
from mesh.core.job import MachinesSpec
from mesh.core.tpu import MAKE_FOR_S, REPAIR_FOR_S, Pricing, Provision, Recreate, TpuSpec

KEY = MAKER = "tpu"
OF_JOBMAN = (
    *("name", "accelerator", "zone", "project", "version", "pricing", "allocation_mode", "startup_script"),
    *("tags", "metadata", "flags"),
)
OURS = (
    *("runtime", "provision", "zones", "slices", "reservation", "labels", "network", "subnetwork", "external_ips"),
    *("service_account", "scopes", "data_disks", "autocheckpoint", "description", "valid_for", "make_for", "keep"),
    *("user", "identity_file", "internal_ip", "iap", "recreate", "unreachable_for", "probe", "repair_for"),
)
WRITTEN = ("num_workers", "ips")  # by JOBMAN, into the copy of a job's file; machines are asked of the API
KEYS = (*OF_JOBMAN, *OURS, *WRITTEN)
SAME = (("version", "runtime"), ("allocation_mode", "provision"), ("zone", "zones"))  # two spellings of a key
SLICES_MAX = 256
PREFIX_LENGTH = 30  # of a name of 61 characters, to which mesh adds store, job and generation
SCRIPT_START = "#!"
SCRIPT_KEY = "startup-script"  # of metadata
OUR_LABELS = "mesh-"  # the beginning of labels on the machines of mesh
ACCELERATOR = re.compile(r"[a-z][a-z0-9]*-[1-9][0-9]{0,5}")
LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][-_a-z0-9]{0,62}"), re.compile(r"[-_a-z0-9]{0,63}")
TAG = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
DISK = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?(?::read-only)?")
V = TypeVar("V")


def machines_of(tpu: TpuSpec) -> MachinesSpec:
    """Return the machines of a job that are made. ``pool``: quota of the first zone; the queue tries all zones."""
    return MachinesSpec(maker=MAKER, pool=tpu.pool(tpu.zones[0] if tpu.zones else ""), units=tpu.chips, tpu=tpu)


def read_tpu(node: Node, where: str, problems: Problems, *, also: tuple[str, ...] = ()) -> TpuSpec:
    """Return what a mapping asks for; it is valid only without problems.

    where: its path in the file; also: keys beside these, which the caller reads
    """
    keys = Section(_with_flags(node, where, problems), where, (*KEYS, *also), problems, "a mapping with accelerator:")
    for one, other in SAME:
        if one in keys and other in keys:
            keys.add(other, f"is there beside {one}; they are one thing")
    provision, reservation = _provision(keys), _name(keys, "reservation")
    pricing = _pricing(keys, provision, reservation)
    metadata = keys.environment("metadata")
    return TpuSpec(
        accelerator=_accelerator(keys, node),
        runtime=_runtime(keys, node),
        zones=_zones(keys),
        project=_shaped(keys, "project"),
        provision=provision,
        pricing=pricing,
        slices=_slices(keys, provision),
        reservation=reservation,
        prefix=_prefix(keys),
        network=keys.text("network"),
        subnetwork=keys.text("subnetwork"),
        external_ips=keys.flag("external_ips", default=True),
        service_account=keys.text("service_account"),
        scopes=keys.texts("scopes", "a list of scopes"),
        labels=_labels(keys),
        tags=_matching(keys, "tags", TAG, "tags: lower-case letters, digits and dashes"),
        startup_script=_startup_script(keys, metadata),
        metadata={name: text for name, text in metadata.items() if name != SCRIPT_KEY},
        data_disks=_matching(keys, "data_disks", DISK, "names of disks, each with :read-only behind it where it is"),
        autocheckpoint=keys.flag("autocheckpoint"),
        description=keys.text("description"),
        user=keys.text("user", "a user name"),
        identity_file=_identity_file(keys),
        internal_ip=_internal_ip(keys),
        iap=keys.flag("iap"),
        valid_for=_valid_for(keys, provision),
        make_for=keys.seconds("make_for", MAKE_FOR_S) or MAKE_FOR_S,
        recreate=keys.word("recreate", Recreate, Recreate.WAIT),
        unreachable_for=_unreachable_for(keys),
        probe=_probe(keys),
        repair_for=keys.seconds("repair_for", REPAIR_FOR_S) or REPAIR_FOR_S,
        keep=keys.seconds("keep", 0.0),
    )


def spec_of_keys(keys: Mapping[str, Value], name: str) -> TpuSpec:
    """Return what keys and values ask for. name: of their place, for messages. Raises UsageError with all problems."""
    mark = Mark(name, 0, 0, 0, None, 0)
    at = ScalarNode("tag:yaml.org,2002:str", "", mark, mark)
    pairs = [(as_node(key, at), as_node(value, at)) for key, value in keys.items()]
    problems = Problems(Path(name))
    found = read_tpu(MappingNode("tag:yaml.org,2002:map", pairs, mark, mark), KEY, problems)
    problems.check()
    return found


def _with_flags(node: Node, where: str, problems: Problems) -> Node:
    """Return the mapping without empty values, and with the keys that the words of `flags:` mean."""
    if not isinstance(node, MappingNode):
        return node
    pairs = [(key, value) for key, value in node.value if not str(value.tag).endswith(":null")]
    flags = next((value for key, value in pairs if key.value == "flags"), None)
    kept = [(key, value) for key, value in pairs if key.value != "flags"]
    if flags is None:
        return MappingNode(node.tag, kept, node.start_mark, node.end_mark)
    place = f"{where}.flags"
    if not isinstance(flags, SequenceNode):
        problems.unexpected(flags, place, "a list of words for gcloud")
        return MappingNode(node.tag, kept, node.start_mark, node.end_mark)
    words: list[str] = []
    for item in flags.value:
        try:
            words += shlex.split(scalar(item, place, problems, "a word for gcloud"))
        except ValueError as error:
            problems.add(item, place, f"{item.value!r}: {error}")
    found, wrong = read_flags(words)
    for text in wrong:
        problems.add(flags, place, text)
    return MappingNode(node.tag, _joined(kept, found, flags, place, problems), node.start_mark, node.end_mark)


def _joined(
    pairs: list[tuple[Node, Node]], found: Mapping[str, Value], flags: Node, place: str, problems: Problems
) -> list[tuple[Node, Node]]:
    """Return the keys of the file with those of its flags: lists and mappings add up, other values must be equal."""
    joined = list(pairs)
    for name, value in found.items():
        new = as_node(value, flags)
        index = next((index for index, (key, _) in enumerate(joined) if key.value == name), -1)
        if index < 0:
            joined.append((as_node(name, flags), new))
            continue
        key, old = joined[index]
        if type(old) is type(new) and not isinstance(old, ScalarNode):
            joined[index] = key, type(old)(old.tag, [*old.value, *new.value], old.start_mark, old.end_mark)
        elif old.value != new.value:
            problems.add(flags, place, f"say {name}: {new.value}, and the key {name}: says {old.value}")
    return joined


def _accelerator(keys: Section, node: Node) -> str:
    if "accelerator" not in keys:
        if isinstance(node, MappingNode):
            keys.problems.add(node, keys.where("accelerator"), "is missing")
            keys.problems.hints.append("accelerator: v6e-8")
        return ""
    found = keys.text("accelerator", "a type, as v6e-32")
    if found and not ACCELERATOR.fullmatch(found):
        keys.unexpected("accelerator", "a type, as v6e-32 or v5litepod-16")
    return found


def _runtime(keys: Section, node: Node) -> str:
    if "version" not in keys and "runtime" not in keys:
        if isinstance(node, MappingNode):
            keys.problems.add(node, keys.where("version"), "is missing")
            keys.problems.hints.append("version: tpu-ubuntu2204-base")
        return ""
    return keys.text("version") or keys.text("runtime")


def _shaped(keys: Section, key: str) -> str:
    """Return a text of the shape that Google has for its kind."""
    shape, expected = SHAPES[key]
    found = keys.text(key, expected)
    if found and not shape.fullmatch(found):
        keys.unexpected(key, expected)
    return found


def _zones(keys: Section) -> tuple[str, ...]:
    """Return the zones in order; () means that of gcloud."""
    shape, expected = SHAPES["zone"]
    if "zones" not in keys:
        found = _shaped(keys, "zone")
        return (found,) if found else ()
    node = keys.node("zones")
    zones = (keys.text("zones", expected),) if isinstance(node, ScalarNode) else keys.texts("zones", "a list of zones")
    for zone in zones:
        if not shape.fullmatch(zone):
            keys.add("zones", f"expected zones, as us-central2-b, found {zone!r}")
    if not zones:
        keys.add("zones", "is empty")
    return tuple(dict.fromkeys(zones))


def _provision(keys: Section) -> Provision:
    key = "allocation_mode" if "allocation_mode" in keys else "provision"
    return keys.word(key, Provision, Provision.QUEUED_RESOURCES)


def _pricing(keys: Section, provision: Provision, reservation: str) -> Pricing:
    pricing = keys.word("pricing", Pricing, Pricing.RESERVED if reservation else Pricing.ONDEMAND)
    if reservation and pricing is not Pricing.RESERVED and "pricing" in keys:
        keys.add("pricing", f"is {pricing.value}, and reservation: needs reserved")
    if pricing is Pricing.BEST_EFFORT and provision is Provision.TPU_VM:
        keys.add("pricing", "best-effort is for allocation_mode: queued-resources")
    return pricing


def _slices(keys: Section, provision: Provision) -> int:
    slices = keys.integer("slices", 1, 1, SLICES_MAX)
    if slices > 1 and provision is Provision.TPU_VM:
        keys.add("slices", "several slices are for allocation_mode: queued-resources")
        keys.problems.hints.append("allocation_mode: queued-resources")
    return slices


def _prefix(keys: Section) -> str:
    """Return how names of machines begin: lower-case letters, digits and dashes, as Google wants them."""
    found = re.sub(r"[^a-z0-9]+", "-", keys.text("name", "how names of machines begin").lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", found)[:PREFIX_LENGTH].rstrip("-")


def _name(keys: Section, key: str) -> str:
    found = keys.text(key, "a name")
    if any(character.isspace() for character in found):
        keys.unexpected(key, "a name without spaces")
    return found


def _labels(keys: Section) -> dict[str, str]:
    labels = keys.environment("labels")
    for name, value in labels.items():
        if name.startswith(OUR_LABELS):
            keys.add("labels", f"{name}: labels that begin with {OUR_LABELS} are mesh's own")
        elif not LABEL_KEY.fullmatch(name) or not LABEL_VALUE.fullmatch(value):
            keys.add("labels", f"{name}: {value!r}: expected lower-case letters, digits, dashes and underscores")
    return labels


def _matching(keys: Section, key: str, shape: re.Pattern[str], expected: str) -> tuple[str, ...]:
    found = keys.texts(key, f"a list of {expected}")
    for text in found:
        if not shape.fullmatch(text):
            keys.add(key, f"expected {expected}, found {text!r}")
    return tuple(dict.fromkeys(found))


def _startup_script(keys: Section, metadata: Mapping[str, str]) -> str:
    """Return the text of the script, which the file gives as text or as a path."""
    if "startup_script" not in keys:
        return metadata.get(SCRIPT_KEY, "")
    if SCRIPT_KEY in metadata:
        keys.add("metadata", f"has {SCRIPT_KEY} beside startup_script: of the file")
    written = keys.text("startup_script", "a script, or its path")
    if not written or "\n" in written or written.startswith(SCRIPT_START):
        return written
    path = Path(written).expanduser()
    for place in (keys.problems.path.parent / path, path):
        if place.is_file():
            try:
                return place.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                keys.add("startup_script", f"cannot read {place}: {getattr(error, 'strerror', '') or 'not UTF-8 text'}")
                return ""
    keys.add("startup_script", f"there is no file {written}; a text begins with {SCRIPT_START}, or has several lines")
    return ""


def _identity_file(keys: Section) -> str:
    written = keys.text("identity_file", "the path of a private key")
    path = Path(written).expanduser()
    if written and not path.is_file():
        keys.add("identity_file", f"there is no file {path}")
    return str(path.absolute()) if written else ""


def _internal_ip(keys: Section) -> str:
    found = keys.text("internal_ip", "auto, true or false", INTERNAL_IP[0]).lower()
    if found not in INTERNAL_IP:
        keys.unexpected("internal_ip", "auto, true or false")
    return found


def _valid_for(keys: Section, provision: Provision) -> float:
    found = keys.seconds("valid_for", 0.0)
    if found and provision is Provision.TPU_VM:
        keys.add("valid_for", "is for allocation_mode: queued-resources, as a tpu-vm does not wait")
    return found


def _unreachable_for(keys: Section) -> float:
    found = keys.seconds("unreachable_for", 0.0)
    if found and "iap" in keys and keys.flag("iap"):
        keys.add("unreachable_for", "is not for iap: true, as this machine cannot try the ports of hosts there")
    return found


def _probe(keys: Section) -> str:
    expected = "an SSH server elsewhere, as gateway.lab:22"
    found = keys.text("probe", expected)
    if not found:
        return ""
    try:
        user, host, _ = split(found)
    except NoHost:
        user, host = "", ""
    if not host or user:
        keys.unexpected("probe", expected)
    if "unreachable_for" not in keys:
        keys.add("probe", "is only for unreachable_for:")
    return found
