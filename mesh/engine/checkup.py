"""What the answers of hosts mean: good, worth knowing, or in the way of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mesh.core.events import CONNECTING, Answered, PrepareFailed

LITTLE_DISK, TOO_LITTLE_DISK = 0.05, 64 << 20  # of all; bytes that a run needs at the very least
LITTLE_INODES = 1000
CLOCK_OFF = 5.0  # seconds; mesh corrects the times it tells, but file times, certificates and tokens do not
NAMES = {"reach": "reachable", "host-key": "host key", "login": "login", "python": "python3"}


class Verdict(Enum):
    """What one finding means for a run."""

    OK = "ok"
    WARNING = "warning"  # a run starts all the same
    FAILED = "failed"  # no run would start
    UNKNOWN = "unknown"  # an earlier failure kept it from being looked at


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at on one host."""

    name: str  # "reachable", "host key", "login", "python3", "bash", "home", "disk" or "clock"
    verdict: Verdict
    told: str  # what was found, for people
    hint: str = ""  # what to do about it


def failed_host(failure: PrepareFailed) -> list[Finding]:
    """The findings of a host that gave no answer: what went well, what failed, what nobody knows."""
    findings: list[Finding] = []
    step = failure.step if failure.step in CONNECTING else "python"
    for known in CONNECTING:
        verdict = Verdict.OK
        if known == step:
            verdict = Verdict.FAILED
        elif any(finding.verdict is Verdict.FAILED for finding in findings):
            verdict = Verdict.UNKNOWN
        told, hint = (failure.message, failure.hint) if verdict is Verdict.FAILED else ("", "")
        findings.append(Finding(name=NAMES[known], verdict=verdict, told=told, hint=hint))
    return findings + [
        Finding(name=name, verdict=Verdict.UNKNOWN, told="") for name in ("bash", "home", "disk", "clock")
    ]


def host(answered: Answered) -> list[Finding]:
    """The findings of a host that answered."""
    facts = answered.answer
    return [
        *(Finding(name=NAMES[step], verdict=Verdict.OK, told="") for step in ("reach", "host-key")),
        Finding(name="login", verdict=Verdict.OK, told=str(facts["user"])),
        Finding(name="python3", verdict=Verdict.OK, told=str(facts["python"])),
        _bash(facts),
        _home(facts),
        _disk(facts),
        _clock(answered.clock),
    ]


def _bash(facts: Mapping[str, Any]) -> Finding:
    if facts["bash"]:
        return Finding(name="bash", verdict=Verdict.OK, told="")
    hint = "install it: prerun, setup and commands given as one text are run by bash"
    return Finding(name="bash", verdict=Verdict.WARNING, told="not found", hint=hint)


def _home(facts: Mapping[str, Any]) -> Finding:
    if not facts["problem"]:
        return Finding(name="home", verdict=Verdict.OK, told="")
    told = f"cannot write below {facts['place']}: {facts['problem']}"
    hint = "remote_dir: in cluster.yaml names another place for what mesh keeps on the host"
    return Finding(name="home", verdict=Verdict.FAILED, told=told, hint=hint)


def _disk(facts: Mapping[str, Any]) -> Finding:
    free, total = int(facts["disk_free"]), int(facts["disk_total"])
    told = f"{free / 1e9:.1f} GB free"
    hint = f"free some space below {facts['place']}, or name another place by remote_dir: in cluster.yaml"
    if free < TOO_LITTLE_DISK:
        return Finding(name="disk", verdict=Verdict.FAILED, told=told, hint=hint)
    if 0 <= int(facts["inodes_free"]) < LITTLE_INODES:
        told = f"only {facts['inodes_free']} more files can be made"
        return Finding(name="disk", verdict=Verdict.WARNING, told=told, hint=hint)
    if free < LITTLE_DISK * total:
        told = f"{told} ({100 * free / total:.0f} %)"
        return Finding(name="disk", verdict=Verdict.WARNING, told=told, hint=hint)
    return Finding(name="disk", verdict=Verdict.OK, told=told)


def _clock(ahead: float) -> Finding:
    """ahead: seconds that the host's clock is ahead of ours."""
    told = f"{ahead:+.1f} s"
    if abs(ahead) <= CLOCK_OFF:
        return Finding(name="clock", verdict=Verdict.OK, told=told)
    hint = "set its clock (chrony, ntp): file times, certificates and tokens go by it"
    return Finding(name="clock", verdict=Verdict.WARNING, told=f"{told} off ours", hint=hint)
