"""Failures that are planted on purpose: the verdict names the rank that is to blame, and the cause."""

from __future__ import annotations

import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mesh.core.typed import PLACEHOLDER
from tests.conftest import Done, Home
from tests.lab import Lab

GUILTY = 1  # of two ranks; the other one sleeps


@dataclass(frozen=True)
class Plant:
    """One cause, and what the verdict must say of it."""

    program: str  # Python that the guilty rank runs, or "sh: " and shell text
    code: int = 0
    signal: int = 0
    error: str = ""  # the exception's last line
    where: str = ""
    fact: str = ""


SAID = "import sys; print({!r}, file=sys.stderr); sys.exit(1)"
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_{}, ({}, {}));"

PLANTS = {
    "exception": Plant(
        "def step():\n    raise ValueError('bad shape')\nstep()", 1, 0, "ValueError: bad shape", ":2 in step"
    ),
    "exception on the way of another": Plant(
        "try:\n    {}['a']\nexcept KeyError:\n    raise RuntimeError('no a')",
        1,
        0,
        "RuntimeError: no a",
        ":4 in <module>",
    ),
    "exception with noise after it": Plant(
        "import atexit, sys; atexit.register(lambda: [print('bye', n, file=sys.stderr) for n in range(20)]); 1 / 0",
        1,
        0,
        "ZeroDivisionError: division by zero",
        ":1 in <module>",
    ),
    "exception as torch prefixes it": Plant(
        'import sys; print(\'[rank1]: Traceback (most recent call last):\\n[rank1]:   File "/a/t.py", line 9, in f\\n'
        "[rank1]:     f()\\n[rank1]: KeyError: 3', file=sys.stderr); sys.exit(1)",
        1,
        0,
        "KeyError: 3",
        "t.py:9 in f",
    ),
    "assertion": Plant("assert 1 == 2, 'loss is nan'", 1, 0, "AssertionError: loss is nan", ":1 in <module>"),
    "syntax error": Plant(
        "sh: printf 'x = (\\n' > $HOME/plant.py; exec python3 $HOME/plant.py",
        1,
        0,
        "SyntaxError: '(' was never closed",
    ),
    "exit code": Plant("import sys; sys.exit(41)", 41),
    "exit with a message": Plant("import sys; sys.exit('no checkpoint')", 1),
    "exit code of a pipe": Plant("sh: set -e; echo start; (exit 9); echo never", 9),
    "killed": Plant("import os; os.kill(os.getpid(), 9)", 0, signal.SIGKILL, fact="killed from outside"),
    "terminated": Plant("import os; os.kill(os.getpid(), 15)", 0, signal.SIGTERM, fact="ended from outside"),
    "segmentation fault": Plant("import ctypes; ctypes.string_at(0)", 0, signal.SIGSEGV, fact="crash in native code"),
    "abort": Plant("import os; os.abort()", 0, signal.SIGABRT, fact="crash in native code"),
    "bus error": Plant(
        "import mmap, tempfile; f = tempfile.TemporaryFile(); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096);"
        "f.truncate(0); m[0]",
        0,
        signal.SIGBUS,
        fact="memory that is gone",
    ),
    "illegal instruction": Plant(
        "import os; os.kill(os.getpid(), 4)", 0, signal.SIGILL, fact="wrong kind of program for the host"
    ),
    "file size limit": Plant(
        "sh: ulimit -f 1; exec cat /dev/zero > plant", 0, signal.SIGXFSZ, fact="file size limit reached"
    ),
    "cpu time limit": Plant(
        "sh: ulimit -S -t 1; while :; do :; done", 0, signal.SIGXCPU, fact="CPU time limit reached"
    ),
    "memory limit": Plant(
        LIMIT.format("AS", 1 << 29, 1 << 29) + "bytearray(1 << 30)",
        1,
        0,
        "MemoryError",
        ":1 in <module>",
        "out of memory on the host",
    ),
    "disk full": Plant(
        "open('/dev/full', 'wb', 0).write(b'x')",
        1,
        0,
        "OSError: [Errno 28] No space left on device",
        ":1 in <module>",
        "disk full on the host",
    ),
    "too many files": Plant(
        LIMIT.format("NOFILE", 16, 16) + "a = [open('/dev/null') for _ in range(20)]",
        1,
        0,
        "OSError: [Errno 24] Too many open files: '/dev/null'",
        fact="too many open files",
    ),
    "port taken": Plant(
        "import socket; a = socket.create_server(('127.0.0.1', 0)); socket.create_server(a.getsockname())",
        1,
        0,
        fact="port taken on the host",
    ),
    "command not found": Plant("sh: exec no-such-program", 127, fact="command not found"),
    "not executable": Plant(
        "sh: echo > $HOME/plant; chmod -x $HOME/plant; exec $HOME/plant", 126, fact="not executable"
    ),
    "wrong interpreter": Plant(
        "sh: printf '#!/usr/bin/env no-python\\n' > $HOME/plant.sh; chmod +x $HOME/plant.sh; exec $HOME/plant.sh",
        127,
        fact="wrong interpreter",
    ),
    "wrong kind of program": Plant(
        "import os; path = os.environ['HOME'] + '/plant.bin'; open(path, 'wb').write(b'\\x7fELF junk');"
        "os.chmod(path, 0o755); os.execv(path, ['x'])",
        1,
        0,
        fact="wrong kind of program for the host",
    ),
    "module missing": Plant(
        "import no_such_module",
        1,
        0,
        "ModuleNotFoundError: No module named 'no_such_module'",
        fact="a module is missing",
    ),
    "file missing": Plant(
        "open('/no/such/file')",
        1,
        0,
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'",
        fact="a file is missing",
    ),
    "permission denied": Plant("raise PermissionError(13, 'Permission denied', '/data')", 1, fact="permission denied"),
    "name not known": Plant(
        "import socket; socket.getaddrinfo('no-such-host.invalid', 1)", 1, fact="a name cannot be resolved on the host"
    ),
    # What needs devices is planted as the libraries say it.
    "device out of memory": Plant(
        SAID.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."),
        1,
        0,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ...",
        fact="out of memory on the device",
    ),
    "device busy": Plant(
        SAID.format(
            "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process 71."
        ),
        1,
        fact="device busy",
    ),
}


def verdict_of(done: Done) -> dict[str, Any]:
    logs = done.err.rpartition("logs: ")[2].splitlines()[0]
    verdict: dict[str, Any] = json.loads((Path(logs).parent / "run.json").read_text())["verdict"]
    return verdict


def guilty(program: str) -> list[str]:
    """A command of which one rank runs the program, and all others sleep."""
    words = ["sh", "-c", program[4:]] if program.startswith("sh: ") else [sys.executable, "-c", program]
    return ["sh", "-c", f'[ "$RANK" = {GUILTY} ] && exec "$@"; exec sleep 100', "sh", *words]


def test_the_verdict_names_rank_and_cause(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        dones = list(pool.map(lambda plant: home.mesh("exec", "local:2", *guilty(plant.program)), PLANTS.values()))
    wrong = {name: done.err for (name, plant), done in zip(PLANTS.items(), dones, strict=True) if not fits(plant, done)}
    assert wrong == {}


def fits(plant: Plant, done: Done) -> bool:
    """Whether a run has ended as the plant says, and says so."""
    verdict = verdict_of(done)
    first = verdict["first"]
    return (
        done.status == (128 + plant.signal if plant.signal else plant.code)
        and (first["rank"], first["host"]) == (GUILTY, f"local-{GUILTY}")
        and first.get("signal", 0) == plant.signal
        and first.get("code", 0) == plant.code
        and first["exception"].startswith(plant.error)
        and first["where"].endswith(plant.where)
        and first["fact"] == plant.fact
        and verdict["stopped"] == [0]
        and f"rank {GUILTY} on local-{GUILTY} failed first: " in done.err
        and plant.fact in done.err
        and (f"try: {first['advice'].replace(PLACEHOLDER, 'local:2')}\n" in done.err)
        == (plant.fact not in ("", "a file is missing"))  # mesh sends no /no/such/file
    )


def test_the_live_line_and_the_verdict_name_the_same_ranks(home: Home) -> None:
    done = home.mesh("exec", "local:4", "sh", "-c", "exit 3")
    assert done.status == 3
    (live,) = re.findall(r"^==> (ranks? [0-9,-]+) (?:on local-[0-3]|failed alike): exit 3$", done.err, re.MULTILINE)
    (judged,) = re.findall(r"^error: (ranks? [0-9,-]+) .*failed", done.err, re.MULTILINE)
    assert live == judged


def test_a_lost_host(home: Home) -> None:
    done = home.mesh("exec", "local:2", *guilty("sh: kill -9 $PPID; exec sleep 100"))
    assert done.status == 76
    verdict = verdict_of(done)
    assert verdict["first"]["host"] == f"local-{GUILTY}"
    assert verdict["first"]["ranks"] == [GUILTY]
    assert verdict["first"]["fact"] == "host lost"
    assert f"lost contact with local-{GUILTY} (rank {GUILTY})" in done.err


# Rank 0 ends; rank 1 hears of it, as their connection ends, and ends as well.
PAIR = """
import atexit, os, socket, sys, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(place) as server:
        link, _ = server.accept()
    {first}
while True:
    try:
        link = socket.create_connection(place)
        break
    except OSError:
        time.sleep(0.01)
link.recv(1)
{second}
"""


def test_words_that_point_at_another_rank(home: Home) -> None:
    """Whoever has failed takes its time to end; those that miss it are faster."""
    program = PAIR.format(
        # It has printed why before the other rank sees the end of their connection.
        first="atexit.register(lambda: (link.close(), time.sleep(3))); raise ValueError('bad shape')",
        second="sys.exit('RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711')",
    )
    done = home.mesh("run", "--drain", "10", "local", sys.executable, "-c", program)
    verdict = verdict_of(done)
    assert verdict["first"]["rank"] == 1
    assert verdict["root"]["rank"] == 0
    assert verdict["root"]["exception"] == "ValueError: bad shape"
    assert "its output is about another rank; last lines of rank 0 on local-0:" in done.err


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.parametrize("ahead", [30, -30])
def test_a_crash_that_follows_on_a_host_with_another_clock(pod: Home, lab: Lab, ahead: int) -> None:
    skewed = f"import sys, time; real = time.time; time.time = lambda: real() + {ahead}; exec(sys.argv[4])"
    for host, lines in zip(lab.hosts, (skewed, "import sys; exec(sys.argv[4])"), strict=False):
        host.script(f"printf '#!/usr/bin/python3 -IS\\n%s\\n' '{lines}' > /root/python; chmod +x /root/python")
    pod.clusters(lab.cluster_yaml() + "  python: /root/python\n")
    # Far later than clocks can be compared on a busy machine, and it goes on to print meanwhile.
    later = "for _ in range(15): print('on', flush=True); time.sleep(0.1)\nos._exit(6)"
    program = PAIR.format(first="os._exit(5)", second=later)
    done = pod.mesh("run", "--drain", "30", "--ranks", "0-1", "pod", "/usr/bin/python3", "-c", program)
    assert done.status == 5, done.err
    verdict = verdict_of(done)
    assert verdict["first"]["rank"] == 0
    assert verdict["others"] == [1]
    assert 0.0 < verdict["span"] < 15.0  # and not 30 s
    assert "after it: rank 1 failed within " in done.err
