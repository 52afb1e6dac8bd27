"""Every rank says who it is, and rank 0 counts the others: no framework, only what mesh sets."""

import os
import socket

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"hello from rank {rank} of {world_size} on {socket.gethostname()}, in {os.getcwd()}")
