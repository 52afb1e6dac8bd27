"""The table by which an agent reads requests, questions among them."""

from __future__ import annotations

from .frames import FrameError
from .kinds import unfiltered
from .messages import Table
from .requests import COMMON, Order, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .kinds import Clean


class RequestTable(Table[Request]):
    """All requests. The classes of questions are imported with the first one: an agent with ranks has few."""

    def read(self, header: object, clean: Clean = unfiltered) -> Request:
        if isinstance(header, dict) and header.get("type") == "ask":
            from .questions import QUESTIONS

            return QUESTIONS.read(header, clean)
        return super().read(header, clean)


REQUESTS = RequestTable(*COMMON)


def read_order(header: object) -> Order:
    """Return a request that has a number. Raises FrameError."""
    found = REQUESTS.read(header)
    if not isinstance(found, Order) or not found.n:
        raise FrameError(f"{found.NAME}: no n")
    return found
