"""What dies, and what ranks do meanwhile; needs root.

python -m tests.chaos --all [--write]                          every cell of the matrix
python -m tests.chaos --seed 1 [--rounds 100] [--minutes 30]   random faults at random moments
Either with --user plain: hosts on which mesh logs in as a plain user, who may make no control group;
and with --shared-pids: the first two hosts see each other's processes, as containers of one pod do.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos import page
from tests.chaos.crew import Crew
from tests.chaos.faults import BEHAVIOURS, FAULTS
from tests.chaos.schedule import carry_out, schedule
from tests.chaos.trial import Cell, attempt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every cell of the matrix")
    parser.add_argument("--only", default="", help="of the matrix, only what dies of this name")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each round has the next one")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no other run after so many")
    parser.add_argument("--user", choices=("root", "plain"), default="root", help="who logs in to the hosts")
    parser.add_argument("--shared-pids", action="store_true", help="two of the four hosts are in one PID namespace")
    parser.add_argument("--workers", type=int, default=3, help="labs of four hosts at a time")
    parser.add_argument("--write", action="store_true", help="write the section of docs/reliability.md")
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("a part of the matrix is no table")
    wrong = run_matrix(chosen) if chosen.all else run_schedules(chosen)
    sys.exit(1 if wrong else 0)


def run_matrix(chosen: argparse.Namespace) -> int:
    began = time.monotonic()
    faults = [name for name in FAULTS if chosen.only in name]
    # What takes longest comes first.
    faults.sort(key=lambda name: "30 s" not in name)
    cells = [Cell(fault=fault, ranks=ranks) for fault in faults for ranks in BEHAVIOURS]
    results = {}
    for cell, result in Crew(chosen.workers, attempt, chosen.user, shared_pids=chosen.shared_pids).do(
        cells, began + 60 * chosen.minutes
    ):
        results[cell] = result
        told = "; ".join(result.problems) or "as promised"
        print(f"{len(results)}/{len(cells)} {cell.fault}, {cell.ranks}: {result.seconds:.1f} s: {told}", flush=True)
    if chosen.write:
        hosts = "shared" if chosen.shared_pids else chosen.user
        section = "matrix" if hosts == "root" else f"matrix-{hosts}"
        page.PAGE.write(section, page.matrix(results, time.monotonic() - began, hosts))
    return len(cells) - sum(not result.problems for result in results.values())


def run_schedules(chosen: argparse.Namespace) -> int:
    began = time.monotonic()
    plans = [schedule(chosen.seed + number) for number in range(chosen.rounds)]
    verdicts = {}
    for plan, verdict in Crew(chosen.workers, carry_out, chosen.user, shared_pids=chosen.shared_pids).do(
        plans, began + 60 * chosen.minutes
    ):
        verdicts[plan.seed] = verdict
        told = "\n    ".join(verdict.problems) or "as promised"
        print(f"{len(verdicts)}/{len(plans)} {plan.told()}: status {verdict.status}: {told}", flush=True)
    done = [(plan, verdicts[plan.seed]) for plan in plans if plan.seed in verdicts]
    print(f"{len(done)} runs, {sum(bool(verdict.problems) for _, verdict in done)} not as promised")
    if chosen.write:
        section = "schedules" if chosen.user == "root" else "schedules-plain"
        page.PAGE.write(section, page.schedules(chosen.seed, done, time.monotonic() - began, chosen.user))
    return len(plans) - sum(not verdict.problems for _, verdict in done)


if __name__ == "__main__":
    main()
