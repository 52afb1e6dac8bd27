"""The tree of a run, kept in its run directory so that the run can be replayed: manifest, changes and contents."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from mesh.core.paths import kept_trees_directory
from mesh.rundir.layout import DIFF, MANIFEST, WORKSPACE
from mesh.workspace.gitdiff import DiffWriter
from mesh.workspace.hashes import HashCache
from mesh.workspace.listing import told, told_failure
from mesh.workspace.manifest import Manifest
from mesh.workspace.prepare import Prepared

CHANGED = "keep_tree: a file has changed: "


def write_manifest(directory: Path, cache: HashCache, manifest: Manifest) -> None:
    """Write the manifest of a run's workspace to its directory: as another name of the file in the cache."""
    place = directory / MANIFEST
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)
        found = cache.path_of(manifest.tree)
        try:
            os.link(found, place)
        except OSError:  # the cache is on another file system
            shutil.copyfile(found, place)
            place.chmod(0o600)


def begin_diff(directory: Path, workspace: Path) -> DiffWriter:
    """Begin to write the changes of a workspace to its commit."""
    return DiffWriter(workspace, directory / DIFF)


def mark_dirty(directory: Path) -> None:
    """Leave an empty file of changes: the workspace has new files, and none that git tracks has changed."""
    with contextlib.suppress(OSError):
        (directory / DIFF).touch(0o600)


def keep_contents(prepared: Prepared) -> str:
    """Keep the contents of a workspace, for ``keep_tree: true``; return why that failed, or "".

    A file that has changed since it was listed is forgotten, so that it is hashed anew. CHANGED begins the reason then.
    """
    from mesh.workspace.snapshot import Changed, keep_tree  # few runs keep their contents

    place, manifest = kept_trees_directory(os.environ), prepared.manifest
    try:
        keep_tree(prepared.root, manifest.entries, manifest.tree, place)
    except Changed as error:
        prepared.cache.forget(str(error).encode("latin-1"))
        return f"{CHANGED}{told(str(error).encode('latin-1'))} changes while it is read"
    except OSError as error:
        return f"keep_tree: {told_failure(error)}"
    return ""


def link_kept(directory: Path, tree: str) -> None:
    """Link a tree in the directory of its run, as long as which the tree stays. Without the tree do nothing."""
    from mesh.workspace.snapshot import TREES

    kept = kept_trees_directory(os.environ) / TREES / tree
    if kept.is_dir():
        with contextlib.suppress(OSError):
            link = directory / WORKSPACE
            link.unlink(missing_ok=True)
            link.symlink_to(kept)


def linked_trees(directories: Sequence[Path]) -> set[str]:
    """Return the hashes of the trees that run directories link."""
    found = set[str]()
    for directory in directories:
        with contextlib.suppress(OSError):
            found.add(os.path.basename(os.readlink(directory / WORKSPACE)))
    return found
