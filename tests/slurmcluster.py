"""A real cluster of Slurm in the lab: a login node with slurmctld, and four nodes with slurmd.

Debian's packages; munge authenticates. Every node is a host of the lab, with an address, a process tree and files of
its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.lab import Lab, LabError, TestHost, eventually

NODES = 4
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
DAEMONS = re.compile(r"(\S*/)?(munged|slurmctld|slurmd)\b|slurmstepd|\[?slurmscriptd|sackd")
SRUN_PORTS = (61001, 62000)  # beyond those that Linux gives to connections
START_S = 180.0
SETTLE_S = 180.0  # for jobs to end, on a machine with much to do

# BatchStartTimeout (usually 10 s), MessageTimeout (10 s), UnkillableStepTimeout (60 s): a machine with much to do.
CONFIG = """\
ClusterName=lab
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation=/var/spool/mesh-slurmctld
SlurmdSpoolDir=/var/spool/mesh-slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait={kill_wait}
MinJobAge=300
BatchStartTimeout=120
MessageTimeout=60
UnkillableStepTimeout=300
SrunPortRange={first_port}-{last_port}
NodeName={nodes} CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes={nodes} State=DOWN
"""


def is_installed() -> bool:
    """Return True if the programs of Slurm are on this machine."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return all(shutil.which(name, path=path) for name in PROGRAMS)


class SlurmCluster:
    """A cluster of Slurm; a context manager. Nothing of it stays, also when its process is killed."""

    def __init__(
        self,
        *,
        visible: tuple[Path, ...] = (),
        sshd: tuple[str, ...] = (),
        kill_wait: int = 5,
        shared_home: bool = False,
    ) -> None:
        """visible, shared_home: as in Lab; sshd: lines for all hosts; kill_wait: from SIGTERM to SIGKILL, seconds"""
        self.lab = Lab(1 + NODES, visible=visible, sshd=sshd, shared_home=shared_home)
        self._kill_wait, self._visible = kill_wait, visible

    @property
    def login(self) -> TestHost:
        """The login node, which has the commands and the controller."""
        return self.lab.hosts[0]

    @property
    def nodes(self) -> list[TestHost]:
        """The nodes of allocations, in their order."""
        return self.lab.hosts[1:]

    def __enter__(self) -> SlurmCluster:
        if not is_installed():
            raise LabError("needs slurmctld, slurmd, slurm-client and munge")
        self.lab.__enter__()
        try:
            self._start()
        except BaseException:
            self.lab.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lab.down()

    def _start(self) -> None:
        names = [host.name for host in self.nodes]
        text = CONFIG.format(
            login=self.login.name,
            address=self.login.address,
            nodes=",".join(names),
            kill_wait=self._kill_wait,
            first_port=SRUN_PORTS[0],
            last_port=SRUN_PORTS[1],
        )
        munge = (
            "install -d -m 755 -o munge -g munge /run/munge; install -d -m 700 -o munge -g munge /var/log/munge "
            "/var/lib/munge /etc/munge; head -c 1024 /dev/zero | tr '\\0' 'k' >/etc/munge/munge.key; "
            "chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; "
            "setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged --force"
        )
        for host in self.lab.hosts:
            host.path("/etc/slurm").mkdir(exist_ok=True)
            host.path("/etc/slurm/slurm.conf").write_text(text)
            daemon = "/usr/sbin/slurmctld -c" if host is self.login else f"/usr/sbin/slurmd -N {host.name}"
            host.script(f"{munge}; mkdir -p /var/spool/mesh-slurmctld /var/spool/mesh-slurmd; {daemon}")
        if not eventually(lambda: self.states() == {"idle": NODES}, START_S):
            log = self.login.path("/var/log/slurmctld.log").read_text()[-2000:]
            raise LabError(f"Slurm did not start: {self.states()}\n{log}")

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command on the login node; return what it printed."""
        return self.login.run("env", "HOME=/root", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", *argv, check=check)

    def states(self) -> dict[str, int]:
        """Return how many nodes are in each state."""
        found: dict[str, int] = {}
        for line in self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%t", check=False).split():
            found[line] = found.get(line, 0) + 1
        return found

    def jobs(self) -> list[str]:
        """Return the numbers of the jobs that wait or run."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def processes(self, host: TestHost) -> list[tuple[int, str]]:
        """Return what runs on a host beside Slurm, munge and sshd."""
        return [(pid, command) for pid, command in host.processes() if not DAEMONS.match(command)]

    def clear(self) -> None:
        """Cancel all jobs, and wait until every node is free of processes; end those that are left."""
        if jobs := self.jobs():
            self.run("scancel", "--signal=KILL", "--full", *jobs, check=False)
            self.run("scancel", *jobs, check=False)
        assert eventually(lambda: not self.jobs() and self.states() == {"idle": NODES}, SETTLE_S), self.states()
        for host in self.lab.hosts:
            for pid, _ in self.processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        for host in self.lab.hosts:
            assert eventually(lambda one=host: not self.processes(one), SETTLE_S), self.processes(host)
            kept = [host.path(str(one)) for one in self._visible]
            kept += host.path("/tmp").glob("mesh-[0-9]*/.agent-*")  # compiled modules of the agents
            for place in ("/root", "/tmp"):
                _empty(host.path(place), kept)

    def popen(self, *argv: str, cwd: str = "/root", **environ: str) -> subprocess.Popen[bytes]:
        """Start a command on the login node."""
        enter = ["nsenter", "-t", str(self.login.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--"]
        words = ["env", "-i", "HOME=/root", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "LANG=C.UTF-8"]
        words += [f"{name}={value}" for name, value in environ.items()]
        return subprocess.Popen(
            [*enter, *words, "sh", "-c", 'cd "$0" && exec "$@"', cwd, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def _empty(place: Path, kept: Sequence[Path]) -> None:
    """Remove all that is in a directory but the paths that are kept, and what leads to them.

    find(1) would look at all files behind those: the device of a shared home directory is that of this machine.
    """
    for entry in list(place.iterdir()):
        if entry in kept:
            continue
        if any(entry in one.parents for one in kept):
            _empty(entry, kept)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
