"""Sums one number of every rank over all hosts with JAX, on CPU or on whatever JAX finds.

    mesh run CLUSTER python examples/jax_sum.py

Every rank prints the same sum: 0 + 1 + ... + (world size - 1).
"""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=world_size,
    process_id=rank,
)
total = int(multihost_utils.process_allgather(jnp.array([rank])).sum())
print(f"rank {rank}: {jax.process_count()} processes, sum {total}")
if total != world_size * (world_size - 1) // 2:
    raise SystemExit(f"rank {rank}: expected {world_size * (world_size - 1) // 2}, got {total}")
