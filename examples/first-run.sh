#!/usr/bin/env bash
# From nothing to a two-rank run on this machine: a virtual environment, mesh in it, and examples/hello.py.
set -euo pipefail
# shellcheck source=tests/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../tests/setup.sh"
environment ""
say "mesh run local python3 examples/hello.py"
.venv/bin/mesh run local python3 examples/hello.py
say "next: source .venv/bin/activate && mesh --help; then docs/tutorial.md (for good: pipx install .)"
