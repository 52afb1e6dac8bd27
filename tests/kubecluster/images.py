"""Images for the tests' cluster, written from this machine's own files: no registry and no engine is asked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PYTHON, PLAIN, PAUSE = "mesh.test/python:1", "mesh.test/plain:1", "mesh.test/pause:1"
SHELL_PROGRAMS = (
    *("bash", "sh", "sleep", "cat", "env", "ls", "mkdir", "rm", "id", "seq", "touch", "true", "false", "head", "tail"),
    *("wc", "dd", "sort", "tr", "uname", "chmod", "mv", "cp", "ln", "date", "hostname", "grep", "sed", "yes", "tar"),
)
LEFT_OUT = re.compile(r"/(test|tests|idlelib|tkinter|lib2to3|ensurepip|dist-packages|site-packages|config-3[^/]*)(/|$)")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
DIRECTORIES = {"tmp": 0o1777, "root": 0o700, "etc": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755, "mesh": 0o755}
PASSWD = "root:x:0:0:root:/root:/bin/bash\n"


def write_images(directory: Path) -> list[Path]:
    """Write the archives of all images: one with Python and git, one with a shell alone, and that of sandboxes."""
    shell = [_program(name) for name in SHELL_PROGRAMS]
    return [
        _write(directory / "python.tar", PYTHON, [*shell, *_git(), *_python()], ["sleep", "infinity"]),
        _write(directory / "plain.tar", PLAIN, shell, ["sleep", "infinity"]),
        _write(directory / "pause.tar", PAUSE, [_program("sleep")], ["/usr/bin/sleep", "infinity"]),
    ]


def _program(name: str) -> tuple[str, Path]:
    """Return the name of a program in an image, and its file here."""
    found = next(Path(place, name) for place in ("/usr/bin", "/bin", "/usr/sbin") if Path(place, name).exists())
    return f"usr/bin/{name}", found


def _python() -> Iterator[tuple[str, Path]]:
    """Yield the files of the system's Python, or of this one where there is none."""
    program = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else os.path.realpath(sys.executable)
    ask = "import sys, sysconfig; print(sysconfig.get_path('stdlib')); print(sys.executable)"
    environ = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([program, "-I", "-S", "-c", ask], check=True, capture_output=True, text=True, env=environ)
    library, executable = done.stdout.split()
    yield "usr/bin/python3", Path(executable)
    yield executable.lstrip("/"), Path(executable)
    for path in sorted(Path(library).rglob("*")):
        name = str(path)
        if path.is_file() and not LEFT_OUT.search(name) and not name.endswith((".opt-1.pyc", ".opt-2.pyc", ".a")):
            yield name.lstrip("/"), path


def _git() -> Iterator[tuple[str, Path]]:
    """Yield git, and its program for HTTP."""
    yield _program("git")
    place = subprocess.run(["git", "--exec-path"], check=True, capture_output=True, text=True).stdout.strip()
    for name in ("git-remote-http", "git-remote-https"):
        yield f"usr/bin/{name}", Path(os.path.realpath(Path(place, name)))


def _libraries(files: Sequence[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Yield the shared libraries that programs and modules among the files need."""
    binaries = [str(path) for name, path in files if name.startswith("usr/bin/") or name.endswith(".so")]
    shown = subprocess.run(["ldd", *dict.fromkeys(binaries)], capture_output=True, text=True).stdout
    for found in sorted({*re.findall(r"(/\S+) \(0x", shown)}):
        place = Path(os.path.realpath(os.path.dirname(found)), os.path.basename(found))
        yield str(place).lstrip("/"), place
        if "ld-linux" in found:  # its name stands in each program
            yield str(Path("usr", *Path(found).parts[1:])), place


def _write(archive: Path, tag: str, files: Sequence[tuple[str, Path]], command: Sequence[str]) -> Path:
    """Write an archive as `docker save` does, of one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, mode in DIRECTORIES.items():
            _add(tar, name, b"", mode, tarfile.DIRTYPE)
        for name, target in LINKS.items():
            _add(tar, name, b"", 0o777, tarfile.SYMTYPE, target)
        _add(tar, "etc/passwd", PASSWD.encode(), 0o644)
        for name, path in dict([*files, *_libraries(files)]).items():
            _add(tar, name, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    data = layer.getvalue()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
    }
    manifest: list[dict[str, Any]] = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, content in (
            ("layer.tar", data),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(tar, name, content, 0o644)
    return archive


def _add(
    tar: tarfile.TarFile, name: str, data: bytes, mode: int, kind: bytes = tarfile.REGTYPE, target: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode, entry.size = kind, target, mode, len(data)
    tar.addfile(entry, io.BytesIO(data))
