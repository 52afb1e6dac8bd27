"""Slurm's commands: what they are asked, and what their answers mean. The parts without a Login are pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from msgspec import Struct

from mesh.backends.slurm.login import NOT_FOUND_STATUS, Done, Login
from mesh.core.errors import MeshError
from mesh.core.text import last_line, one_line

# The comment is last, because it may hold the separator.
FIELDS = ("%i", "%T", "%r", "%S", "%e", "%N", "%B", "%k")
SEPARATOR = "|"
# Variables of a user by which squeue leaves jobs out: a job that is not listed counts as gone.
CHOOSING = ("ACCOUNT", "LICENSES", "NAMES", "PARTITION", "QOS", "STATES", "USERS")
SQUEUE = (
    "env",
    *(f"-uSQUEUE_{name}" for name in CHOOSING),
    "SLURM_TIME_FORMAT=%s",  # the login node may be in another time zone
    "squeue",
    "--noheader",
    "--all",  # jobs in hidden partitions too
)
MARK = "mesh"  # begins the comment of a job that has a switchboard
ENDED = f"{MARK} ended: "  # begins that of a job whose holder ends it
KILLED = "0:9"  # ExitCode of a job whose holder was killed
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
LIVING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING")
CONTROLLER_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")
# After these words of sbatch, Slurm may have the job all the same.
ANSWER_LOST = (
    "Zero Bytes",
    "send failure",
    "receive failure",
    "shutdown failure",
    "connection failure",
    "reset by peer",
)
NO_JOB = ("Invalid job id",)
ENDS = {
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "its time is up",
    "DEADLINE": "its deadline is over",
    "PREEMPTED": "it was preempted",
    "NODE_FAIL": "one of its nodes has failed",
    "BOOT_FAIL": "one of its nodes did not boot",
    "OUT_OF_MEMORY": "it was out of memory",
    "FAILED": "its holder has failed",
    "COMPLETED": "it has ended",
    "REVOKED": "another cluster has taken it",
}
ENDING_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "NodeFail": "NODE_FAIL", "DeadLine": "DEADLINE"}
REASONS = {
    "Priority": "jobs of a higher priority are first",
    "Resources": "it waits for nodes to be free",
    "BeginTime": "its time to begin has not come",
    "Dependency": "it waits for another job",
    "JobHeldUser": "its user holds it",
    "JobHeldAdmin": "an administrator holds it",
    "Reservation": "it waits for its reservation",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "Licenses": "it waits for licenses",
    "AssocGrpNodeLimit": "its account uses all nodes that it may have",
    "QOSMaxJobsPerUserLimit": "its user runs as many jobs as the QOS allows",
}
NEVER = ("BadConstraints", "PartitionNodeLimit", "PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed")
_FIELD = re.compile(r"(?:^|\s)(\w+)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", re.MULTILINE)


class NoSlurm(MeshError):
    """Slurm's commands are not there, or its controller does not answer."""


class Job(Struct, frozen=True, kw_only=True):
    """A job as squeue shows it."""

    job: str
    state: str  # as "PENDING" and "RUNNING"
    reason: str = ""  # of Slurm, why it waits
    start: float = 0.0  # Slurm's estimate, seconds since the epoch; 0: none
    end: float = 0.0  # seconds since the epoch; 0: unlimited, or it has not begun
    nodes: str = ""  # a host list
    batch_host: str = ""
    comment: str = ""

    @property
    def address(self) -> str:
        """Return HOST:PORT of its switchboard; "" while there is none.

        >>> Job(job="1", state="RUNNING", comment="mesh 10.0.0.1:4711 mine").address
        '10.0.0.1:4711'
        >>> Job(job="1", state="RUNNING", comment="mesh ended: its time is up").address
        ''
        """
        words = self.comment.split()
        is_address = len(words) > 1 and words[0] == MARK and words[1].rpartition(":")[2].isdecimal()
        return words[1] if is_address and ":" in words[1] else ""

    @property
    def is_ending(self) -> bool:
        """True once its holder has decided to end it."""
        return self.comment.startswith(ENDED)

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def is_next(self) -> bool:
        """True while it waits for the end of another job, as that of a run's next attempt does."""
        return self.is_waiting and self.reason == "Dependency"

    @property
    def is_living(self) -> bool:
        return self.state in LIVING


class Site(Struct, frozen=True, kw_only=True):
    """Settings of Slurm that mesh goes by."""

    kill_wait: float = 0.0  # seconds from its SIGTERM to its SIGKILL; 0: unknown
    accounts: bool = False  # it keeps accounts, which sacct shows


def ask(login: Login, argv: Sequence[str], data: bytes = b"") -> Done:
    """Run a command of Slurm. Raises NoSlurm, and MeshError if the login node is not reached."""
    done = login.run(argv, data)
    program = next(word for word in argv if word != "env" and "=" not in word and not word.startswith("-"))
    if done.status == NOT_FOUND_STATUS:
        where = f"on {login.name}" if not login.is_here else "here"
        hint = "gateway: in cluster.yaml names a login node" if login.is_here else f"ssh {login.name} which {program}"
        raise NoSlurm(f"there is no {program} {where}", hint=hint)
    if done.status and any(words in done.error for words in CONTROLLER_AWAY):
        raise NoSlurm(f"{program}: the controller of Slurm does not answer ({words_of(done)})", hint="scontrol ping")
    return done


def words_of(done: Done) -> str:
    """Return what a command has complained about, in one line, without the name of the command."""
    lines = [one_line(line) for line in done.error.splitlines() if line.strip()]
    plain = [re.sub(r"^\w+: (error: )?", "", line) for line in lines]
    return "; ".join(dict.fromkeys(plain)) or last_line(done.out.encode()) or f"exit {done.status}"


def jobs(login: Login, *, name: str = "", job: str = "", is_mine: bool = False) -> list[Job]:
    """Return this user's jobs of a name, or one job; the newest last. Raises MeshError.

    is_mine: a job of another user is left out
    """
    chosen = [f"--jobs={job}"] if job else [f"--name={name}"]
    chosen += ["--me"] if name or is_mine else []
    done = ask(login, [*SQUEUE, *chosen, f"--format={SEPARATOR.join(FIELDS)}"])
    if done.status:
        if any(words in done.error for words in NO_JOB):
            return []
        raise MeshError(f"squeue: {words_of(done)}")
    return parsed(done.out)


def submitted(text: str) -> str:
    """Return the number of the job in the output of `sbatch --parsable`; "" for none. Sites print lines before it.

    >>> submitted("Welcome!\\n--> valid account (A12)\\n4711;cluster1\\n"), submitted("Welcome!\\n")
    ('4711', '')
    """
    numbers = [line.partition(";")[0].strip() for line in text.splitlines()]
    return next((one for one in reversed(numbers) if one.isascii() and one.isdecimal()), "")


def parsed(text: str) -> list[Job]:
    """Return the jobs in the output of squeue.

    >>> parsed("7|RUNNING|None|N/A|Unknown|h[1-2]|h1|mesh h1:5 a|b").pop().comment
    'mesh h1:5 a|b'
    """
    found = []
    for line in text.splitlines():
        fields = line.split(SEPARATOR, len(FIELDS) - 1)
        if len(fields) == len(FIELDS):
            job, state, reason, start, end, nodes, batch_host, comment = (one.strip() for one in fields)
            found.append(
                Job(
                    job=job,
                    state=state,
                    reason="" if reason == "None" else reason,
                    start=seconds_of(start),
                    end=seconds_of(end),
                    nodes=nodes,
                    batch_host=batch_host,
                    comment="" if comment == "(null)" else comment,
                )
            )
    return sorted(found, key=lambda one: [int(part) for part in re.findall("[0-9]+", one.job)])


def seconds_of(text: str) -> float:
    """Return a time of Slurm, in seconds since the epoch; 0 for none.

    >>> seconds_of("N/A"), seconds_of("1795663377")
    (0.0, 1795663377.0)
    """
    return float(text) if text.isdecimal() and len(text) < 12 else 0.0


def limit_of(text: str) -> float:
    """Return a time limit of sbatch in seconds; 0 for none.

    >>> limit_of("30"), limit_of("2:30"), limit_of("1:00:00"), limit_of("1-12"), limit_of("2-0:30")
    (1800.0, 150.0, 3600.0, 129600.0, 174600.0)
    >>> limit_of("UNLIMITED")
    0.0
    """
    if not re.fullmatch("[0-9:-]+", text):
        return 0.0
    days, dash, clock = text.rpartition("-")
    numbers = [float(one) for one in clock.split(":")]
    if dash:
        hours, minutes, seconds = (*numbers, 0.0, 0.0)[:3]
    elif len(numbers) == 1:
        hours, minutes, seconds = 0.0, numbers[0], 0.0
    else:
        hours, minutes, seconds = (0.0, *numbers)[-3:]
    return 86400.0 * float(days or 0) + 3600.0 * hours + 60.0 * minutes + seconds


def partitions_of(text: str) -> list[str]:
    """Return the partitions that sinfo lists, a line each with its name and state, for people.

    >>> partitions_of("main* up\\nclosed down\\n")
    ['main (default)', 'closed (down)']
    """
    found = []
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 2:
            name, state = words
            notes = ["default"] * name.endswith("*") + [state] * (state != "up")
            found.append(name.rstrip("*") + f" ({', '.join(notes)})" * bool(notes))
    return found


def about(login: Login, what: str, name: str) -> dict[str, str]:
    """Return the fields that scontrol shows of a job or node; {} if there is none. Raises MeshError."""
    done = ask(login, ["scontrol", "show", what, name])
    return {} if done.status else fields_of(done.out)


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of `scontrol show`, of which a value may hold spaces.

    >>> fields_of("JobId=7 JobName=x\\n   JobState=RUNNING Reason=None\\n   Comment=mesh a:1 b\\n")["Comment"]
    'mesh a:1 b'
    """
    return {key: value.strip() for key, value in _FIELD.findall(text)}


def settings(login: Login) -> dict[str, str]:
    """Return Slurm's configuration by names. Raises MeshError."""
    done = ask(login, ["scontrol", "show", "config"])
    if done.status:
        raise MeshError(f"scontrol show config: {words_of(done)}", hint="scontrol ping")
    pairs = (line.split("=", 1) for line in done.out.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def site_of(login: Login) -> Site:
    """Return the settings that mesh goes by. Raises MeshError."""
    found = settings(login)
    kill_wait = found.get("KillWait", "").partition(" ")[0]
    storage = found.get("AccountingStorageType", "").rpartition("/")[2]
    accounts = storage not in ("", "none", "(null)")
    return Site(kill_wait=float(kill_wait) if kill_wait.isdecimal() else 0.0, accounts=accounts)


def waits_for(job: Job) -> str:
    """Return why a job waits, in words, with Slurm's own word and estimate.

    >>> waits_for(Job(job="1", state="PENDING", reason="Resources"))
    'it waits for nodes to be free (Resources)'
    """
    word = job.reason.partition(",")[0]
    told = f"{REASONS[word]} ({job.reason})" if word in REASONS else job.reason or job.state.lower()
    expected = time.strftime("%b %d %H:%M", time.localtime(job.start))
    return told + f"; Slurm expects it to begin at {expected}" * bool(job.start)


def end_of(fields: dict[str, str]) -> str:
    """Return why a job has ended, by its fields; "" while it goes on.

    >>> end_of({"JobState": "TIMEOUT"}), end_of({"JobState": "COMPLETING"}), end_of({"JobState": "RUNNING"})
    ('its time is up', 'it is being ended, and Slurm gives no reason yet', '')
    >>> end_of({"JobState": "COMPLETING", "Comment": "mesh ended: its step has ended (exit 1)"})
    'its step has ended (exit 1)'
    """
    state = fields.get("JobState", "")
    if state in LIVING or state in WAITING:
        return ""
    comment = fields.get("Comment", "")
    if state in ("COMPLETING", "COMPLETED") and comment.startswith(ENDED):
        return comment.removeprefix(ENDED)
    if state == "COMPLETING" and fields.get("ExitCode") == KILLED:
        return ENDS["FAILED"]
    if state == "COMPLETING":  # Slurm is ending its processes
        return _ending_of(fields)
    return ENDS.get(state, f"it is {state.lower()}" if state else "")


def _ending_of(fields: dict[str, str]) -> str:
    """Return why Slurm is ending a job, whose final state it does not show yet.

    >>> _ending_of({"Reason": "NodeDown"}), _ending_of({"Reason": "None", "Comment": "mesh h1:4711"})
    ('one of its nodes has failed', 'it was cancelled')
    """
    reason = fields.get("Reason", "")
    if reason in ENDING_REASONS:
        return ENDS[ENDING_REASONS[reason]]
    if reason not in ("", "None"):
        return ENDS.get(reason.upper(), f"Slurm ends it ({reason})")
    if fields.get("PreemptTime", "None") not in ("", "None"):
        return ENDS["PREEMPTED"]
    if fields.get("Comment", "").startswith(MARK):  # a holder that ends by itself writes why
        return ENDS["CANCELLED"]
    return "it is being ended, and Slurm gives no reason yet"


def nodes_of(login: Login, text: str) -> tuple[str, ...]:
    """Return the names in a host list, in its order. Raises MeshError."""
    if not re.search(r"[\[\],]", text):
        return (text,) if text else ()
    done = ask(login, ["scontrol", "show", "hostnames", text])
    if done.status:
        raise MeshError(f"scontrol show hostnames: {words_of(done)}")
    return tuple(done.out.split())
