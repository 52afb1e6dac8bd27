"""A check of a cluster: the questions to its hosts, and the meaning of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mesh.check import comparing, reaching
from mesh.check.workers import Numbers
from mesh.core.amounts import told_bytes
from mesh.core.cluster import Placement
from mesh.core.events import CONNECTING, POD_STEPS, SLURM_STEPS, SSH_STEPS, PrepareFailed
from mesh.core.findings import NAMES, Finding, Verdict, failed, ok, unknown, warning
from mesh.engine.inquiry import Inquiry, Questions
from mesh.protocol import questions
from mesh.protocol.answers import Owner, WorkspaceSizes
from mesh.protocol.replies import Facts, Failure, HostName, Nothing, ProgramPlace
from mesh.remote.owners import other_line, other_run, owner_line

LITTLE_DISK, TOO_LITTLE_DISK = 0.05, 64 << 20  # of all; bytes that a run needs at the very least
LITTLE_INODES = 1000
GRAVITY = (Verdict.UNKNOWN, Verdict.OK, Verdict.WARNING, Verdict.FAILED)
LITTLE_MEMORY = 0.1  # of all
LITTLE_SHM_BYTES = 256 << 20  # container runtimes give 64 MB
CLOCK_OFF_S = 5.0  # mesh corrects the times that it shows; file times, certificates and tokens stay wrong
STEPS = {
    **{step: step for step in (*POD_STEPS, *SLURM_STEPS)},
    "reach": "reachable",
    "host-key": "host key",
    "login": "login",
    "python": "python3",
}


class Wanted(Struct, frozen=True, kw_only=True):
    """The parts of a check that are optional."""

    project: str = ""  # the name of the workspace's directory on hosts
    env: Mapping[str, str]  # the user's own, for the ranks
    venv: str | None = ""  # that prerun activates; "": none; None: unknown, or versions are not checked
    devices: tuple[str, ...] = ()  # shell patterns of files that no process may hold
    lock: bool = True  # look whether another run has the lock
    paths: tuple[str, ...] = ()  # that must be there, and be the same on all hosts
    programs: tuple[str, ...] = ()  # that must be on PATH
    workspaces: bool = False  # look for their sizes
    program_hint: str = ""  # advice if one is missing; "": the usual
    master_port: int = 0  # on the first host, which the others must reach; 0: any that mesh would choose
    steps: Sequence[str] = SSH_STEPS  # on the way to an agent, in their order
    hints: Mapping[str, str] = field(default_factory=dict)  # for hosts that do not reach each other, by how that fails
    shm_hint: str = ""  # advice for a small /dev/shm, of hosts that are containers; "": it is not looked at

    @property
    def names(self) -> list[str]:
        """Return the names of all findings that there are."""
        left_out = {
            name
            for name, looks in (
                ("lock", self.lock),
                ("users", self.lock),
                ("modules", False),  # only hosts where some have left a mount
                ("worker", False),  # only hosts of a TPU
                ("shm", self.shm_hint),
                ("versions", self.venv is not None),
                ("path", self.paths),
                ("program", self.programs),
                ("workspaces", self.workspaces),
            )
            if not looks
        }
        left_out |= {STEPS[step] for step in CONNECTING if step not in self.steps}
        return [name for name in NAMES if name not in left_out]


class Checkup:
    """The questions of one check in order: properties of each host; listen; try the others; stop listening."""

    def __init__(self, placement: Placement, wanted: Wanted, key: str, is_dead: Callable[[Owner], bool]) -> None:
        """key: hexadecimal, random: proves hosts to each other while they try to reach each other

        is_dead: returns True if the owner of a lock is proven to be dead
        """
        self._placement, self._wanted, self._is_dead = placement, wanted, is_dead
        self._numbers = Numbers(placement)
        self._network = reaching.Network(placement, key, wanted.master_port, wanted.hints)

    def question(self) -> questions.Question[object]:
        """Return the first question."""
        wanted = self._wanted
        return questions.Check(
            project=wanted.project,
            env=wanted.env,
            venv=wanted.venv,
            devices=wanted.devices,
            lock=wanted.lock,
            paths=wanted.paths,
            programs=wanted.programs,
            workspaces=wanted.workspaces,
            worker=self._numbers.are_known,
        )

    def then(self, inquiry: Inquiry) -> Questions:
        """Return the next questions after the answers so far; {}: none."""
        return self._network.then(inquiry)

    def findings(self, inquiry: Inquiry) -> list[list[Finding]]:
        """Return the findings of each host, in their order."""
        facts = {
            node: answer
            for node, answer in inquiry.replies(Facts).items()
            if node not in inquiry.failures or inquiry.failures[node].step not in CONNECTING
        }
        found = {
            node: host(answer, inquiry.answers[node].clock, self._wanted, self._is_dead)
            for node, answer in facts.items()
        }
        names = [host.name for host in self._placement.hosts]
        numbers = self._numbers.judge({node: answer.worker for node, answer in facts.items()})
        for more in (
            numbers,
            comparing.versions(facts),
            comparing.paths(facts, names),
            self._network.findings(inquiry),
        ):
            for node, findings in more.items():
                found[node] += findings
        listed = []
        for node in range(len(names)):
            if node in found:
                listed.append(sorted(found[node], key=lambda one: NAMES.index(one.name)))
            else:
                listed.append(failed_host(inquiry.failures[node], self._wanted))
        return listed


def failed_host(failure: PrepareFailed, wanted: Wanted) -> list[Finding]:
    """Return the findings of a host that gave no answer: passed, failed, and unknown ones."""
    step = failure.step if failure.step in wanted.steps else "python"
    findings = [ok(STEPS[known]) for known in wanted.steps[: wanted.steps.index(step)]]
    findings.append(failed(STEPS[step], failure.message, failure.hint))
    return findings + [unknown(name) for name in wanted.names if name not in {one.name for one in findings}]


def merged(before: Sequence[Finding], own: Sequence[Finding]) -> list[Finding]:
    """Return all findings of a host in their order. Where both have one of a name, the graver one is taken.

    before: those that needed no host. Of two good ones, that with a result is taken.
    """
    found = list(own)
    for one in before:
        others = [other for other in found if other.name == one.name]
        if not others or _weight(one) > max(map(_weight, others)):
            found = [other for other in found if other.name != one.name] + [one]
    return sorted(found, key=lambda one: NAMES.index(one.name))


def _weight(finding: Finding) -> tuple[int, bool]:
    return GRAVITY.index(finding.verdict), bool(finding.told)


def host(facts: Facts, clock: float, wanted: Wanted, is_dead: Callable[[Owner], bool]) -> list[Finding]:
    """Return the findings of a host that answered, as far as they do not depend on the others.

    clock: seconds that the host's clock is ahead of ours
    """
    shown = {"login": facts.user, "python": facts.python}  # beside a step
    found = [
        *(ok(STEPS[step], shown.get(step, "")) for step in wanted.steps),
        _bash(facts),
        _home(facts),
        _disk(facts),
        _memory(facts),
        *([_shm(facts, wanted.shm_hint)] if wanted.shm_hint else ()),
        _clock(clock),
        _name(facts.name),
        _devices(facts.devices),
        _logout(facts.ends_with, facts.user),
    ]
    if facts.modules:
        found.append(ok("modules", "; ".join(facts.modules)))
    if wanted.lock:
        found += [_lock(facts.lock, is_dead), _users(facts, clock)]
    if facts.workspaces is not None:
        found.append(_workspaces(facts.workspaces))
    return found + [_program(name, told, wanted.program_hint) for name, told in facts.programs.items()]


def _bash(facts: Facts) -> Finding:
    if facts.bash:
        return ok("bash")
    return warning("bash", "not found", "install it: prerun, setup and commands given as one text are run by bash")


def _home(facts: Facts) -> Finding:
    if not facts.problem:
        return ok("home")
    told = f"cannot write below {facts.place}: {facts.problem}"
    return failed("home", told, "remote_dir: in cluster.yaml names another place for what mesh keeps on the host")


def _disk(facts: Facts) -> Finding:
    free, total = facts.disk_free, facts.disk_total
    told = f"{free / 1e9:.1f} GB free"
    hint = f"free some space below {facts.place}, or name another place by remote_dir: in cluster.yaml"
    if free < TOO_LITTLE_DISK:
        return failed("disk", told, hint)
    if 0 <= facts.inodes_free < LITTLE_INODES:
        return warning("disk", f"only {facts.inodes_free} more files can be made", hint)
    if free < LITTLE_DISK * total:
        return warning("disk", f"{told} ({100 * free / total:.0f} %)", hint)
    return ok("disk", told)


def _memory(facts: Facts) -> Finding:
    free, total = facts.memory_free, facts.memory_total
    told = f"{free / 1e9:.1f} GB free"
    if facts.memory_limit:
        told += f" of the limit, {facts.memory_limit / 1e9:.1f} GB"
    if free < LITTLE_MEMORY * total:
        told = f"{told} ({100 * free / total:.0f} %)"
        return warning(
            "memory", told, "`ps aux --sort -rss` there lists the processes; `mesh ps` lists runs of mesh that are left"
        )
    return ok("memory", told)


def _shm(facts: Facts, hint: str) -> Finding:
    told = f"{facts.shm_total / 1e6:.0f} MB" if facts.shm_total >= 0 else "/dev/shm is not there"
    if facts.shm_total < LITTLE_SHM_BYTES:
        return warning("shm", f"{told}: data loaders and NCCL share memory there, and crash if it is full", hint)
    return ok("shm", told)


def _clock(ahead: float) -> Finding:
    """Judge a clock; ahead: seconds that the host's clock is ahead of ours."""
    told = f"{round(ahead, 1) + 0.0:+.1f} s"  # + 0.0: no -0.0
    if abs(ahead) <= CLOCK_OFF_S:
        return ok("clock", told)
    hint = "set its clock (chrony, ntp): file times, certificates and tokens go by it"
    return warning("clock", f"{told} off ours", hint)


def _name(name: HostName) -> Finding:
    if not name.error:
        return ok("name")
    hint = "add its name and address to its /etc/hosts: gloo, MPI and others look themselves up by it"
    return warning("name", f"it cannot resolve its own name, {name.name}: {name.error}", hint)


def _lock(owner: Owner | None, is_dead: Callable[[Owner], bool]) -> Finding:
    if owner is None:
        return ok("lock")
    told = owner_line(owner)
    if is_dead(owner):
        return warning("lock", f"a run whose client is over: {told}", "the next run ends what is left of it")
    if owner.watch:
        return warning("lock", f"its workspace is being synced: {told}", "a run waits until that is done")
    stop = f"`mesh stop {owner.run}` ends it; " if owner.run else ""
    hint = f"{stop}`mesh run --wait` waits for it, `mesh run --share` runs beside it"
    return failed("lock", f"busy with {told}", hint)


def _users(facts: Facts, ahead: float) -> Finding:
    """List other Unix users with runs on the host. ahead: seconds that the host's clock is ahead of ours"""
    told = [other_line(other_run(other, ahead)) for other in facts.others]
    if told:
        hint = "mesh's lock counts for one Unix user alone: ask them, or `mesh run --exclusive` refuses such a host"
        return warning("users", f"also used by {', '.join(told)}", hint)
    if not facts.sees_others:
        hint = "mesh's lock counts for one Unix user alone, and runs leave notes for others in /run/lock or /tmp"
        return warning(
            "users", "the runs of other users cannot be seen: no directory there may be written by all", hint
        )
    return ok("users", "no run of another user; mesh's lock counts for one Unix user alone")


def _devices(held: Failure | Nothing) -> Finding:
    return failed("devices", held.error, held.hint) if isinstance(held, Failure) else ok("devices")


def _logout(what: str, user: str) -> Finding:
    """Judge the end of runs at logout; what: as the agent's logins.py has it."""
    if not what:
        return ok("logout")
    if what == "logins":
        hint = f"`loginctl enable-linger {user}` there lets it go on"
        return warning("logout", f"a detached run ends with the last login of {user}, who does not linger", hint)
    users = " ".join(dict.fromkeys(("root", user)))  # the default exclusions end as soon as any user is named
    hint = (
        f"have root write `[Login]` and `KillExcludeUsers={users}` to /etc/systemd/logind.conf.d/mesh.conf there,\n"
        "then `systemctl restart systemd-logind`"
    )
    told = (
        "systemd-logind ends what a login leaves behind (KillUserProcesses): a detached run ends as its client leaves"
    )
    return warning("logout", told, hint)


def _workspaces(found: Failure | WorkspaceSizes) -> Finding:
    if isinstance(found, Failure):
        return Finding(name="workspaces", verdict=Verdict.UNKNOWN, told=found.error)
    told = [f"{name} {told_bytes(size)}" for name, size in sorted(found.sizes.items(), key=lambda one: -one[1])]
    return ok("workspaces", ", ".join(told) or "none")


def _program(name: str, found: Failure | ProgramPlace, hint: str) -> Finding:
    if isinstance(found, ProgramPlace) and found.place:
        return ok("program", found.place)
    why = found.error if isinstance(found, Failure) else "not found on the PATH of the ranks"
    return failed("program", f"{name}: {why}", hint or "install it there, or have prerun put it on PATH")
