"""Figures of a host and of the ranks there: CPU, memory, disk, network and GPUs, read twice within the question."""

from __future__ import annotations

import os
import time

from mesh.agent.ask.memory import read_memory
from mesh.agent.process.processes import all_processes, is_agent, is_own, run_of, variable_of
from mesh.protocol.figures import DeviceFigures, Figures, RankFigures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import AskFigures

SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk has
TOOL_TIMEOUT_S = 5.0
NVIDIA_SMI = [
    "nvidia-smi",
    "--query-gpu=name,utilization.gpu,memory.total,memory.used",
    "--format=csv,noheader,nounits",
]
ROCM_SMI = ["rocm-smi", "--showproductname", "--showuse", "--showmeminfo", "vram", "--json"]
MEBIBYTE_BYTES = 1 << 20


class Look:
    """The counters of one moment, which only grow."""

    def __init__(self, proc: str = "/proc", block: str = "/sys/block") -> None:
        """proc, block: the paths of these directories"""
        self.at = time.monotonic()
        self.busy, self.total = _cpu(proc)
        self.read, self.written = _disks(proc, block)
        self.received, self.sent = _network(proc)


def figures(question: AskFigures, context: Context) -> Figures:
    """Answer with the figures of the last moments. Nothing is read before or after the question."""
    before, ranks_before = Look(), rank_ticks()
    time.sleep(question.seconds)
    after, ranks_after = Look(), rank_ticks()
    span = max(after.at - before.at, 1e-3)
    memory = read_memory()
    total = after.total - before.total

    def rate(old: int, new: int) -> float:
        return max(0, new - old) / span

    return Figures(
        cores=os.cpu_count() or 1,
        cpu=min(1.0, max(0.0, (after.busy - before.busy) / total)) if total > 0 else 0.0,
        memory=memory.total,
        memory_used=max(0, memory.total - memory.free),
        disk_read=rate(before.read, after.read),
        disk_written=rate(before.written, after.written),
        received=rate(before.received, after.received),
        sent=rate(before.sent, after.sent),
        devices=nvidia() or amd(),
        ranks=_ranks(ranks_before, ranks_after, span),
    )


def rank_ticks() -> dict[tuple[str, int], tuple[int, int]]:
    """Return the clock ticks and the bytes of memory of each rank of this user, by run and rank."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for process in all_processes():
        pid = process.pid
        if process.has_ended or not is_own(pid) or is_agent(pid):
            continue
        run = run_of(pid)
        rank = variable_of(pid, b"RANK") if run else b""
        if not rank.isdigit() or len(rank) > 9:
            continue
        ticks, memory = _of_process(pid)
        before = found.get((run, int(rank)), (0, 0))
        found[run, int(rank)] = before[0] + ticks, before[1] + memory
    return found


def _ranks(
    before: dict[tuple[str, int], tuple[int, int]], after: dict[tuple[str, int], tuple[int, int]], span: float
) -> list[RankFigures]:
    per_second = os.sysconf("SC_CLK_TCK")
    made = []
    for key in sorted(after):
        ticks, memory = after[key]
        used = max(0, ticks - before.get(key, (ticks, 0))[0]) / per_second / span
        made.append(RankFigures(run=key[0], rank=key[1], cpu=used, memory=memory))
    return made


def _of_process(pid: int) -> tuple[int, int]:
    """Return the clock ticks of a process and its children that have ended, and the bytes of its memory."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0, 0
    return int(fields[11]) + int(fields[12]), pages * os.sysconf("SC_PAGE_SIZE")  # utime and stime, proc(5)


def _cpu(proc: str) -> tuple[int, int]:
    """Return the clock ticks of all CPUs that were busy, and all."""
    try:
        with open(f"{proc}/stat") as file:
            numbers = [int(word) for word in file.readline().split()[1:9]]  # user .. steal; guests are in user
    except (OSError, ValueError):
        return 0, 0
    idle = sum(numbers[3:5])  # idle and iowait
    return sum(numbers) - idle, sum(numbers)


def _disks(proc: str, block: str) -> tuple[int, int]:
    """Return the bytes that all disks have read and written. Their parts and loops over files do not count again."""
    read = written = 0
    try:
        names = {name for name in os.listdir(block) if not name.startswith(("loop", "ram", "dm-", "md", "zram"))}
        with open(f"{proc}/diskstats") as file:
            for line in file:
                words = line.split()
                if len(words) > 9 and words[2] in names:
                    read += int(words[5]) * SECTOR_BYTES
                    written += int(words[9]) * SECTOR_BYTES
    except (OSError, ValueError):
        pass
    return read, written


def _network(proc: str) -> tuple[int, int]:
    """Return the bytes that all interfaces but the loopback have received and sent."""
    received = sent = 0
    try:
        with open(f"{proc}/net/dev") as file:
            for line in file:
                name, colon, rest = line.partition(":")
                words = rest.split()
                if colon and name.strip() != "lo" and len(words) > 8:
                    received += int(words[0])
                    sent += int(words[8])
    except (OSError, ValueError):
        pass
    return received, sent


def nvidia() -> list[DeviceFigures]:
    """Return the figures of NVIDIA's GPUs; none without nvidia-smi."""
    found = []
    for line in _printed(NVIDIA_SMI).splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4:
            found.append(
                _device(
                    words[0], _number(words[1]), _number(words[2]) * MEBIBYTE_BYTES, _number(words[3]) * MEBIBYTE_BYTES
                )
            )
    return found


def amd() -> list[DeviceFigures]:
    """Return the figures of AMD's GPUs; none without rocm-smi."""
    import json

    try:
        cards = json.loads(_printed(ROCM_SMI) or "{}")
    except ValueError:
        return []
    found = []
    for name in sorted(cards) if isinstance(cards, dict) else ():
        card = cards[name]
        if name.startswith("card") and isinstance(card, dict):
            texts = {key: str(value) for key, value in card.items()}
            found.append(
                _device(
                    texts.get("Card Series") or texts.get("Card series") or name,
                    _number(texts.get("GPU use (%)", "")),
                    _number(texts.get("VRAM Total Memory (B)", "")),
                    _number(texts.get("VRAM Total Used Memory (B)", "")),
                )
            )
    return found


def _device(name: str, percent: float, memory: float, used: float) -> DeviceFigures:
    return DeviceFigures(name=name, busy=min(1.0, percent / 100), memory=int(memory), memory_used=int(used))


def _number(text: str) -> float:
    """Return a number, 0 for texts such as "[N/A]"."""
    try:
        return max(0.0, min(float(text), 1e15))
    except ValueError:
        return 0.0


def _printed(argv: list[str]) -> str:
    """Return the output of a tool, "" if it is missing, fails or takes long."""
    import subprocess

    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if not done.returncode else ""
