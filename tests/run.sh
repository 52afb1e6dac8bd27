#!/usr/bin/env bash
# Sets up all that the tests need and runs them: bash tests/run.sh [pytest arguments]
# As root on Debian nothing else is needed; as a plain user what needs root or an sshd is skipped by name.
# MESH_TEST_JAX=0 leaves JAX out (620 MB), and with it the test of examples/jax_sum.py; MESH_TEST_TORCH=0 leaves
# PyTorch out (870 MB with what it needs), and with it that of examples/torch_sum.py.
set -euo pipefail
# shellcheck source=tests/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

missing=()
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2"); }
need sshd openssh-server
need ssh openssh-client
need ip iproute2
need unshare util-linux
need git git
need rsync rsync
need sudo sudo
need useradd passwd
need zsh zsh
need ps procps
need tcsh tcsh
need fish fish
need tmux tmux
need rclone rclone
need fusermount3 fuse3
need chromium chromium
need slurmctld slurmctld
need slurmd slurmd
need srun slurm-client
need munged munge
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing+=(postgresql)
# The container engines of tests/engines.py are only unpacked. These are the libraries that they need.
need_library() { ldconfig -p | grep -qF "$1" || missing+=("$2"); }
PATH=$PATH:/sbin:/usr/sbin
need_library libgpgme.so.11 libgpgme11
need_library libsubid.so.4 libsubid4
need_library libdevmapper.so.1.02.1 libdevmapper1.02.1
need_library libseccomp.so.2 libseccomp2
[ ${#missing[@]} = 0 ] || packages "${missing[@]}" || true

extras=dev,docs
[ "${MESH_TEST_JAX:-1}" = 0 ] || extras+=,jax
[ "${MESH_TEST_TORCH:-1}" = 0 ] || extras+=,torch
environment "$extras"

# Each process of pytest reads all tests. They are compiled before, and not once in each of them.
unset PYTHONDONTWRITEBYTECODE
halves=(tests/integration "tests/unit tests/agent tests/chaos mesh benchmarks")
if [[ " $* " != *" tests/"* ]] && ! compgen -G "tests/unit/__pycache__/*-pytest-*.pyc" >/dev/null; then
    say "compiling the tests"
    for half in "${halves[@]}"; do
        # shellcheck disable=SC2086
        .venv/bin/python -m pytest -qq --collect-only $half >/dev/null 2>&1 &
    done
    wait
fi

say "running the tests"
# Most tests wait for what takes its time: seven at a time, each process with test hosts of its own.
exec .venv/bin/python -m pytest -n 7 --dist worksteal "$@"
