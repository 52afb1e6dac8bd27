"""A stand-in for conda: a base directory, the command of that name, and a local channel of packages.

No conda can be had where these tests run. Its environments are real ones: py-rattler solves and links the packages of a
channel that the test writes. Where rattler is not asked for, the stand-in unpacks the packages by itself, slowly, so
that it can be killed in the middle.

    python tests/conda.py BASE info [--base | --json]
    python tests/conda.py BASE env list
    python tests/conda.py BASE env create|update -p PREFIX -f FILE [--prune]
    python tests/conda.py BASE shell.posix activate NAME
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SHELL = """\
conda() {
    case $1 in
        activate)
            local ask_conda
            ask_conda=$("$CONDA_EXE" shell.posix activate "$2") || return
            eval "$ask_conda" ;;
        *) "$CONDA_EXE" "$@" ;;
    esac
}
"""
TERMS = """\
CondaToSNonInteractiveError: Terms of Service have not been accepted for the following channels.
    - https://repo.anaconda.com/pkgs/main
"""


def install(base: Path, *, rattler: str = "", delay: float = 0.0, hook: bool = True, at: Path | None = None) -> None:
    """Make the base directory.

    at: the path of the base, if it will be moved
    rattler: a directory in which Python finds it; "": packages are only unpacked
    delay: seconds after each file, where they are
    hook: False: without etc/profile.d/conda.sh
    """
    for directory in ("bin", "conda-meta", "envs", "etc/profile.d"):
        (base / directory).mkdir(parents=True, exist_ok=True)
    (base / "conda-meta/history").write_text("")
    program = base / "bin/conda"
    words = [sys.executable, str(Path(__file__).resolve()), str(at or base)]
    setting = f"STAND_IN_RATTLER={shlex.quote(rattler)} STAND_IN_DELAY={delay}"
    program.write_text(f'#!/bin/sh\nexec env {setting} {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    (base / "bin/python").unlink(missing_ok=True)
    (base / "bin/python").symlink_to(sys.executable)
    if hook:
        (base / "etc/profile.d/conda.sh").write_text(
            f"export CONDA_EXE={shlex.quote(str((at or base) / 'bin/conda'))}\n{SHELL}"
        )


def write_package(channel: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """Write a package of programs into a channel. files: texts by path"""
    directory = channel / "noarch"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "size_in_bytes": len(text.encode()),
        }
        for path, text in files.items()
    ]
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
    own = {
        "info/index.json": json.dumps({**index, "noarch": "generic"}),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
        "info/files": "".join(f"{path}\n" for path in files),
    }
    with tarfile.open(directory / f"{name}-{version}-0.tar.bz2", "w:bz2") as archive:
        for path, text in {**own, **files}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(text.encode()), 0o755, 1700000000
            archive.addfile(member, io.BytesIO(text.encode()))


def write_channel(channel: Path) -> None:
    """Write a channel with a Python, which is that of the tests, and two versions of a program."""
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    write_package(channel, "python", "3.11.0", {"bin/python": python, "bin/python3": python})
    for version in ("1.0", "2.0"):
        write_package(channel, "greet", version, {"bin/greet": f'#!/bin/sh\necho greet {version} "$@"\n'})
    write_package(channel, "extra", "1.0", {"bin/extra": "#!/bin/sh\n", "share/extra": "text\n"})


# ---- the command


def main(base: Path, words: Sequence[str]) -> int:
    rattler = os.environ.get("STAND_IN_RATTLER", "")
    if rattler:
        sys.path.insert(0, rattler)
    match list(words):
        case ["info", "--base"]:
            print(base)
        case ["info", "--json"]:
            print(json.dumps({"root_prefix": str(base), "envs_dirs": environments(base)}))
        case ["env", "list"]:
            print("# conda environments:\n#\nbase                 *  " + str(base))
            for path in (path for place in environments(base) for path in Path(place).glob("*/conda-meta")):
                print(f"{path.parent.name}                    {path.parent}")
        case ["env", "create" | "update" as verb, "-p", prefix, "-f", file, *rest]:
            return change(Path(prefix), Path(file), prune=verb == "create" or "--prune" in rest, new=verb == "create")
        case ["shell.posix", "activate", name]:
            return activate(base, name)
        case _:
            print(f"the stand-in for conda cannot {shlex.join(words)}", file=sys.stderr)
            return 2
    return 0


def environments(base: Path) -> list[str]:
    return [str(base / "envs"), os.path.expanduser("~/.conda/envs")]


def activate(base: Path, name: str) -> int:
    found = [Path(place) / name for place in environments(base) if (Path(place) / name / "conda-meta").is_dir()]
    if not found:
        print(f"EnvironmentNameNotFound: Could not find conda environment: {name}", file=sys.stderr)
        return 1
    print(f"PS1='({name}) '\nexport PATH={shlex.quote(f'{found[0]}/bin')}:\"$PATH\"")
    print(f"export CONDA_PREFIX={shlex.quote(str(found[0]))} CONDA_DEFAULT_ENV={name}\necho activated")
    return 0


def change(prefix: Path, file: Path, *, prune: bool, new: bool) -> int:
    import yaml

    if new and prefix.exists():
        print(f"CondaValueError: prefix already exists: {prefix}", file=sys.stderr)
        return 1
    described = yaml.safe_load(file.read_text())
    channel = described["channels"][0]
    if channel == "defaults" and os.environ.get("CONDA_PLUGINS_AUTO_ACCEPT_TOS") != "yes":
        print(TERMS, file=sys.stderr)
        return 1
    specs = described["dependencies"]
    try:
        if os.environ.get("STAND_IN_RATTLER"):
            asyncio.run(solve_and_link(prefix, specs, channel, prune))
        else:
            unpack(prefix, specs, Path(channel.removeprefix("file://")), prune)
    except LookupError as error:
        print(f"PackagesNotFoundError: {error}", file=sys.stderr)
        return 1
    (prefix / "conda-meta/history").write_text("==> <==\n")
    return 0


def unpack(prefix: Path, specs: Sequence[str], channel: Path, prune: bool) -> None:
    delay = float(os.environ.get("STAND_IN_DELAY", "0"))
    packages = {}
    for spec in specs:
        name, _, version = spec.partition("=")
        found = sorted((channel / "noarch").glob(f"{name}-{version or '*'}-0.tar.bz2"))
        if not found:
            raise LookupError(f"The following packages are not available: {spec}")
        packages[name] = found[-1]
    meta = prefix / "conda-meta"
    meta.mkdir(parents=True, exist_ok=True)
    for record in list(meta.glob("*.json")):
        listed = json.loads(record.read_text())
        if listed["name"] in packages or prune:
            for path in listed["files"]:
                (prefix / path).unlink(missing_ok=True)
                time.sleep(delay)
            record.unlink()
    for name, path in packages.items():
        with tarfile.open(path) as archive:
            members = [member for member in archive.getmembers() if not member.name.startswith("info/")]
            for member in members:
                archive.extract(member, prefix, filter="data")
                time.sleep(delay)
        listed = {"name": name, "files": [member.name for member in members]}
        (meta / f"{path.name.removesuffix('.tar.bz2')}.json").write_text(json.dumps(listed))


async def solve_and_link(prefix: Path, specs: Sequence[str], channel: str, prune: bool) -> None:
    import rattler

    installed = [rattler.PrefixRecord.from_path(path) for path in (prefix / "conda-meta").glob("*.json")]
    kept = [] if prune else [str(record.name.source) for record in installed]
    try:
        records = await rattler.solve(
            sources=[channel], specs=[*specs, *kept], platforms=["noarch"], locked_packages=installed
        )
    except Exception as error:  # of rattler's own classes
        raise LookupError(str(error).replace("\n", " ")) from error
    await rattler.install(records, target_prefix=str(prefix), show_progress=False, execute_link_scripts=False)


def index(channel: Path, rattler: str) -> None:
    """Write the channel's index, as rattler wants it, in a process of its own: rattler keeps descriptors open."""
    # os._exit: with threads of rattler, the interpreter sometimes crashes at its end.
    text = (
        "import asyncio, os, sys; from rattler.index import index_fs; asyncio.run(index_fs(sys.argv[1])); os._exit(0)"
    )
    environ = {**os.environ, "PYTHONPATH": rattler}
    subprocess.run([sys.executable, "-c", text, str(channel)], env=environ, check=True)
    shutil.rmtree(channel / ".cache", ignore_errors=True)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(status)  # with threads of rattler, the interpreter sometimes crashes at its end
