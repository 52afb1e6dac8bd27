"""The rows of the option table for command lines of other programs."""

from __future__ import annotations

from mesh.cli import userpodoptions
from mesh.cli.option import (
    COMMAND,
    ENDS,
    FILES,
    HOSTS,
    OTHER,
    RANKS,
    AnyOption,
    Option,
    as_text,
    switch,
    text,
)
from mesh.config.settings import read_flag, read_number

# MaxText's multihost_runner.py has its flags in capitals.
MULTIHOST = ("multihost",)
TPU_PREFIX = text("TPU_PREFIX", MULTIHOST, HOSTS, "NAME", "a TPU's name; pod stands for pod-0, pod-1, ... too")
TPU_COMMAND = text("COMMAND", MULTIHOST, COMMAND, "TEXT", "what every worker runs, as text for bash")
SCRIPT_DIR = text("SCRIPT_DIR", MULTIHOST, FILES, "DIR", "the directory to send and to run in (default: .)")
RUN_NAME = text("RUN_NAME", MULTIHOST, FILES, "NAME", "its directory's name on the hosts")
USE_EXISTING_FOLDER = Option(
    "USE_EXISTING_FOLDER", MULTIHOST, FILES, "BOOL", "run in RUN_NAME's directory, send nothing", read_flag, None
)
INTERNAL_IP = Option(
    "INTERNAL_IP", MULTIHOST, HOSTS, "BOOL", "this machine is in the TPUs' own network", read_flag, None
)
PROJECT = text("PROJECT", MULTIHOST, HOSTS, "NAME", "the TPUs' project (default: gcloud's)")
ZONE = text("ZONE", MULTIHOST, HOSTS, "NAME", "the TPUs' zone (default: gcloud's)")
SCP_TIMEOUT_SECS = Option(
    "SCP_TIMEOUT_SECS",
    MULTIHOST,
    FILES,
    "SECONDS",
    "for SCRIPT_DIR to be everywhere (default: 600)",
    read_number,
    None,
)
TPU_CLUSTERS = text("clusters", MULTIHOST, OTHER, "FILE", "take user and key from the cluster TPU_PREFIX in FILE")

# MaxText's multihost_job.py has some more.
MULTIHOST_JOB = ("multihost-job",)
JOB_COMMAND = text("COMMAND", MULTIHOST_JOB, COMMAND, "TEXT", "what every host runs, as text for bash; required")
BUCKET_NAME = text("BUCKET_NAME", MULTIHOST_JOB, FILES, "NAME", "the bucket of the logs; required")
BUCKET_DIR = text("BUCKET_DIR", MULTIHOST_JOB, FILES, "DIR", "the directory there; RUN_NAME stands below it")
JOB_SCRIPT_DIR = text("SCRIPT_DIR", MULTIHOST_JOB, FILES, "DIR", "the directory to send and to run in (default: .)")
JOB_RUN_NAME = text("RUN_NAME", MULTIHOST_JOB, FILES, "NAME", "of the job (default: user and time)")
TPU_TYPE = text("TPU_TYPE", MULTIHOST_JOB, HOSTS, "TYPE", "the accelerator (default: v4-8)")
TPU_VERSION = text("VERSION", MULTIHOST_JOB, HOSTS, "NAME", "the runtime (default: tpu-ubuntu2204-base)")
NUM_SLICES = Option("NUM_SLICES", MULTIHOST_JOB, HOSTS, "N", "how many TPUs (default: 2)", read_number, None)
JOB_PROJECT = text("PROJECT", MULTIHOST_JOB, HOSTS, "NAME", "the TPUs' project (default: gcloud's)")
JOB_ZONE = text("ZONE", MULTIHOST_JOB, HOSTS, "NAME", "the TPUs' zone (default: gcloud's)")
CQR_EXTRA_ARGS = text("CQR_EXTRA_ARGS", MULTIHOST_JOB, HOSTS, "TEXT", "more words for gcloud, as --reserved")
ENABLE_AUTOCHECKPOINT = Option(
    "ENABLE_AUTOCHECKPOINT", MULTIHOST_JOB, HOSTS, "BOOL", "ask for autocheckpoint", read_flag, None
)

# The flags of MAD Engine's SSH runner; `mesh.config.mad` reads their texts, as an INI file may have them too.
MAD = ("mad",)
MAD_MODEL = text("model", MAD, COMMAND, "TAG", "the tag of a model; required")
MAD_NODES = text("nodes", MAD, HOSTS, "HOSTS", "by commas, the first one has rank 0; required")
MAD_USER = text("ssh-user", MAD, HOSTS, "USER", "who logs in there; required")
MAD_PASSWORD: Option[str | bool | None] = Option(
    "ssh-password",
    MAD,
    HOSTS,
    "TEXT",
    "ask for the password; no value is taken",
    as_text,
    None,
    bare=True,
    is_secret=True,
)
MAD_PASSWORD_ENV = text("password-env", MAD, HOSTS, "NAME", "the variable that holds the password")
MAD_KEY = text("ssh-key", MAD, HOSTS, "FILE", "a private key (default: as ssh finds them)")
MAD_MASTER = text("master-addr", MAD, RANKS, "ADDRESS", "where ranks meet (default: the first node)")
MAD_PORT = text("master-port", MAD, RANKS, "PORT", "port of --master-addr (default: 4000)")
MAD_DATA = text("shared-data-path", MAD, FILES, "PATH", "where data is on every node (default: /nfs/data)")
MAD_NCCL = text("nccl-interface", MAD, RANKS, "NAME", "for NCCL (default: the one towards the master)")
MAD_GLOO = text("gloo-interface", MAD, RANKS, "NAME", "for gloo (default: likewise)")
MAD_TIMEOUT = text("timeout", MAD, ENDS, "SECONDS", "end the run then, status 124 (default: 3600)")
MAD_PROGRAM = text("madengine-path", MAD, COMMAND, "PATH", "on the nodes (default: madengine)")
MAD_ARGUMENTS = text("additional-args", MAD, COMMAND, "TEXT", "more words, split as a shell would")
MAD_DIRECTORY = text("working-directory", MAD, FILES, "DIR", "in the home there (default: a copy of this directory)")
MAD_CONFIG = text("config", MAD, OTHER, "FILE", "an INI file with these flags as keys; flags win")

# TLaunch's tlaunchrun has underscores in its arguments.
TLAUNCH_BASIC = ("tlaunchrun basic",)
TLAUNCH = (*TLAUNCH_BASIC, "tlaunchrun torchrun", "tlaunchrun deepspeed")
TLAUNCH_CLUSTER = text("cluster", TLAUNCH, HOSTS, "CLUSTER", "a cluster, or some of its hosts", is_place=True)
TLAUNCH_NAME = text("lpjob_name", TLAUNCH, COMMAND, "NAME", "name of the run")
TLAUNCH_GPU = Option("gpu", TLAUNCH, RANKS, "N", "processes on each host, or GPUs of each pod", read_number, None)
TLAUNCH_TRAINERS = Option(
    "num_trainer", TLAUNCH_BASIC, RANKS, "N", "number of trainers on all hosts together", read_number, None
)
TLAUNCH_SHARE = text(
    "set_share_file", TLAUNCH_BASIC, FILES, "PATH", "add --share_file PATH; with --image no PATH is needed"
)
TLAUNCH_SAVE = switch("set_save_path", TLAUNCH, FILES, "add --save_path models/NAME")
TLAUNCH_CHECKPOINT = switch("set_checkpoint_path", TLAUNCH, FILES, "add --checkpoint_path models/last.tar.gz")
TLAUNCH_NODES = Option("nnodes", TLAUNCH[1:2], HOSTS, "N", "hosts, or pods (default: all, or 1)", read_number, None)
TLAUNCH_NPROC = Option(
    "nproc_per_node", TLAUNCH[1:2], RANKS, "N", "on each (default: that of --gpu)", read_number, None
)
TLAUNCH_NUM_NODES = Option(
    "num_nodes", TLAUNCH[2:], HOSTS, "N", "hosts, or pods (default: all, or 1)", read_number, None
)
TLAUNCH_NUM_GPUS = Option("num_gpus", TLAUNCH[2:], RANKS, "N", "on each (default: that of --gpu)", read_number, None)
TLAUNCH_IMAGE = text("image", TLAUNCH, HOSTS, "IMAGE", "run in new pods with it; then no cluster is named")
TLAUNCH_DRY = switch("dry-run", TLAUNCH, OTHER, "print the objects and the words, and do nothing")
TLAUNCH_PODS = tuple(
    text(name, TLAUNCH, HOSTS, "TEXT", f"with --image: {about}")
    for name, about in (
        ("namespace", "that of the pods"),
        ("image_pull_policy", "Always, IfNotPresent or Never"),
        ("gpu_memory", "part of each GPU, by gpu_share: in mesh.yaml"),
        ("gpu_cores", "part of each GPU, by gpu_share: in mesh.yaml"),
    )
)

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
TABLE += [*TLAUNCH_PODS, *userpodoptions.TABLE]
