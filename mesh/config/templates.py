"""Projects that ``mesh init --template`` begins: a mesh.yaml for each, and the files that it needs."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.config.project import FILE, TEMPLATE

_UV = """\
commands:  # once per machine: mesh setup CLUSTER
  - run: curl -LsSf https://astral.sh/uv/install.sh | sh
    unless: command -v ~/.local/bin/uv
"""
_REQUIREMENTS = f"""\
{_UV}
ignore:
  - /.venv  # ours: its paths and its Python are those of this machine

prerun:  # before each run, in one bash session per host
  - export PATH="$HOME/.local/bin:$PATH"
  - run: uv venv --allow-existing --python 3.12 && uv pip install -r requirements.txt
    inputs: [requirements.txt]  # skipped on a host where it last succeeded with these contents
  - source .venv/bin/activate  # always: what is skipped exports nothing
"""

UV = f"""\
# A project with pyproject.toml: each host has its .venv, brought up to date when the project's packages have changed.
# `uv lock` gives all hosts the same versions. Then: mesh setup CLUSTER; mesh run CLUSTER python3 main.py

{_UV}
ignore:
  - /.venv  # ours: its paths and its Python are those of this machine

prerun:  # before each run, in one bash session per host
  - export PATH="$HOME/.local/bin:$PATH"
  - run: if test -e uv.lock; then uv sync --frozen; else uv sync; fi
    inputs: [pyproject.toml, uv.lock, .python-version]  # skipped on a host where it last succeeded with these
  - source .venv/bin/activate  # always: what is skipped exports nothing
"""
PYPROJECT = """\
[project]
name = "my-project"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = []
"""
MAIN = """\
import os
import sys

print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, Python {sys.version.split()[0]}")
"""

JAX_TPU = f"""\
# JAX on all chips of all hosts: mesh setup CLUSTER; mesh run CLUSTER python3 train.py

{_REQUIREMENTS}
# env:
#   JAX_PLATFORMS: cpu  # to try it on hosts without TPUs

pass:  # variables of yours that the ranks get
  - WANDB_*
"""
JAX_TRAIN = '''\
"""Fits a line by gradient descent, with the data spread over all devices of all hosts."""

import jax
import jax.numpy as jnp
import meshrun  # is there in every run of mesh
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

meshrun.initialize_jax()  # before anything else of JAX
devices = Mesh(np.array(jax.devices()), ("data",))
spread = NamedSharding(devices, PartitionSpec("data"))
numbers = np.random.default_rng(jax.process_index())
own = numbers.standard_normal(8 * jax.local_device_count()).astype("float32")
x = jax.make_array_from_process_local_data(spread, own)
y = 3 * x + 1


def loss(line, x, y):
    return jnp.mean((line[0] * x + line[1] - y) ** 2)


@jax.jit  # data of other hosts comes in as arguments
def step(line, x, y):
    value, gradient = jax.value_and_grad(loss)(line, x, y)
    return value, line - 0.2 * gradient


line = jnp.zeros(2)
for number in range(50):
    value, line = step(line, x, y)
    if number % 10 == 9:
        print(f"step {number + 1}: loss {float(value):.4f}", flush=True)
print(f"{jax.process_count()} processes, {jax.device_count()} devices: y = {line[0]:.2f} x + {line[1]:.2f}")
'''

TORCH_DDP = f"""\
# PyTorch with a process for each GPU: mesh setup CLUSTER; mesh run --nproc auto CLUSTER python3 train.py
# Without GPUs it runs on CPU, by gloo: mesh run CLUSTER python3 train.py

{_REQUIREMENTS}
pass:  # variables of yours that the ranks get
  - WANDB_*
"""
TORCH_TRAIN = '''\
"""Fits a line with DistributedDataParallel, on GPUs by NCCL and else on CPU by gloo."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

has_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if has_gpu else "gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device), device_ids=[device.index] if has_gpu else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(dist.get_rank())
x = torch.randn(64, 1, device=device)
y = 3 * x + 1

for number in range(50):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number % 10 == 9:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(f"step {number + 1}: loss {mean.item() / dist.get_world_size():.4f}", flush=True)
line = [parameter.item() for parameter in model.parameters()]
print(f"{dist.get_world_size()} processes: y = {line[0]:.2f} x + {line[1]:.2f}", flush=True)
dist.barrier()  # no process leaves while another one still needs it
dist.destroy_process_group()
os._exit(0)  # a thread of gloo may abort a process whose Python is about to end
'''

MAXTEXT = f"""\
# For a clone of MaxText: put this file into its directory. Then: mesh setup CLUSTER; mesh run CLUSTER
#   python3 -m MaxText.train src/MaxText/configs/base.yml run_name=first base_output_directory=gs://BUCKET
#   dataset_type=synthetic steps=10
# Its layout changes between versions: the installation below is that of docs/guides/install_maxtext.md of 2025.

{_UV}
ignore:
  - /.venv  # ours: its paths and its Python are those of this machine

prerun:  # before each run, in one bash session per host
  - export PATH="$HOME/.local/bin:$PATH"
  - run: >-
      uv venv --allow-existing --seed --python 3.12 && source .venv/bin/activate &&
      uv pip install -e '.[tpu]' --resolution=lowest && install_maxtext_github_deps
    inputs: [pyproject.toml]  # skipped on a host where it last succeeded with this content
  - source .venv/bin/activate  # always: what is skipped exports nothing

pass:  # variables of yours that the ranks get
  - HF_TOKEN
"""

TEMPLATES: Mapping[str, Mapping[str, str]] = {
    "jax-tpu": {FILE: JAX_TPU, "requirements.txt": "jax[tpu]\n", "train.py": JAX_TRAIN},
    "torch-ddp": {FILE: TORCH_DDP, "requirements.txt": "torch\nnumpy\n", "train.py": TORCH_TRAIN},
    "maxtext": {FILE: MAXTEXT},
    "uv": {FILE: UV, "pyproject.toml": PYPROJECT, "main.py": MAIN},
}
COMMENTED: Mapping[str, str] = {FILE: TEMPLATE}  # without --template
