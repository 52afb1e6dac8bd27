"""Other tools that run a command on many hosts: how each is told to, and what it takes to have it."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.stage import Contestant, Stage

FABRIC_NAME, MASTERED = "bare Fabric", "ssh over ControlMaster"
FABRIC = """
import sys
from concurrent.futures import ThreadPoolExecutor
import fabric

key, command, *hosts = sys.argv[1:]

def show(host):
    connection = fabric.Connection(host, user="root", connect_kwargs={"key_filename": key})
    print(host, connection.run(command, hide=True).stdout.strip(), flush=True)

with ThreadPoolExecutor(len(hosts)) as pool:
    list(pool.map(show, hosts))
"""
PARALLEL_SSH = """
import sys
import gevent
from pssh.clients import ParallelSSHClient

key, command, *hosts = sys.argv[1:]
client = ParallelSSHClient(hosts, user="root", pkey=key, pool_size=len(hosts))

def show(output):
    write = sys.stdout.write
    for line in output.stdout:
        write(output.host + ": " + line + "\\n")

gevent.joinall([gevent.spawn(show, output) for output in client.run_command(command)], raise_error=True)
"""


def peers(stage: Stage, command: str) -> list[Contestant]:
    """Every tool, with the command line that runs a shell command on all hosts; those that are not here say so."""
    addresses, wide, key = stage.addresses, str(len(stage.addresses)), str(stage.lab.identity)
    options = " ".join(stage.ssh_options)
    listed = ",".join(addresses)
    names = stage.scratch / "hosts"
    names.write_text("".join(f"{address}\n" for address in addresses))
    each = ["xargs", "-a", str(names), "-P", wide, "-I{}", "ssh", *stage.ssh_options]
    programs = {}
    for name, text in (("fabric", FABRIC), ("parallel_ssh", PARALLEL_SSH)):
        programs[name] = stage.scratch / f"with_{name}.py"
        programs[name].write_text(text)
    inventory = stage.scratch / "inventory"
    inventory.write_text("".join(f"{one} ansible_python_interpreter=/usr/bin/python3\n" for one in addresses))
    ansible = ["ansible", "all", "-i", str(inventory), "-u", "root", "--private-key", key, "-f", wide]
    pssh = shutil.which("parallel-ssh") and "parallel-ssh"
    library = python_with("pssh.clients")
    return [
        _tool(stage, "pdsh", ["pdsh", "-R", "ssh", "-l", "root", "-f", wide, "-w", listed, command], "Debian: pdsh"),
        _tool(
            stage,
            "clush",
            ["clush", "-l", "root", "-f", wide, "-o", options, "-w", listed, command],
            "Debian: clustershell",
        ),
        _tool(
            stage,
            "pssh",
            [pssh or "pssh", "-i", "-l", "root", "-p", wide, "-h", str(names), "-x", options, command],
            "Debian: pssh",
        ),
        _tool(
            stage,
            "parallel-ssh",
            [library, str(programs["parallel_ssh"]), key, command, *addresses],
            "PyPI: parallel-ssh",
        ),
        _tool(stage, "ansible", [*ansible, "-m", "raw", "-a", command], "PyPI: ansible-core"),
        _tool(stage, "ssh, one per host", [*each, "root@{}", command]),
        _tool(
            stage,
            MASTERED,
            [*each, *masters(stage), "root@{}", command],
        ),
        _tool(stage, FABRIC_NAME, [sys.executable, str(programs["fabric"]), key, command, *addresses]),
    ]


def masters(stage: Stage) -> list[str]:
    """The options of an ssh that keeps its connections: longer than any benchmark, whose first round does not count."""
    return ["-o", "ControlMaster=auto", "-o", f"ControlPath={stage.scratch}/%C", "-o", "ControlPersist=3600"]


def close_masters(stage: Stage) -> None:
    """End the connections that ControlMaster has kept."""
    for path in stage.scratch.glob("[0-9a-f]" * 40):
        argv = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "host"]
        subprocess.run(argv, capture_output=True, check=False)


def _tool(stage: Stage, name: str, argv: Sequence[str], source: str = "") -> Contestant:
    more = {
        "PDSH_SSH_ARGS_APPEND": " ".join(stage.ssh_options),
        "ANSIBLE_SSH_ARGS": f"{shlex.join(stage.ssh_options)} -o ControlMaster=no",
        "ANSIBLE_LOCAL_TEMP": str(stage.scratch / "ansible"),
    }
    if not argv[0] or not shutil.which(argv[0]):
        return Contestant(name=name, argv=(), user=stage.user, missing=source)
    return Contestant(name=name, argv=argv, user=stage.user, environ=more)


@functools.cache
def python_with(module: str) -> str:
    """An interpreter on PATH, or ours, that can import a module; "" if there is none."""
    places = [os.path.join(place, "python3") for place in os.environ["PATH"].split(os.pathsep)]
    for python in [sys.executable, *filter(os.path.exists, places)]:
        if not subprocess.call([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL):
            return python
    return ""
