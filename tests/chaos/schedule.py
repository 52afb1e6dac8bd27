"""Random faults at random moments. Everything follows from the seed but the speed of the machine."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

from tests.chaos.faults import ALL, BEGINNING, DRAIN, EVERY, HOST_GRACE, LEASE, RETURN
from tests.chaos.stage import GRACE, HANG, LEAVE, SLACK, Stage
from tests.chaos.trial import judge_output
from tests.lab import Lab, eventually

RANKS = ("sleep", "ignore-term", "double-fork", "bare", "storm", "device", "fast", "nothing", "ignore-term+storm+fast")
# What a run survives, and what ends it, with the status that it may then have.
PASSING = ("reset", "reset-all", "cut", "cut-all", "stop", "sshd-restart")
ENDING = {
    "SIGINT": 130,
    "SIGTERM": 143,
    "SIGHUP": 129,
    "SIGKILL": -int(signal.SIGKILL),
    "agent": 76,
    "guardian": 76,
    "cut-for-good": 76,
    "sshd-for-good": 76,
    "fail": 7,
}
OPTIONS = ("--lease", f"{2 * LEASE:g}", "--host-grace", f"{2 * HOST_GRACE:g}")
# Both at their longest, and the client must notice as well.
ENDS = max(2 * LEASE, RETURN, 2 * HOST_GRACE + DRAIN)


@dataclass(frozen=True)
class Strike:
    """One fault of a schedule."""

    after: float  # seconds after the one before it
    what: str
    node: int  # of the host, or rank, that it is for
    seconds: float  # that it lasts, if it passes

    def told(self) -> str:
        is_at_host = self.what in ("reset", "cut", "sshd-restart") or ENDING.get(self.what) in (7, 76)
        where = f" of host {self.node}" if is_at_host else ""
        lasts = f" for {self.seconds:.2f} s" if self.what in ("cut", "cut-all", "stop", "sshd-restart") else ""
        return f"{self.after:.2f} s later: {self.what}{where}{lasts}"


@dataclass(frozen=True)
class Schedule:
    """What ranks do, and what happens to them."""

    seed: int
    ranks: tuple[str, ...]
    strikes: tuple[Strike, ...]

    @property
    def status(self) -> set[int]:
        """What the client may say. Of several faults that end a run, any may be the first that it notices."""
        return {ENDING[strike.what] for strike in self.strikes if strike.what in ENDING} or {0}

    @property
    def ends(self) -> bool:
        return any(strike.what in ENDING for strike in self.strikes)

    @property
    def output(self) -> str:
        """Whatever loses a host, or the client, may lose the end of the output."""
        loses = any(ENDING.get(strike.what) in (76, ENDING["SIGKILL"]) for strike in self.strikes)
        return BEGINNING if loses else ALL

    def told(self) -> str:
        return f"seed {self.seed}: ranks {', '.join(self.ranks)}; {'; '.join(s.told() for s in self.strikes)}"


@dataclass(frozen=True)
class Verdict:
    """What became of a schedule."""

    survivors: int
    lost: bool  # a line is missing, doubled or torn
    hung: bool
    status: int | None
    problems: tuple[str, ...]


def schedule(seed: int) -> Schedule:
    """One to three faults; those that pass take 2 s at most, so that no rule of the contract ends the run."""
    dice = random.Random(seed)
    ranks = tuple(dice.choice(RANKS) for _ in EVERY)
    strikes = []
    for _ in range(dice.randint(1, 3)):
        what = dice.choice(PASSING) if dice.random() < 0.6 else dice.choice(tuple(ENDING))
        strikes.append(Strike(dice.uniform(0.0, 1.5), what, dice.randrange(4), dice.uniform(0.2, 2.0)))
    return Schedule(seed, ranks, tuple(strikes))


def carry_out(lab: Lab, plan: Schedule, storm: int = 200) -> Verdict:
    """Carry out a schedule. storm: the processes of a storm on each host"""
    with Stage(lab, ",".join(plan.ranks), *OPTIONS, storm=storm) as stage:
        stage.start()
        for strike in plan.strikes:
            time.sleep(strike.after)
            if stage.client.poll() is not None:
                break
            _strike(stage, strike)
        struck = time.monotonic()
        if not plan.ends:
            stage.finish()
        return _judge(stage, plan, struck)


def _strike(stage: Stage, strike: Strike) -> None:
    node, seconds = strike.node, strike.seconds
    match strike.what:
        case "reset":
            stage.reset_connections([node])
        case "reset-all":
            stage.reset_connections(EVERY)
        case "cut":
            _cut(stage, [node], seconds)
        case "cut-all":
            _cut(stage, EVERY, seconds)
        case "stop":
            stage.stop_client(seconds)
        case "sshd-restart" if node not in stage.unreachable:
            stage.kill_sshd(node)
            time.sleep(seconds)
            stage.start_sshd(stage.hosts[node])
        case "agent" | "guardian" as which:
            stage.kill_agent(node, agent=which == "agent", guardian=which == "guardian")
        case "cut-for-good":
            stage.cut_for_good([node])
        case "sshd-for-good":
            stage.kill_sshd(node)
        case "fail":
            stage.fail(node)
        case name if name.startswith("SIG"):
            stage.send(getattr(signal, name))


def _cut(stage: Stage, nodes: range | list[int], seconds: float) -> None:
    """What is cut for good stays so."""
    stage.cut([node for node in nodes if node not in stage.unreachable], seconds)


def _judge(stage: Stage, plan: Schedule, struck: float) -> Verdict:
    problems = []
    status = stage.end(ENDS + HANG)
    if status is None:
        problems.append("the client hangs")
    elif status not in plan.status:
        problems.append(f"status {status}, and not one of {sorted(plan.status)}")
    elif status >= 0 and (left := stage.survivors(with_agents=False, reachable=True)):
        problems.append(f"left when mesh said that it had ended: {left[:3]}")
    allowed = ENDS + GRACE + LEAVE + SLACK
    eventually(lambda: not stage.survivors(), max(LEAVE + SLACK, struck + allowed - time.monotonic()))
    survivors = stage.survivors()
    if survivors:
        problems.append(f"{len(survivors)} survivors: {survivors[:3]}")
    logs = stage.logs()
    output = judge_output(logs)
    lost = output not in (ALL, plan.output)
    if lost:
        problems.append(f"output: {output}: {logs}")
    if problems:
        problems.append(stage.said()[-1500:])
    return Verdict(len(survivors), lost, status is None, status, tuple(problems))
