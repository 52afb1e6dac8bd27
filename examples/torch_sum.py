"""Sums one number of every process over all hosts with torch.distributed, by gloo on CPU.

    mesh run --launcher torchrun --nproc 2 CLUSTER examples/torch_sum.py
    mesh run --nproc 2 CLUSTER python3 examples/torch_sum.py

Either way every process prints the same sum: 0 + 1 + ... + (world size - 1).
"""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
expected = dist.get_world_size() * (dist.get_world_size() - 1) // 2
# In one piece: print would write the end of the line by itself, and torchrun's processes share one stream.
sys.stdout.write(f"rank {dist.get_rank()}: {dist.get_world_size()} processes, sum {int(total)}\n")
sys.stdout.flush()
dist.destroy_process_group()
if int(total) != expected:
    raise SystemExit(f"expected {expected}, got {int(total)}")
os._exit(0)  # a thread of gloo may abort a process whose Python is about to end
