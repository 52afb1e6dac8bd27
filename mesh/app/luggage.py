"""The workspace as the courier takes it: listed and hashed once, sent as changes, packed as hosts need it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from mesh.app import trees
from mesh.core.amounts import told_bytes
from mesh.core.errors import MeshError
from mesh.core.events import Event, Notice
from mesh.core.paths import cache_directory, runs_directory
from mesh.core.progress import Preparing
from mesh.core.run import RunSpec
from mesh.core.wants import Want
from mesh.protocol.answers import LACKS_BYTES
from mesh.workspace.biggest import biggest, ignore_lines
from mesh.workspace.git import GitState, asked_git
from mesh.workspace.hashes import HashCache
from mesh.workspace.ignore import left_by_default
from mesh.workspace.manifest import Changes, Manifest, changes, contents_in, not_in
from mesh.workspace.pack import BLOCK_BYTES as CONTENT_BLOCK_BYTES
from mesh.workspace.pack import Changed, read_wants
from mesh.workspace.prepare import prepare

LARGE_BYTES = 500_000_000  # of contents; before so much is sent, the user gets a list of the biggest
NAMED_PATHS = 5
NAMED_SHARE = 0.01  # of all that is sent; leaving out less helps nobody
LACK_BYTES, BLOCK_BYTES = 160, 90  # of a host's answer for a content, and for each block of another version of it
PREPARING_INTERVAL_S = 0.2  # between two Preparing


class WorkspaceLuggage:
    """The workspace of a run; see engine.courier.Luggage."""

    def __init__(self, spec: RunSpec, files: contextlib.ExitStack, post: Callable[[Event], None]) -> None:
        """files: closes the packs; post: called with Notice and Preparing, from any thread. Raises MeshError."""
        self._spec, self._files, self._post = spec, files, post
        self._told_at = time.monotonic()
        self._has_told_size = False
        self._is_stopped = False
        self._cache = HashCache(spec.workspace, cache_directory(os.environ))
        directory = runs_directory(os.environ) / spec.run
        self._directory = directory if directory.is_dir() else None  # None: the run is not kept
        asks_git = spec.has_command and not spec.as_is
        with asked_git(spec.workspace) if asks_git else contextlib.nullcontext(GitState) as state:
            self._list()
            found = state()
            self.env: Mapping[str, str] = found.variables  # for the ranks
        if self._directory is not None and found.has_changes:
            files.callback(trees.begin_diff(self._directory, spec.workspace).close)
        elif self._directory is not None and found.is_dirty:
            trees.mark_dirty(self._directory)
        for skipped in self._prepared.skipped:
            self._say(f"not sent: {skipped}")
        for notice in (*self._prepared.notices, *self._env_files_sent()):
            self._say(notice)

    def changes(self, base: str) -> bytes:
        """Return the changes since another tree; all of it, if that tree is not recorded here."""
        return self._since(base)[0]

    def foreseen(self, base: str) -> Sequence[Want]:
        """Return the contents that a host with that tree will lack: those never sent, or all if it has no tree."""
        return self._since(base)[1]

    def _env_files_sent(self) -> Iterator[str]:
        """Yield a notice for each file of --env-file that belongs to the workspace."""
        root = self._spec.workspace.resolve()
        sent = {entry.path for entry in self._prepared.manifest.entries} if self._spec.env_files else set()
        for path in self._spec.env_files:
            with contextlib.suppress(ValueError, OSError):  # it is elsewhere
                inside = path.resolve().relative_to(root)
                if os.fsencode(inside).decode("latin-1") in sent:
                    hint = f"`ignore: [/{inside}]` in mesh.yaml avoids it"
                    yield f"{inside} of --env-file is sent with the workspace; {hint}"

    def _since(self, base: str) -> tuple[bytes, Sequence[Want]]:
        """Return both answers for a base, computed once, as most hosts have the same."""
        if base not in self._known:
            manifest = self._prepared.manifest
            known = manifest if base == manifest.tree else self._cache.known_manifest(base)
            new = changes(known, manifest)._replace(leave=self._leave)
            foreseen = self._foresee(known, new) if known or not base else ()
            self._known[base] = new.to_bytes(), foreseen
        return self._known[base]

    def _foresee(self, known: Manifest | None, changed: Changes) -> Sequence[Want]:
        new = {entry.content: entry.size for entry in changed.put if entry.kind == "f"}
        lacking = set(new)
        if known is not None and new:
            lacking = self._cache.never_sent(not_in(contents_in(known.to_json()), lacking))
        return [{"hash": content, "size": size} for content, size in new.items() if content in lacking]

    def asked(self, wants: Sequence[Want]) -> None:
        """Name the biggest files, once, before very much is sent."""
        missing = {want["hash"]: want["size"] for want in wants if not want.get("base")}
        total = sum(missing.values())
        if total <= LARGE_BYTES or self._has_told_size:
            return
        self._has_told_size = True
        files = [
            (entry.path.encode("latin-1"), entry.size)
            for entry in self._prepared.manifest.entries
            if entry.kind == "f" and entry.content in missing
        ]
        paths = [path for path in biggest(files, NAMED_PATHS) if path.size >= NAMED_SHARE * total]
        lines = ignore_lines(paths, [told_bytes(path.size) for path in paths])
        head = f"sending {told_bytes(total)}; what the hosts can do without goes into mesh.yaml, as"
        self._say("\n    ".join([head, *lines]))

    def pack(self, wants: Sequence[Want], *, compress: bool) -> int:
        """Make a pack; return the descriptor of its file. Raises MeshError and OSError."""
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (it has no name, and is closed with the run)
        self._files.enter_context(file)
        self._prepared.pack(read_wants(list(wants)), file, compress=compress, progress=self._show_packing)
        file.flush()
        return file.fileno()

    def has_changed(self, error: Exception) -> bool:
        """Return True if ``pack`` failed because a file has changed. Then ``renew`` lists it anew."""
        return isinstance(error, Changed)

    def renew(self) -> None:
        """List the workspace again; ``tree`` is another one then. Raises MeshError."""
        self._list()

    def sent(self) -> None:
        """Record the tree as a base for later syncs, as a host has it now."""
        manifest = self._prepared.manifest
        self._cache.remember(manifest)
        if self._directory is None or not self._spec.has_command:
            return
        trees.write_manifest(self._directory, self._cache, manifest)
        if self._spec.keep_tree:
            trees.link_kept(self._directory, manifest.tree)

    def stop(self) -> None:
        """Have a pack that is being made fail with a MeshError, as no pack is needed any more. From any thread."""
        self._is_stopped = True

    def _list(self) -> None:
        spec = self._spec
        # Hosts keep what an earlier version has sent.
        self._leave = () if spec.as_is else left_by_default(spec.workspace, spec.ignore)
        for last in (False, False, True):
            self._prepared = prepare(
                spec.workspace,
                spec.ignore,
                self._cache,
                include_git=spec.include_git,
                as_is=spec.as_is,
                progress=self._show_progress,
            )
            if not spec.keep_tree or self._directory is None or self._has_kept(last=last):
                break
        self._known: dict[str, tuple[bytes, Sequence[Want]]] = {}  # by the tree hash of a base
        manifest = self._prepared.manifest
        self.tree = manifest.tree
        blocks = sum(entry.size for entry in manifest.entries) // CONTENT_BLOCK_BYTES
        self.lacks_bytes = LACKS_BYTES + LACK_BYTES * len(manifest.entries) + 2 * BLOCK_BYTES * blocks

    def _has_kept(self, *, last: bool) -> bool:
        """Keep the contents of the workspace here; return False if a file has changed. last: name such a file"""
        problem = trees.keep_contents(self._prepared)
        if problem.startswith(trees.CHANGED) and not last:
            return False
        if problem:
            self._say(f"{problem}; `mesh replay` may lack files of this run")
        return True

    def _say(self, text: str) -> None:
        self._post(Notice(time=time.time(), text=text))

    def _show_packing(self, what: str, done: int, of: int) -> None:
        if self._is_stopped:
            raise MeshError("this pack is not needed any more")
        self._show_progress(what, done, of)

    def _show_progress(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now >= self._told_at + PREPARING_INTERVAL_S:
            self._told_at = now
            self._post(Preparing(time=time.time(), what=what, done=done, of=of))
