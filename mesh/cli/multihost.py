"""The command line of MaxText's multihost_runner.py."""

from __future__ import annotations

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from mesh import api
from mesh.cli.speech import told as telling
from mesh.config.settings import read_flag, read_number
from mesh.core.errors import UsageError

PROJECT = "the project that the TPUs are in (default: gcloud's)"
FOLDER = "run in the directory that RUN_NAME has on the hosts, and send nothing (default: false)"


@task(
    auto_shortflags=False,
    help={
        "TPU_PREFIX": "the name of a TPU, or of several: pod stands for pod-0, pod-1, ... if no TPU is called pod",
        "COMMAND": "what every worker runs in its copy of SCRIPT_DIR, as text for bash",
        "SCRIPT_DIR": "the directory to send and to run in (default: this one)",
        "RUN_NAME": "the name of the directory on the hosts (default: one that is always the same for SCRIPT_DIR)",
        "USE_EXISTING_FOLDER": FOLDER,
        "INTERNAL_IP": "true if this machine is in the TPUs' own network, false if not (default: as can be seen)",
        "PROJECT": PROJECT,
        "ZONE": "the zone that the TPUs are in (default: gcloud's)",
        "SCP_TIMEOUT_SECS": "seconds in which SCRIPT_DIR must be on all hosts (default: 600)",
        "clusters": "take user, key and the like from the cluster in this file that is TPU_PREFIX, if there is one",
    },
)
@telling
def multihost(
    context: Context,
    TPU_PREFIX: str = "",
    COMMAND: str = "",
    SCRIPT_DIR: str = "",
    RUN_NAME: str = "",
    USE_EXISTING_FOLDER: str = "",
    INTERNAL_IP: str = "",
    PROJECT: str = "",
    ZONE: str = "",
    SCP_TIMEOUT_SECS: str = "",
    clusters: str = "",
) -> None:
    """Run a command on all workers of TPUs, with the command line of MaxText's multihost_runner.py."""
    for flag, value in (("--TPU_PREFIX", TPU_PREFIX), ("--COMMAND", COMMAND)):
        if not value:
            raise UsageError(f"{flag} is missing", hint='mesh multihost --TPU_PREFIX=NAME --COMMAND="bash setup.sh"')
    seconds = read_number("--SCP_TIMEOUT_SECS", SCP_TIMEOUT_SECS)
    result = api.multihost(
        COMMAND,
        tpu_prefix=TPU_PREFIX,
        script_dir=SCRIPT_DIR,
        run_name=RUN_NAME,
        use_existing_folder=bool(read_flag("--USE_EXISTING_FOLDER", USE_EXISTING_FOLDER)),
        internal_ip=read_flag("--INTERNAL_IP", INTERNAL_IP),
        project=PROJECT,
        zone=ZONE,
        scp_timeout_secs=api.SCP_TIMEOUT_SECS if seconds is None else seconds,
        clusters_file=clusters,
        output="",
    )
    raise Exit(code=result.exit_code)
