"""mesh notebook: Jupyter as an ordinary run on one host, at a port of this machine."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import replace

from mesh.api.choosing import choose_cluster
from mesh.api.commands import run
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.core.forwarding import MASTER_PORT, Forwarded
from mesh.core.look import Look
from mesh.hosts.interfaces import Purpose

TOKEN_VARIABLE = "JUPYTER_TOKEN"  # as Jupyter reads it
LOCAL_PORT = 8888  # Jupyter's usual one
NO_JUPYTER_STATUS = 125
OPTIONS = '--no-browser --ip=127.0.0.1 --port="$MASTER_PORT" --ServerApp.port_retries=0 $root'
SCRIPT = f"""\
root=; [ "$(id -u)" != 0 ] || root=--allow-root
for program in jupyter-lab jupyter-notebook; do
    if command -v "$program" >/dev/null 2>&1; then exec "$program" {OPTIONS}; fi
done
echo "mesh: neither jupyter-lab nor jupyter-notebook is on PATH" >&2
exit {NO_JUPYTER_STATUS}
"""


def notebook(
    cluster: str, options: Options, *, clusters_file: str = "", look: Look, notify: Callable[[str], object]
) -> int:
    """Run Jupyter on one host until a signal ends it; return the exit status of the run.

    notify: called with the token before the run, which stands in no file and no argv
    Raises UsageError, and MeshError if the host has no Jupyter.
    """
    found = choose_cluster(cluster, options, clusters_file, purpose=Purpose.PLAN)
    if len(found.hosts) != 1:
        hint = f"mesh notebook {found.name.partition(':')[0]}:0"
        raise UsageError(f"notebook: expected one host, found {len(found.hosts)}", hint=hint)
    token = secrets.token_urlsafe(24)
    notify(f"open the address below with ?token={token}")
    options = replace(
        options,
        env={**options.env, TOKEN_VARIABLE: token},
        forward=(Forwarded(local=LOCAL_PORT, remote=MASTER_PORT),),
        stdin_notice=False,
    )
    result = run(["sh", "-c", SCRIPT], cluster=cluster, options=options, clusters_file=clusters_file, look=look)
    if result.exit_code == NO_JUPYTER_STATUS and any(rank.code == NO_JUPYTER_STATUS for rank in result.ranks):
        hint = "in mesh.yaml, below prerun:  - python3 -m pip install --quiet jupyterlab"
        raise MeshError(f"notebook: {found.hosts[0].name} has no Jupyter", hint=hint)
    return result.exit_code
