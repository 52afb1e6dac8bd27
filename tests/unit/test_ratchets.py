"""What must become less in the code never grows: ``python -m tests.ratchets`` lists every place."""

from __future__ import annotations

from pathlib import Path

from tests.ratchets import COUNTERS, ROOT, Module, counted, limits


def test_no_count_grows() -> None:
    """All counters in one test: each worker of the tests would parse all of mesh for its share of them."""
    wrong, allowed = [], limits()
    for name, places in counted().items():
        if len(places) > allowed[name]:
            wrong.append("\n  ".join([f"{len(places)} {name}, and {allowed[name]} are allowed:", *places]))
        elif len(places) < allowed[name]:
            wrong.append(f"only {len(places)} {name}: lower the limit by `python -m tests.ratchets --write`")
    assert not wrong, "\n".join(wrong)


BAD = '''
"""What it is."""
from typing import Any
PATIENCE = 3.0
from mesh.core import second
NAME = "mesh.core.second"

def f(a: Any, b: int, c: int, d: int, e: int, g: int, h: int) -> None:
    """Tell the host."""  # Whoever reads this
    raise ValueError("Nobody is there")
'''


def test_each_counter_can_fail() -> None:
    first = Module(ROOT / "core/first.py", BAD.lstrip() + "    x = 1\n" * 400)
    second = Module(ROOT / "core/second.py", "import mesh.core.first\n")
    modules = {module.name: module for module in (first, second)}
    assert {name: len(list(counter(modules))) for name, counter in COUNTERS.items()} == {
        "texts that begin with a word that hides the actor": 3,
        "texts in which a machine has a verb of people": 0,
        "constants without subject or unit": 1,
        "modules over 400 lines": 1,
        "functions over 60 lines": 1,
        "functions over 6 parameters": 1,
        "modules in a circle": 2,
        "module names in strings": 1,
        "Any": 1,
        "Any in agent, protocol and remote": 0,
        "attributes by computed names in agent, protocol and remote": 0,
    }
    source = "from typing import Any\n\ndef f(a: Any, name: str) -> None:\n    getattr(a, 'do_' + name)()\n"
    wire = Module(ROOT / "agent/wire.py", source)
    for name in ("Any in agent, protocol and remote", "attributes by computed names in agent, protocol and remote"):
        assert len(list(COUNTERS[name]({wire.name: wire}))) == 1
    told = Module(Path(ROOT / "core/third.py"), '"""The agent tells its client."""\n')
    assert len(list(COUNTERS["texts in which a machine has a verb of people"]({told.name: told}))) == 1
