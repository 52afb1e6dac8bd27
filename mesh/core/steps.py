"""Numbers of steps in the output of ranks: ``step 120``, ``epoch 3``."""

from __future__ import annotations

import re

WORDS = rb"step|epoch|iter|iteration|batch|round|episode|generation"
# The last such number, once the character after it shows that it is complete.
_LAST = re.compile(rb"(?is).*(?<![a-z])(" + WORDS + rb")s?[^\w\n]{0,4}(\d{1,18})[^\d.]")


def last_step(text: bytes) -> tuple[str, int] | None:
    r"""Return the last step of an output, with its word; None if there is none.

    >>> last_step(b"step 119 loss 2.3\nStep: 120/1000 loss 2.1\nstep 1"), last_step(b"steps/s 3.5\n")
    (('step', 120), None)
    """
    found = _LAST.match(text)
    return (found[1].decode().lower(), int(found[2])) if found else None
