"""The table of carriers: one entry for each way to reach hosts. Only this module names a backend."""

from __future__ import annotations

import contextlib
import math
import resource
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.events import POD_STEPS, SLURM_STEPS, SSH_STEPS
from mesh.core.findings import Finding
from mesh.core.prefix import filled

if TYPE_CHECKING:
    from mesh.backends.ssh.ahead import Begun
    from mesh.backends.ssh.passwords import Passwords
    from mesh.core.interfaces import Backend

OWN_DESCRIPTORS = 128  # of this process, beside those of the hosts: 64 logs, packs, the terminal, ...
USUAL_DESCRIPTORS = 65536


class Means(Struct, frozen=True, kw_only=True):
    """The means of a command by which its backend may reach hosts."""

    environ: Mapping[str, str]
    passwords: Passwords
    reach: float = math.inf  # seconds after which a host that takes no connection is given up
    begun: Begun = field(default_factory=dict)  # connections that are on their way already


class Carrier(Struct, frozen=True, kw_only=True):
    """Everything that depends on how the hosts of a cluster are reached."""

    open: Callable[[Cluster, Means], Backend]
    descriptors: int = 1  # of this process, for each host
    begins_ahead: bool = False  # connections may begin while modules are imported
    keeps: bool = False  # connections and agents may wait for the next command
    locks: bool = True  # hosts are shared with others, so that a run takes their locks
    steps: Sequence[str] = SSH_STEPS  # those of core/events.py that there are on the way to an agent
    # Returns the argv of a shell on a host, or of a command there (words); None: the host is this machine.
    shell: Callable[[Cluster, Host, Sequence[str]], list[str] | None] = lambda cluster, host, words: None
    describe: Callable[[Cluster, Host], str] = lambda cluster, host: ""  # how a host is reached, for people
    findings: Callable[[Host], Sequence[Finding]] = lambda host: ()  # of a check, on this machine
    # Returns a scheduler's account of the hosts after a run, for run.json and for a line of the summary.
    account: Callable[[Cluster, Mapping[str, str]], tuple[dict[str, object], str]] = lambda cluster, environ: ({}, "")
    hints: Mapping[str, str] = field(default_factory=dict)  # for hosts that do not reach each other (check/reaching.py)
    shm_hint: str = ""  # for a small /dev/shm, where hosts are containers


def carrier_of(cluster: Cluster) -> Carrier:
    """Return the carrier of a cluster."""
    return CARRIERS[cluster.backend]


def connections_ahead(cluster: Cluster, carrier: Carrier) -> contextlib.AbstractContextManager[Begun]:
    """Begin connections before all modules are imported that use them."""
    # An sshd does not wait while the user types a password.
    if not carrier.begins_ahead or cluster.password_env or cluster.ask_password:
        return contextlib.nullcontext({})
    from mesh.backends.ssh.ahead import begun

    return begun(cluster)


def allow_descriptors(hosts: int, carrier: Carrier) -> None:
    """Raise this process's limit of open files as far as allowed: macOS begins with 256.

    Raises UsageError if that is too low for so many hosts. The limit stays: other runs of the process need it as well.
    """
    needed = hosts * carrier.descriptors + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(USUAL_DESCRIPTORS, needed) if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        hint = f"`ulimit -n {needed}` before; where that is refused, root raises the limit (nofile in limits.conf)"
        raise UsageError(f"{hosts} hosts need {needed} open files, and this process may have {most}", hint=hint)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# ---- ssh


def _open_ssh(cluster: Cluster, means: Means) -> Backend:
    from mesh.backends.ssh.backend import SshBackend

    return SshBackend(
        cluster,
        environ=means.environ,
        passwords=means.passwords,
        reach=means.reach,
        begun=means.begun,
    )


def _ssh_shell(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    from mesh.backends.ssh.command_line import shell_argv

    return shell_argv(cluster, host, words)


def _ssh_described(cluster: Cluster, host: Host) -> str:
    from mesh.backends.ssh.command_line import described

    return described(host)


def _ssh_findings(host: Host) -> Sequence[Finding]:
    from mesh.backends.ssh.command_line import key_file

    return key_file(host)


# ---- command


def _open_command(cluster: Cluster, means: Means) -> Backend:
    from mesh.backends.command import CommandBackend

    return CommandBackend(lambda host: filled(cluster.command, host))


def _command_shell(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    return [*filled(cluster.command, host), *(words or ("sh", "-i"))]


def _command_described(cluster: Cluster, host: Host) -> str:
    return shlex.join(filled(cluster.command, host))


# ---- pods


def _open_pods(cluster: Cluster, means: Means) -> Backend:
    from mesh.backends.pods.backend import PodsBackend

    if cluster.pods.switchboard:
        from mesh.backends.pods.switched import SwitchedPods

        return SwitchedPods(cluster.pods, cluster.python, means.environ)
    return PodsBackend(cluster.pods, means.environ)


def _pods_shell(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    from mesh.backends.pods.terminal import terminal_argv

    return terminal_argv(cluster.pods, host.pod or host.name, words)


def _pods_described(cluster: Cluster, host: Host) -> str:
    place = cluster.pods
    container = f" -c {shlex.quote(place.container)}" if place.container else ""
    return f"{place.kubectl('exec')} {host.pod or host.name}{container}"


# ---- slurm


def _open_slurm(cluster: Cluster, means: Means) -> Backend:
    from mesh.backends.slurm.backend import SlurmBackend

    return SlurmBackend(cluster, means.environ)


def _slurm_shell(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    from mesh.backends.slurm.backend import shell_argv

    return shell_argv(cluster, host, words)


def _slurm_described(cluster: Cluster, host: Host) -> str:
    from mesh.backends.slurm.backend import described

    return described(cluster, host)


def _slurm_account(cluster: Cluster, environ: Mapping[str, str]) -> tuple[dict[str, object], str]:
    from mesh.backends.slurm.accounting import account_line, account_of

    found = account_of(cluster, environ)
    return found, account_line(found)


PODS_HINT = "allow TCP between these pods: a NetworkPolicy may forbid it (kubectl get networkpolicy)"
SLURM_HINT = "allow TCP between these nodes, on all ports or on those of `ports:` in cluster.yaml"
SHM_HINT = "`shm: 16Gi` below kubernetes: in cluster.yaml; other pods: an emptyDir with `medium: Memory` at /dev/shm"
NETWORK_HINT = "give the hosts a network in common, or name an address that they reach by internal_ip: in cluster.yaml"

CARRIERS: Mapping[str, Carrier] = {
    "ssh": Carrier(
        open=_open_ssh,
        begins_ahead=True,
        keeps=True,
        shell=_ssh_shell,
        describe=_ssh_described,
        findings=_ssh_findings,
    ),
    "command": Carrier(
        open=_open_command,
        descriptors=2,
        steps=("reach", "python"),
        shell=_command_shell,
        describe=_command_described,
        hints=dict.fromkeys(("silent", "refused", "unresolved"), NETWORK_HINT),
    ),
    "pods": Carrier(
        open=_open_pods,
        steps=POD_STEPS,
        shell=_pods_shell,
        describe=_pods_described,
        hints=dict.fromkeys(("silent", "refused", "unresolved"), PODS_HINT),
        shm_hint=SHM_HINT,
    ),
    "slurm": Carrier(
        open=_open_slurm,
        steps=SLURM_STEPS,
        shell=_slurm_shell,
        describe=_slurm_described,
        account=_slurm_account,
        hints=dict.fromkeys(("silent", "refused", "unresolved"), SLURM_HINT),
    ),
    "local": Carrier(open=_open_command, descriptors=2, locks=False, steps=("reach", "python")),
}
