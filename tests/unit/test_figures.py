"""`mesh top`: figures of hosts and ranks, which are read only while somebody asks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mesh.agent.ask.figures import Look, amd, nvidia
from mesh.cli.inspection import CLEAR
from mesh.ui.history import CLUSTERS_MAX, History
from tests.conftest import Home
from tests.lab import eventually

STAT = "cpu  100 0 50 800 40 5 5 0 0 0\ncpu0 1 1\n"
DISKS = (
    "   8 0 sda 10 0 2000 0 20 0 4000 0 0 0 0\n"
    "   8 1 sda1 10 0 1000 0 20 0 1000 0 0 0 0\n"
    "   7 0 loop0 10 0 9000 0 20 0 9000 0 0 0 0\n"
)
NET = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
    "    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
    "  eth0: 700 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n"
)


def tool(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def test_counters_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "block/sda").mkdir(parents=True)
    (tmp_path / "block/loop0").mkdir()
    for name, text in (("stat", STAT), ("diskstats", DISKS), ("net/dev", NET)):
        (tmp_path / name).write_text(text)
    look = Look(str(tmp_path), str(tmp_path / "block"))
    assert (look.busy, look.total) == (160, 1000)
    assert (look.read, look.written) == (2000 * 512, 4000 * 512)
    assert (look.received, look.sent) == (700, 300)
    nothing = Look(str(tmp_path / "none"), str(tmp_path / "none"))
    assert (nothing.busy, nothing.total, nothing.read, nothing.sent) == (0, 0, 0, 0)


def test_gpus_by_the_tools_of_their_makers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (nvidia(), amd()) == ([], [])
    tool(
        tmp_path,
        "nvidia-smi",
        "NVIDIA H100, 25, 81559, 8000\nNVIDIA T4, [N/A], 15360, 0\nno such line",
    )
    card = {
        "Card Series": "MI300X",
        "GPU use (%)": "50",
        "VRAM Total Memory (B)": "1000",
        "VRAM Total Used Memory (B)": "7",
    }
    tool(tmp_path, "rocm-smi", json.dumps({"card0": card, "system": {"Driver version": "6"}}))
    first, second = nvidia()
    assert (first.name, first.busy, first.memory_used) == ("NVIDIA H100", 0.25, 8000 << 20)
    assert (second.busy, second.memory) == (0.0, 15360 << 20)
    (other,) = amd()
    assert (other.name, other.busy, other.memory, other.memory_used) == ("MI300X", 0.5, 1000, 7)
    tool(tmp_path, "rocm-smi", "no JSON")
    assert amd() == []


def test_ranks_stand_below_their_hosts(home: Home) -> None:
    home.files(spin__py="print('up', flush=True)\nwhile True: pass\n")
    quiet = {"stderr": subprocess.DEVNULL}
    run = home.popen("run", "--output", "all", "local:2", "python3", "spin.py", **quiet)
    try:
        assert run.stdout
        for _ in range(2):
            assert run.stdout.readline()
        (own,) = os.listdir(home.path / ".local/state/mesh/runs")

        def have_worked() -> bool:
            """True for ranks that had the processor between two looks. On a busy machine they may wait for it."""
            done = home.mesh("top", "--json", "local")
            assert done.status == 0, done.err
            host = json.loads(done.out)[0]
            ranks = [one for one in host["ranks"] if one["run"] == own]  # this machine may have other runs of this user
            assert host["cores"] == os.cpu_count()
            assert 0 < host["memory_used"] < host["memory"]
            assert [one["rank"] for one in ranks] == [0, 1]
            return sum(one["cpu"] for one in ranks) > 0

        assert eventually(have_worked)
        table = home.mesh("top", "local").out.decode()
        assert table.startswith("host")
        assert own in table
    finally:
        run.terminate()
        run.communicate()
    assert own not in home.mesh("top", "--json", "local").out.decode()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_live_table_is_made_by_one_agent(home: Home) -> None:
    with home.terminal("top", "local:1") as terminal:
        terminal.expect(CLEAR.encode())
        agents = set(children(terminal.process.pid))
        assert agents
        for _ in range(2):
            terminal.shown = b""
            terminal.expect(CLEAR.encode())
            assert agents <= set(children(terminal.process.pid))
        terminal.type(b"\x03")
        assert terminal.end() == 130
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in agents), 20.0)


def test_a_live_table_names_hosts_that_cannot_be_reached(home: Home) -> None:
    home.clusters("pod:\n  hosts: [127.0.0.1]\n  port: 1\n")
    with home.terminal("top", "pod") as terminal:
        for _ in range(2):  # it tries again
            terminal.shown = b""
            terminal.expect(b"127.0.0.1")
            terminal.expect(b"refused")
        terminal.type(b"\x03")
        assert terminal.end() == 130


def test_figures_of_the_last_minutes_are_in_memory() -> None:
    history = History()
    one = {"host": "a", "error": "", "cpu": 0.5, "memory": 100, "memory_used": 25}
    history.add("pod", [one, {"host": "b", "error": "unreachable"}, "nothing"])
    found = history.add("pod", [one])
    assert [(cpu, memory) for _, cpu, memory in found["a"]] == [(0.5, 0.25), (0.5, 0.25)]
    assert set(found) == {"a"}
    for number in range(CLUSTERS_MAX + 3):
        history.add(f"c{number}", None)
    assert len(history.add("pod", [one])["a"]) == 1
