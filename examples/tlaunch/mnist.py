"""Trains a small network with torch.distributed by gloo, on digits that it makes itself.

    mesh tlaunchrun basic pod python3 mnist.py
    mesh tlaunchrun basic --set_share_file /nfs/meet pod python3 mnist.py   # where hosts share /nfs

The processes meet at MASTER_ADDR, or by a file that all hosts share. All of them then have the same weights.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

BATCH, PIXELS, DIGITS = 32, 64, 10


def digits(generator):
    """Return images and their digits: each digit is a pattern of its own, with noise."""
    labels = torch.randint(0, DIGITS, (BATCH,), generator=generator)
    patterns = torch.eye(DIGITS).repeat_interleave(PIXELS // DIGITS + 1, dim=1)[:, :PIXELS]
    return patterns[labels] + 0.1 * torch.randn(BATCH, PIXELS, generator=generator), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world_size", type=int, required=True)
    parser.add_argument("--share_file", default="")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    method = f"file://{given.share_file}" if given.share_file else "env://"
    dist.init_process_group("gloo", init_method=method, rank=given.rank, world_size=given.world_size)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(PIXELS, 32), torch.nn.ReLU(), torch.nn.Linear(32, DIGITS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(given.rank)  # every process has images of its own
    losses = []
    for _ in range(given.steps):
        images, labels = digits(generator)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= given.world_size
        optimizer.step()
        losses.append(float(loss))
    weights = sum(float(parameter.double().sum()) for parameter in model.parameters())
    learned = "learned" if losses[-1] < losses[0] / 2 else "learned nothing"
    sys.stdout.write(f"rank {given.rank} of {given.world_size}: {learned}, weights {weights:.6f}\n")
    sys.stdout.flush()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may abort a process whose Python is about to end


if __name__ == "__main__":
    main()
