"""Sums one number of every rank over all hosts with JAX, on CPU or on whatever JAX finds.

    mesh run CLUSTER python3 examples/jax_sum.py

Every rank prints the same sum: 0 + 1 + ... + (world size - 1).
"""

import jax
import jax.numpy as jnp
import meshrun  # is there in every run of mesh
from jax.experimental import multihost_utils

meshrun.initialize_jax()
rank, count = jax.process_index(), jax.process_count()
total = int(multihost_utils.process_allgather(jnp.array([rank])).sum())
print(f"rank {rank}: {count} processes, sum {total}")
if total != count * (count - 1) // 2:
    raise SystemExit(f"rank {rank}: expected {count * (count - 1) // 2}, got {total}")
