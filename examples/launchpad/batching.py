"""Two clients whose calls a server takes together, as one batch.

MESH_CLUSTER=pod python3 batching.py
"""

import datetime
import sys

import numpy as np

from mesh import launchpad as lp

CLIENTS, CALLS = 2, 5
BATCH_WAIT = datetime.timedelta(minutes=1)  # by default a batch waits for 0.2 s, and is smaller then


class Server:
    """Adds up the arrays of each batch."""

    def __init__(self, batch_size):
        self._sum = 0
        self.compute = lp.batched_handler(batch_size=batch_size, timeout=BATCH_WAIT)(self.compute)
        self.finish = lp.batched_handler(batch_size=batch_size, timeout=BATCH_WAIT)(self.finish)

    def compute(self, values):
        self._sum = self._sum + np.sum(values, axis=0)
        return np.tile(self._sum, (len(values), 1))

    def finish(self, numbers):
        return numbers


class Client:
    """Calls the server, which answers once the other client has called as well."""

    def __init__(self, number, server):
        self._number, self._server = number, server

    def run(self):
        for value in range(self._number, self._number + CALLS):
            result = self._server.compute([value, value + 1])
            # In one piece, because the clients may be threads of one process.
            sys.stdout.write(f"Client {self._number}: {np.asarray(result).tolist()}\n")
        sys.stdout.flush()
        self._server.finish(self._number)  # returns once all clients have called it
        if self._number == 0:
            lp.stop()


def main():
    program = lp.Program("batching")
    server = program.add_node(lp.CourierNode(Server, CLIENTS), label="server")
    with program.group("clients"):
        for number in range(CLIENTS):
            program.add_node(lp.CourierNode(Client, number, server))
    lp.launch(program, launch_type=sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
