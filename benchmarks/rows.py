"""What a row of the suite is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.figures import Sample, Samples, Spread, medians, ratios, table
from benchmarks.stage import OURS, Contestant, Variant


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What is to be measured."""

    hosts: Sequence[int] = (8, 32)
    rounds: int = 5
    variants: Sequence[Variant] = (OURS,)  # the first one is what all else is compared with

    @property
    def is_duel(self) -> bool:
        """Two revisions of mesh are compared, and no other tool."""
        return len(self.variants) > 1


Row = Callable[[Chosen], str]  # measures, and returns a section of a page

COLUMNS = {
    "client CPU, s": lambda sample: sample.cpu,
    "hosts' CPU, s": lambda sample: sample.hosts_cpu,
    "MB sent": lambda sample: sample.sent / 1e6,
    "MB of memory": lambda sample: sample.memory,
}


def told(
    chosen: Chosen, title: str, what: str, samples: Samples, of: Callable[[Sample], float], columns: Sequence[str]
) -> str:
    """One table: seconds, ratios to the first contestant, and more columns (of COLUMNS); title: of a subsection.

    Where two revisions are compared they stand in pairs, and each pair has its own ratio.
    """
    names = list(samples)
    size = len(chosen.variants) if chosen.is_duel else len(names)
    groups = [names[place : place + size] for place in range(0, len(names), size)]
    factors: dict[str, float] = {}
    for group in groups:
        factors |= ratios({name: samples[name] for name in group}, group[0], of)
    base = chosen.variants[0].name if chosen.is_duel else names[0]
    rows = [
        [
            name,
            Spread.of([of(sample) for sample in taken]).told(),
            f"{factors[name]:.2f}",
            *(f"{medians(taken, COLUMNS[column]):.2f}" for column in columns),
        ]
        for name, taken in samples.items()
    ]
    return f"### {title}\n\n" + table(["", f"{what}, s (min-max)", f"x {base}", *columns], rows)


def absent(contestants: Sequence[Contestant]) -> str:
    """Names the tools that were not measured; "" if all were."""
    missing = {one.name: one.missing for one in contestants if not one.argv}
    listed = ", ".join(f"{name} ({source})" for name, source in missing.items())
    return f"\nNot measured, as not installed here: {listed}.\n" if listed else ""
