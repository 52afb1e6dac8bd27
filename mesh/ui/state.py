"""The state that the answers of the server share."""

from __future__ import annotations

from mesh import __version__
from mesh.ui.children import Children
from mesh.ui.history import History
from mesh.ui.live import Views
from mesh.ui.numbers import Numbers
from mesh.ui.pumps import Pumps
from mesh.ui.runlist import RunList
from mesh.ui.streams import Cards


class State:
    """The runs that are looked at, the loops of streams, and the child processes."""

    def __init__(self, *, has_actions: bool) -> None:
        """has_actions: runs may be stopped, signalled and detached"""
        self.has_actions, self.version = has_actions, __version__
        self.runs, self.views, self.pumps, self.children = RunList(), Views(), Pumps(), Children()
        self.numbers = Numbers()
        self.history = History()
        self.cards = Cards(self.views, self.runs)
