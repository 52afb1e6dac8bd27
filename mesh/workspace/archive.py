"""A workspace as one small archive, for a ConfigMap."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from mesh.core.amounts import told_bytes
from mesh.core.errors import UsageError
from mesh.workspace.listing import DIRECTORY, FILE, LINK, Entry, list_workspace, told

LIMIT_BYTES = 700_000  # of all files; base 64 makes 4 bytes of 3, and an object of Kubernetes has at most 1 MiB
NAMED_PATHS = 5  # in the refusal


def archive_of(workspace: Path, ignore: Sequence[str], *, include_git: bool = False) -> bytes:
    """Return the files of a workspace as a compressed archive, the same bytes for the same files.

    Raises UsageError for more than LIMIT_BYTES, with the largest paths, and MeshError for what cannot be read.
    """
    listing = list_workspace(workspace, ignore, include_git=include_git)
    refuse_large(listing.entries)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(listing.entries, key=lambda one: one.path):  # a directory comes before what is in it
            _add(archive, listing.root, entry)
    return packed.getvalue()


def refuse_large(entries: Sequence[Entry]) -> None:
    """Raise UsageError if files are too large for a ConfigMap."""
    total = sum(entry.size for entry in entries)
    if total <= LIMIT_BYTES:
        return
    files = sorted((entry for entry in entries if entry.kind == FILE), key=lambda one: (-one.size, one.path))
    lines = [f"  {told_bytes(entry.size):>8}  {told(entry.path)}" for entry in files[:NAMED_PATHS]]
    raise UsageError(
        f"source: config_map: the workspace has {told_bytes(total)}, and a ConfigMap takes "
        f"{told_bytes(LIMIT_BYTES)}; the largest files:\n" + "\n".join(lines),
        hint="leave files out by ignore: in mesh.yaml, or use `source: {git: URL}`, or no source: at all",
    )


def _add(archive: tarfile.TarFile, root: bytes, entry: Entry) -> None:
    member = tarfile.TarInfo(os.fsdecode(entry.path))
    member.mode, member.mtime = entry.mode, entry.mtime_ns // 10**9
    if entry.kind == LINK:
        member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(entry.target)
        archive.addfile(member)
    elif entry.kind == DIRECTORY:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    else:
        with open(os.path.join(root, entry.path), "rb") as file:
            data = file.read()
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
