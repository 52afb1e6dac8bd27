"""TLaunch's transmit nodes: the last value that any node has sent, and weights by tables."""

from __future__ import annotations

import asyncio
from typing import Dict, List, Sequence, Tuple

from mesh.launchpad.runtime.clients import CourierClient, Handle, NodePort

LOOK_S = 1.0  # after which a reader gets the value that it had, if there is no newer one
WEIGHTS_WAIT_S = 5.0  # of one call for newer weights, before the client asks again
Weights = Dict[str, Dict[str, object]]


class TransmitServer:
    """Keeps the last value and the last weights of each table. All of it is on the node's loop."""

    def __init__(self) -> None:
        self._version = 0
        self._value: object = None
        self._weights: Dict[str, Tuple[int, Weights]] = {}
        self._changed: "List[asyncio.Future[None]]" = []

    async def put_info(self, value: object) -> None:
        """Replace the value."""
        self._version, self._value = self._version + 1, value
        self._wake()

    async def take_info(self, seen: int) -> "Tuple[int, object]":
        """Return the number of the value and itself: a newer one than ``seen``, or the same after a second."""
        await self._until(lambda: self._version > seen, LOOK_S)
        return self._version, self._value

    async def put_weights(self, tables: "Sequence[str]", episode: int, weights: Weights) -> None:
        """Replace the weights of tables."""
        for table in tables:
            self._weights[table] = episode, weights
        self._wake()

    async def take_weights(self, table: str, episode: int) -> "Tuple[int, Weights]":
        """Return the episode and weights of a table once that episode is reached; episode -1 after WEIGHTS_WAIT_S."""
        await self._until(lambda: self._weights.get(table, (-1, {}))[0] >= episode, WEIGHTS_WAIT_S)
        found = self._weights.get(table, (-1, {}))
        return found if found[0] >= episode else (-1, {})

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _until(self, condition: object, seconds: float) -> None:
        """Wait until a condition holds, at most so many seconds."""
        assert callable(condition)
        loop = asyncio.get_event_loop()
        deadline = loop.time() + seconds
        while not condition() and loop.time() < deadline:
            one: "asyncio.Future[None]" = loop.create_future()
            self._changed.append(one)
            await asyncio.wait([one], timeout=max(0.0, deadline - loop.time()))


class TransmitClient(CourierClient):
    """Sends and reads values of a transmit node."""

    def __init__(self, port: NodePort) -> None:
        super().__init__(port)
        self._seen = 0

    def send_info(self, info: object) -> None:
        """Replace the node's value."""
        self._call("put_info", (info,), {}).result()

    def get_info(self) -> object:
        """Return the node's value: one that this client has not had, else the last again after a second.

        Waits for the first one.
        """
        while True:
            found: "Tuple[int, object]" = self._call("take_info", (self._seen,), {}).result()
            if found[0]:
                self._seen = found[0]
                return found[1]

    def insert_weight(self, model_weight: "Dict[str, object]", priorities: "Dict[str, float]") -> None:
        """Replace the weights of the tables in ``priorities``. model_weight: dicts of tensors, and "episode" """
        episode = model_weight.get("episode", -1)
        weights = {name: dict(one) for name, one in model_weight.items() if name != "episode"}  # type: ignore[call-overload]
        self._call("put_weights", (list(priorities), episode, weights), {}).result()

    def sample_weight(self, model_keys: "Sequence[str]", target_episode: int, table: str) -> Weights:
        """Return weights, once they are of an episode or later. model_keys: "model@layer" for each tensor"""
        while True:
            future = self._call("take_weights", (table, target_episode), {})
            answer: "Tuple[int, Weights]" = future.result()
            episode, weights = answer
            if episode >= target_episode:
                break
        found: Weights = {}
        for key in model_keys:
            model, _, layer = key.partition("@")
            found.setdefault(model, {})[layer] = weights[model][layer]
        return found

    def __reduce__(self) -> "Tuple[object, ...]":
        return TransmitClient, (self._port,)


class TransmitHandle(Handle[TransmitClient]):
    """The handle of a transmit node."""

    def __init__(self, port: NodePort) -> None:
        self._port = port

    def dereference(self) -> TransmitClient:
        """Return a client of the node. Raises RuntimeError before the launch."""
        return TransmitClient(self._port)
