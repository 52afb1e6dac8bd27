"""Words for `gcloud compute tpus`, read as keys of `tpu:`: those of `tpu.flags` and of `--CQR_EXTRA_ARGS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from mesh.config.yamlfile import did_you_mean

Value: TypeAlias = str | bool | list[str] | dict[str, str]
Read: TypeAlias = Callable[[str], Value]  # raises ValueError with the reason


class Word(Struct, frozen=True, kw_only=True):
    """A word that is read. Without a reader it takes no value."""

    key: str = ""  # of `tpu:`; "": it changes nothing
    value: Value = ""  # of a word that takes none
    read: Read | None = None


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a value")
    return text


def _list(text: str) -> list[str]:
    return [one for one in _text(text).split(",") if one]


def _pairs(text: str) -> dict[str, str]:
    """Read NAME=VALUE,NAME=VALUE; with ^X^ in front, X stands for the comma (`gcloud topic escaping`)."""
    separator = ","
    if text.startswith("^") and "^" in text[1:]:
        separator, _, text = text[1:].partition("^")
    found = {}
    for pair in filter(None, _text(text).split(separator or ",")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"expected NAME=VALUE, found {pair!r}")
        found[name] = value
    return found


def _files(text: str) -> dict[str, str]:
    """Read NAME=PATH,NAME=PATH as names and the contents of the files."""
    found = {}
    for name, path in _pairs(text).items():
        try:
            found[name] = Path(path).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', '') or 'not UTF-8 text'}") from error
    return found


def _disk(text: str) -> list[str]:
    """Read source=DISK,mode=MODE as DISK, or DISK:read-only."""
    facts = _pairs(text)
    if unknown := sorted(facts.keys() - {"source", "mode"}) or "source" not in facts:
        raise ValueError(f"expected source=DISK[,mode=read-only], found {unknown if unknown is True else unknown[0]!r}")
    mode = facts.get("mode", "read-write")
    if mode not in ("read-only", "read-write"):
        raise ValueError(f"mode: expected read-only or read-write, found {mode!r}")
    name = facts["source"].rpartition("/")[2]
    return [f"{name}:read-only" if mode == "read-only" else name]


# https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources/create, and tpu-vm/create
WORDS: Mapping[str, Word] = {
    "--spot": Word(key="pricing", value="spot"),
    "--preemptible": Word(key="pricing", value="preemptible"),
    "--reserved": Word(key="pricing", value="reserved"),
    "--best-effort": Word(key="pricing", value="best-effort"),
    "--guaranteed": Word(key="pricing", value="ondemand"),
    "--service-account": Word(key="service_account", read=_text),
    "--scopes": Word(key="scopes", read=_list),
    "--network": Word(key="network", read=_text),
    "--subnetwork": Word(key="subnetwork", read=_text),
    "--internal-ips": Word(key="external_ips", value=False),
    "--labels": Word(key="labels", read=_pairs),
    "--tags": Word(key="tags", read=_list),
    "--metadata": Word(key="metadata", read=_pairs),
    "--metadata-from-file": Word(key="metadata", read=_files),
    "--data-disk": Word(key="data_disks", read=_disk),
    "--autocheckpoint-enabled": Word(key="autocheckpoint", value=True),
    "--reservation": Word(key="reservation", read=_text),
    "--valid-until-duration": Word(key="valid_for", read=_text),
    "--node-count": Word(key="slices", read=_text),
    "--node-prefix": Word(key="name", read=_text),
    "--description": Word(key="description", read=_text),
    "--project": Word(key="project", read=_text),
    "--zone": Word(key="zone", read=_text),
    "--accelerator-type": Word(key="accelerator", read=_text),
    "--runtime-version": Word(key="version", read=_text),
    "--version": Word(key="version", read=_text),
    "--async": Word(),
    "--quiet": Word(),
}
# Words of gcloud that would have an effect which mesh has in another way.
INSTEAD = {
    "--type": "write accelerator:, as v4-16",
    "--topology": "write accelerator:, as v4-16",
    "--valid-after-duration": "write job: {after: TIME}",
    "--node-id": "mesh gives every machine a name of its own; name: is how it begins",
}
SHORT = {"-q": "--quiet"}


def read_flags(words: Sequence[str]) -> tuple[dict[str, Value], list[str]]:
    """Return the keys of `tpu:` that words mean, and problems with words. Lists and mappings of several words add up.

    >>> read_flags(["--spot", "--labels=a=b", "--labels", "c=d", "--tags=x,y", "--internal-ips"])
    ({'pricing': 'spot', 'labels': {'a': 'b', 'c': 'd'}, 'tags': ['x', 'y'], 'external_ips': False}, [])
    >>> read_flags(["--lables=a=b"])
    ({}, ["--lables: mesh reads no such word; did you mean '--labels'?"])
    """
    found: dict[str, Value] = {}
    problems: list[str] = []
    rest = list(words)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        name = SHORT.get(name, name)
        word = WORDS.get(name)
        if word is None:
            problems.append(_refusal(name))
            if not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)  # its value
            continue
        if word.read is None:
            if equals:
                problems.append(f"{name}: takes no value")
            elif word.key:
                problems += _add(found, name, word.key, word.value)
            continue
        if not equals and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        try:
            problems += _add(found, name, word.key, word.read(text))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return found, problems


def _refusal(name: str) -> str:
    if name in INSTEAD:
        return f"{name}: mesh does not read it; {INSTEAD[name]}"
    if not name.startswith("-"):
        return f"{name!r}: expected a word that begins with --"
    near = did_you_mean(name, list(WORDS))
    return f"{name}: mesh reads no such word{near if 'did you mean' in near else ''}"


def _add(found: dict[str, Value], name: str, key: str, value: Value) -> list[str]:
    """Add a value to those that were found; return problems."""
    before = found.get(key, value)
    if isinstance(before, list) and isinstance(value, list):
        found[key] = list(dict.fromkeys([*before, *value]))
    elif isinstance(before, dict) and isinstance(value, dict):
        found[key] = {**before, **value}
    elif before != value:
        return [f"{name}: contradicts the words before it ({key}: {before})"]
    else:
        found[key] = value
    return []
