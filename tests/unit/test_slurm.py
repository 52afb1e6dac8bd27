"""The pure parts of allocations: what Slurm's answers mean, the batch script, and when a holder ends its allocation."""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mesh import api
from mesh.agent.switchboard.endtime import EndTime
from mesh.agent.switchboard.hold import FIRST_CLIENT_S, Ending, Hold, port_range
from mesh.backends.slurm import commands
from mesh.backends.slurm.accounting import account_line, accounted
from mesh.backends.slurm.commands import end_of, fields_of, parsed, waits_for, words_of
from mesh.backends.slurm.login import SHELL, Done, LocalLogin, done_of
from mesh.backends.slurm.records import AllocationRecord, AllocationRecords
from mesh.backends.switchboard.program import pack
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.settings import Options
from mesh.config.slurm import Allocation, MadeAllocation, Warn
from mesh.core.cluster import AllocationPlace, Cluster, Host, allocation_mark, place_ranks
from mesh.core.credentials import make_credentials
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Ended, Event, Exited, PrepareFailed
from mesh.core.findings import Verdict
from mesh.engine.announced import with_reasons
from mesh.engine.slurmenv import slurm_environment
from mesh.hosts.interfaces import Purpose, Wish
from mesh.hosts.slurm import making, render
from mesh.hosts.slurm.dialling import found as connected_nodes
from mesh.hosts.slurm.holder import HIDDEN, as_bytes, remove_own, sized
from mesh.hosts.slurm.jobhosts import AllocationMaker
from mesh.hosts.slurm.made import MadeAllocationSource, key_days
from mesh.hosts.slurm.making import Made, Maker, NotOurs
from mesh.hosts.slurm.there import AllocationSource
from mesh.remote.blob import start_command
from tests.lab import eventually

SOURCE = MadeAllocation(
    request={
        "nodes": "4",
        "partition": "gpu",
        "gres": "gpu:8",
        "constraint": "a|b c",
        "comment": "mine",
        "cpus_per_task": "2",
    },
    exclusive=True,
    extra=("--switches=1",),
    hold=30.0,
)


def test_the_words_for_sbatch_and_srun_are_long_and_whole() -> None:
    words = render.submit_words(SOURCE, "my pod")
    assert words[:2] == ["sbatch", "--parsable"]
    assert {
        f"--job-name={render.job_name('my pod')}",
        "--constraint=a|b c",
        "--exclusive",
        "--switches=1",
        "--no-requeue",
        "--cpus-per-task=2",
    } <= set(words)
    assert not [word for word in words[1:] if not word.startswith("--")]
    assert not [word for word in words if "mine" in word]  # the holder writes the comment
    step = render.step_words(4, SOURCE.request)
    assert {"--overlap", "--nodes=4", "--gres=gpu:8", "--kill-on-bad-exit=0"} <= set(step)
    assert not [one for one in step if "cpus" in one]  # else it would not have all CPUs of the job
    listed = render.step_words(0, {"nodelist": "n[1-3]"})
    assert not [one for one in listed if one.startswith(("--nodes", "--ntasks="))]
    assert sized(listed, "3")[-2:] == ["--nodes=3", "--ntasks=3"]


def test_a_client_reads_the_key_back_from_the_batch_script() -> None:
    given = render.values(SOURCE, "KEY", b"zip", "python3", ["--overlap"], digest="abc", until=5.0)
    script = render.script_of(given, "/opt/my python")
    assert render.read_script(script) == render.Written(key="KEY", digest="abc", hold=30.0, until=5.0)
    assert render.read_script("#!/bin/sh\nsrun hostname\n") is None
    second = shlex.split(script.splitlines()[1])
    assert second[:2] == ["exec", "/opt/my python"]
    assert "KEY" not in script.splitlines()[1]


def test_the_batch_script_is_a_program_for_the_shell_and_for_python(tmp_path: Path) -> None:
    given = render.values(SOURCE, "KEY", b"zip", sys.executable, [])
    before, _, call = render.script_of(given, sys.executable).rpartition("\nmain(")
    script = tmp_path / "script"
    script.write_text(f"{before}\nprint(({call.strip().removesuffix(')')}).hold)\n")
    done = subprocess.run(["sh", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"30.0\n"), done.stderr


def test_an_interpreter_below_the_home_directory_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "my python").symlink_to(sys.executable)
    given = render.values(SOURCE, "KEY", b"zip", "~/my python", [])
    before, _, call = render.script_of(given, "~/my python").rpartition("\nmain(")
    script = tmp_path / "script"
    script.write_text(f"{before}\nprint(({call.strip().removesuffix(')')}).python[-1])\n")
    done = subprocess.run(["sh", script], capture_output=True, check=False, env={"HOME": str(tmp_path), "PATH": "/bin"})
    assert (done.returncode, done.stdout) == (0, b"my python\n"), done.stderr


def test_another_request_has_another_digest() -> None:
    digest = render.digest_of(SOURCE, "python3")
    other = MadeAllocation(request={**SOURCE.request, "nodes": "5"}, exclusive=True, extra=SOURCE.extra, hold=30.0)
    warned = MadeAllocation(
        request=SOURCE.request, exclusive=True, extra=SOURCE.extra, hold=30.0, warn=Warn(signal=10, before=60.0)
    )
    assert len({digest, *(render.digest_of(one, "python3") for one in (other, warned))}) == 3
    assert render.digest_of(SOURCE, "python3") == digest


def test_a_directory_of_nodes_is_known_to_all_who_have_the_key_and_to_nobody_else() -> None:
    source = MadeAllocation(request={"nodes": "4"}, local=True)
    given = render.values(source, "KEY", b"zip", "python3", [])
    assert given["local"] == render.local_directory("KEY")
    assert given["local"] != render.local_directory("OTHER KEY")
    assert render.digest_of(source, "python3") != render.digest_of(MadeAllocation(request={"nodes": "4"}), "python3")


def test_the_switchboard_listens_at_a_port_that_the_site_opens() -> None:
    config = "SrunEpilog              = (null)\nSrunPortRange           = 60001-63000\nTaskPlugin = task/none\n"
    assert port_range(config) == (60001, 63000)
    assert port_range(config.replace("60001-63000", "0-0")) == (0, 0)
    assert port_range("SrunProlog              = (null)\n") == (0, 0)


def test_a_key_is_valid_for_longer_than_its_allocation() -> None:
    assert key_days(commands.limit_of("90-0")) > 90
    assert key_days(commands.limit_of("UNLIMITED")) > 3000
    assert key_days(commands.limit_of("30")) < 40


ACCOUNT = """\
12|70|||billing=4,cpu=4,mem=16G,node=4
12.batch|70|10264K|0|cpu=1,mem=4G,node=1
12.extern|70|100K|0|billing=4,cpu=4,mem=16G,node=4
12.0|69|204800K|1532|cpu=4,mem=16G,node=4
"""


def test_an_account_of_slurm_is_read_where_there_is_one() -> None:
    found = accounted("12", ACCOUNT)
    assert found == {
        "job": "12",
        "elapsed": 70,
        "max_rss": 204800 * 1024,
        "energy_joules": 1532,
        "tres": "billing=4,cpu=4,mem=16G,node=4",
    }
    assert account_line(found).startswith("job 12 of Slurm so far: 70 s, billing=4,cpu=4,mem=16G,node=4, most memory")
    assert (accounted("13", ACCOUNT), accounted("12", ""), account_line({})) == ({}, {}, "")
    assert accounted("12", "12|0|||\n") == {"job": "12", "elapsed": 0}


class Answering:
    """A login node whose commands all print the same."""

    name, is_here = "login", True

    def __init__(self, out: str) -> None:
        self.out = out

    def run(self, argv: Sequence[str], data: bytes = b"", timeout: float = 0.0) -> Done:
        return Done(status=0, out=self.out, error="")

    def dial(self, host: str, port: int) -> socket.socket:
        raise OSError("no way")

    def terminal(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def close(self) -> None: ...


def test_a_site_without_accounts_is_not_asked_for_them() -> None:
    config = "KillWait                = 30 sec\nAccountingStorageType   = accounting_storage/{}\n"
    assert commands.site_of(Answering(config.format("slurmdbd"))) == commands.Site(kill_wait=30.0, accounts=True)
    assert not commands.site_of(Answering(config.format("none"))).accounts
    assert commands.site_of(Answering("")) == commands.Site()


def test_a_command_of_the_login_node_gets_its_words_and_its_input_unchanged() -> None:
    line = shlex.join(["sh", "-c", 'printf "[%s]" "$@"; cat', "sh", "a b", "it's", "$HOME", "*"])
    done = subprocess.run(SHELL, input=f"{line}\nrest\n".encode(), capture_output=True, check=True)
    found = done_of("sh", done.returncode, b"Welcome!\n" + done.stdout, b"no module\n" + done.stderr)
    assert found == Done(status=0, out="[a b][it's][$HOME][*]rest\n", error="")


def test_a_login_shell_that_ends_before_the_command_has_its_last_words() -> None:
    with pytest.raises(MeshError, match="squeue: the login shell ended before it: closed today"):
        done_of("squeue", 3, b"hello\nclosed today\n", b"")


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(commands.NoSlurm, match="there is no no-such-command here"):
        commands.ask(LocalLogin(), ["no-such-command"])


def test_answers_of_squeue() -> None:
    text = (
        "12|PENDING|Priority|1795663377|N/A|||(null)\n7|RUNNING|None|1795663377|1795669999|h[1-2]|h1|mesh h1:4711 a|b\n"
    )
    seven, twelve = parsed(text)
    assert (seven.job, seven.is_living, seven.address, seven.end) == ("7", True, "h1:4711", 1795669999.0)
    assert (twelve.is_waiting, twelve.address) == (True, "")
    assert waits_for(twelve).startswith("jobs of a higher priority are first (Priority); Slurm expects it to begin at ")


def test_a_job_that_its_holder_ends_has_no_switchboard() -> None:
    (job,) = parsed("7|RUNNING|None|1795663377|N/A|h1|h1|mesh ended: nobody has used it for 5 s\n")
    assert (job.is_ending, job.address) == (True, "")


def test_a_holder_that_was_killed_is_the_end_of_its_job() -> None:
    fields = fields_of("JobId=7 JobName=x\n   JobState=COMPLETING Reason=None\n   ExitCode=0:9 DerivedExitCode=0:0\n")
    assert end_of(fields) == "its holder has failed"


def test_variables_of_a_user_leave_no_job_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "7|RUNNING|None|N/A|Unknown|h1|h1|$SQUEUE_PARTITION$SQUEUE_STATES $* $SLURM_TIME_FORMAT"
    (tmp_path / "squeue").write_text(f'#!/bin/sh\necho "{shown}"\n')
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    (job,) = commands.jobs(LocalLogin(), name="mesh-big")
    assert job.comment.startswith("--noheader --all --name=mesh-big --me ")
    assert job.comment.endswith(" %s")


def test_the_words_of_a_failed_command() -> None:
    error = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid y\n"
    done = Done(status=1, out="", error=error)
    assert words_of(done) == "invalid partition specified: x; Batch job submission failed: Invalid y"
    assert words_of(Done(status=3, out="", error="")) == "exit 3"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("RUNNING", "None", ""),
        ("PENDING", "Priority", ""),
        ("CANCELLED", "None", "it was cancelled"),
        ("COMPLETING", "None", "it was cancelled"),
        ("COMPLETING", "TimeLimit", "its time is up"),
        ("COMPLETING", "NodeDown", "one of its nodes has failed"),
        ("COMPLETING", "Anything", "Slurm ends it (Anything)"),
        ("TIMEOUT", "TimeLimit", "its time is up"),
        ("NODE_FAIL", "None", "one of its nodes has failed"),
    ],
)
def test_the_end_of_a_job(state: str, reason: str, words: str) -> None:
    text = f"JobId=7 JobName=mesh-big\n   JobState={state} Reason={reason} Dependency=(null)\n   Comment=mesh a:1 x\n"
    assert end_of(fields_of(text)) == words


def test_an_allocation_waits_for_its_first_client_and_then_for_as_long_as_it_is_held() -> None:
    hold = Hold(0.0, 30.0, 0.0)
    assert not hold.is_over(0.0, FIRST_CLIENT_S - 1, 0.0)
    assert hold.is_over(0.0, FIRST_CLIENT_S, 0.0)
    assert not hold.is_over(None, 100.0, 0.0)  # a client is there
    assert not hold.is_over(110.0, 139.0, 0.0)
    assert hold.is_over(110.0, 140.0, 0.0)


def test_an_allocation_that_is_kept_up_does_not_end_before() -> None:
    hold = Hold(0.0, 30.0, 5000.0)
    assert not hold.is_over(0.0, 1000.0, 4999.0)
    assert hold.is_over(0.0, 1001.0, 5000.0)


def test_nodes_by_ssh_leave_a_client_the_time_to_log_in() -> None:
    hold = Hold(0.0, 0.0, 0.0, is_by_ssh=True)
    assert not hold.is_over(1.0, 20.0, 0.0)
    assert hold.is_over(1.0, 21.0, 0.0)


def test_a_watch_whose_holder_is_gone_ends_as_with_the_allocation() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    program = "from mesh.agent.switchboard.watch import Watch; Watch('h1', '7').run(); print('ended', file=sys.stderr)"
    try:
        watch = subprocess.Popen(
            [sys.executable, "-c", f"import sys; {program}"],
            stdin=subprocess.PIPE,
            stdout=writes,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
    finally:
        os.close(writes)
    assert watch.stdin is not None
    with watch, watch.stdin:  # the holder has sent no end
        assert watch.stderr is not None
        assert watch.stderr.read() == b"ended\n"


def test_notices_come_ten_minutes_and_one_minute_before_the_end() -> None:
    ending = Ending(warn_before=30.0)
    assert ending.due(1000.0, 399.0) is None
    assert ending.next_in(1000.0, 399.0) == 1.0
    assert ending.due(1000.0, 400.0) == "the allocation ends in 10 min"
    assert ending.due(1000.0, 401.0) is None
    assert ending.due(1000.0, 940.5) == "the allocation ends in 60 s"
    assert (ending.warns(1000.0, 969.0), ending.next_in(1000.0, 969.5)) == (False, 0.5)
    assert (ending.warns(1000.0, 970.0), ending.warns(1000.0, 971.0)) == (True, False)
    assert Ending().due(0.0, 5.0) is None


def history(*events: Event, why: str = "", is_near: bool = False) -> Sequence[Event]:
    def ending(*, is_clear: bool) -> str:
        return why if is_clear or is_near else ""

    return list(with_reasons(events, ending))


def test_the_reason_of_a_scheduler_comes_before_the_ranks_that_it_ends() -> None:
    first, second = (Exited(time=2.0, node=0, rank=rank, signal=15) for rank in (0, 1))
    reason = PrepareFailed(time=2.0, node=0, step="agent", message="it was cancelled")
    assert history(first, second, why="it was cancelled") == [reason, first, second]
    assert history(first, second) == [first, second]
    early = Ended(time=1.0, node=0, rank=0, code=143)
    assert history(early, first, why="x")[0] == PrepareFailed(time=1.0, node=0, step="agent", message="x")


def test_an_agent_that_a_scheduler_ends_has_its_reason() -> None:
    agent = PrepareFailed(time=1.0, node=0, step="agent", message="the agent received SIGTERM", killed_by="signal 15")
    assert history(agent, why="x") == [PrepareFailed(time=1.0, node=0, step="agent", message="x")]
    assert history(agent) == [agent]
    other = Exited(time=1.0, node=0, rank=0, code=1)
    assert history(other, why="x") == [other]
    well = Exited(time=1.0, node=0, rank=0)  # its handler has finished
    assert history(well, why="x", is_near=True)[0] == PrepareFailed(time=1.0, node=0, step="agent", message="x")


def test_slurms_variables_are_complete_and_fit_the_ranks() -> None:
    hosts = tuple(Host(name=name, address=name) for name in ("n1", "n2"))
    found = slurm_environment(place_ranks(hosts, (2, 1)), 2)
    wanted = {
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "3",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NODELIST": "n1,n2",
        "SLURM_TASKS_PER_NODE": "2,1",
    }
    assert wanted.items() <= found.items()


# Slurm's commands as scripts: a job is a file with its batch script, and its state and comment are files beside it.
COMMANDS = {
    "sbatch": "[ ! -e refuses ] || { echo refused >&2; exit 1; }; cat > 8.sh; echo RUNNING > 8; "
    'echo "" > 8.comment; [ ! -e slow ] || mv slow late; [ ! -e mute ] || kill -9 $$; echo "Welcome!"; echo 8',
    "squeue": '[ ! -e troubled ] || { rm troubled; echo "Socket timed out" >&2; exit 1; }; '
    "[ ! -e late ] || { rm late; exit 0; }; for one in [0-9]; do "
    '[ ! -e $one ] || echo "$one|$(cat $one)|None|N/A|N/A|n1|n1|$(cat $one.comment)"; done; '
    "if [ -e finished ]; then rm -f 7 finished; fi",
    "scancel": "rm $1; echo $1 >> cancelled",
    "scontrol": 'case "$1 $2" in "write batch_script") cat $3.sh;; "show config") echo "KillWait = 30 sec";; '
    '"show job") echo "JobId=$3 JobState=COMPLETED Comment=$(cat $3.comment)";; *) exit 1;; esac',
}


class PlayedSlurm:
    """Commands of Slurm in a directory that begins PATH."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.place = directory
        (directory / "bin").mkdir()
        for name, text in COMMANDS.items():
            (directory / "bin" / name).write_text(f"#!/bin/sh\ncd {directory}\n{text}\n")
            (directory / "bin" / name).chmod(0o755)
        patch.setenv("PATH", f"{directory}/bin:{os.environ['PATH']}")
        self.records = AllocationRecords({"XDG_STATE_HOME": str(directory / "state")})
        self.limit(5.0)

    def limit(self, seconds: float) -> None:
        """Be another command, which waits for so long."""
        source = MadeAllocation(request={"nodes": "1"}, start_timeout=seconds)
        made = Made(cluster="big", source=source, python="python3", login="")
        self.maker = Maker(LocalLogin(), made, self.records, None, lambda: "KEY", lambda: b"zip")

    def add(self, job: str, script: str, state: str = "RUNNING", comment: str = "") -> None:
        for suffix, text in (("", state), (".sh", script), (".comment", comment)):
            (self.place / f"{job}{suffix}").write_text(f"{text}\n")

    def script(self) -> str:
        source = self.maker.made.source
        given = render.values(source, "OLD", b"zip", "python3", [], digest=self.maker.made.digest)
        return render.script_of(given, "python3")

    @property
    def cancelled(self) -> list[str]:
        place = self.place / "cancelled"
        return place.read_text().split() if place.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedSlurm:
    return PlayedSlurm(tmp_path, monkeypatch)


def test_a_job_whose_submission_was_not_answered_is_cancelled_and_no_other_one(slurm: PlayedSlurm) -> None:
    (slurm.place / "mute").touch()
    slurm.add("7", "#!/bin/sh\n", state="COMPLETING")
    with pytest.raises(MeshError, match="sbatch"):
        slurm.maker.ensure()
    assert slurm.cancelled == ["8"]


def test_a_job_that_slurm_lists_a_moment_later_is_cancelled(
    slurm: PlayedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "UNANSWERED_PAUSES_S", (0.0, 0.0))
    for name in ("mute", "slow"):
        (slurm.place / name).touch()
    with pytest.raises(MeshError, match="sbatch"):
        slurm.maker.ensure()
    assert slurm.cancelled == ["8"]


def test_a_job_that_was_asked_for_with_other_values_is_refused_and_stays(slurm: PlayedSlurm) -> None:
    slurm.add("7", slurm.script().replace(slurm.maker.made.digest, "0" * 16), comment="mesh n1:5")
    with pytest.raises(NotOurs, match="job 7 was asked for with other values") as refused:
        slurm.maker.ensure()
    assert (refused.value.exit_code, refused.value.hint, slurm.cancelled) == (75, "mesh down big", [])


def test_a_job_that_cannot_be_recorded_is_cancelled(slurm: PlayedSlurm) -> None:
    state = slurm.place / "state/mesh/allocations"
    (state / "here-8.json").mkdir(parents=True)
    with pytest.raises(MeshError, match="cannot write"):
        slurm.maker.ensure()
    assert slurm.cancelled == ["8"]


def test_a_refused_submission_cancels_nothing(slurm: PlayedSlurm) -> None:
    (slurm.place / "refuses").touch()
    slurm.add("7", slurm.script(), state="COMPLETING")
    with pytest.raises(MeshError, match="sbatch: refused"):
        slurm.maker.ensure()
    assert slurm.cancelled == []


def test_a_job_of_another_maker_is_refused_before_it_is_cancelled(slurm: PlayedSlurm) -> None:
    slurm.add("7", "#!/bin/sh\nsleep 100\n")
    job = slurm.maker.job()
    assert job is not None
    with pytest.raises(NotOurs, match="job 7 is not one of mesh"):
        slurm.maker.check_ours(job)
    slurm.add("7", slurm.script())
    slurm.maker.check_ours(job)


def test_a_wait_lasts_while_slurm_does_not_answer(slurm: PlayedSlurm) -> None:
    slurm.add("7", slurm.script(), comment="mesh n1:5")
    (slurm.place / "troubled").touch()
    waiting = commands.Job(job="7", state="RUNNING")
    assert slurm.maker._wait(waiting).address == "n1:5"


def test_a_job_of_another_user_that_ends_was_not_cancelled_for_certain() -> None:
    assert end_of(fields_of("JobId=7\n   JobState=COMPLETING Reason=None\n")).startswith("it is being ended")
    preempted = "JobId=7\n   JobState=COMPLETING Reason=None PreemptTime=2026-11-26T07:00:00\n   Comment=mesh a:1\n"
    assert end_of(fields_of(preempted)) == "it was preempted"


def test_clusters_whose_names_differ_in_one_character_have_different_jobs() -> None:
    assert len({render.job_name(name) for name in ("my pod", "my-pod", "my/pod")}) == 3
    assert render.job_name("my-pod") == "mesh-my-pod"


def test_a_job_that_another_command_waits_for_is_left_to_that_one(slurm: PlayedSlurm) -> None:
    sbatch = slurm.place / "bin/sbatch"
    sbatch.write_text(sbatch.read_text().replace("RUNNING", "PENDING"))
    slurm.limit(0.0)
    with slurm.records.waiting("here-8"), pytest.raises(MeshError, match="has not begun after 0 s"):
        slurm.maker.ensure()
    assert (slurm.cancelled, slurm.records.is_handed_on("here-8")) == ([], True)
    slurm.limit(0.0)
    with pytest.raises(MeshError, match="has not begun after 0 s"):
        slurm.maker.ensure()
    assert slurm.cancelled == ["8"]


def test_a_job_whose_maker_still_waits_is_not_cancelled_by_others(slurm: PlayedSlurm) -> None:
    slurm.add("7", slurm.script(), state="PENDING")
    slurm.limit(0.0)
    with pytest.raises(MeshError, match="has not begun after 0 s"):
        slurm.maker.ensure()
    assert slurm.cancelled == []


def test_the_record_of_an_ended_allocation_goes_with_the_next_command(slurm: PlayedSlurm) -> None:
    slurm.add("7", slurm.script(), comment="mesh n1:5")
    for job in ("6", "7"):
        slurm.records.write(AllocationRecord(name=f"here-{job}", job=job, cluster="big", login="", key="K"))
    slurm.records.write(AllocationRecord(name="here-5", job="5", cluster="other", login="", key="K"))
    job = slurm.maker.job()
    assert job is not None
    assert sorted(one.job for one in slurm.records.read()) == ["5", "7"]


def test_the_nodes_that_do_not_reach_the_switchboard_are_named() -> None:
    record = AllocationRecord(
        name="x", job="7", cluster="big", login="", key="K", nodes=("n1", "n2"), address="10.0.0.1:61001"
    )
    assert connected_nodes(record, []).told == "2 of 2 nodes have connected to 10.0.0.1:61001"
    warned = connected_nodes(record, ["n2"])
    assert (warned.verdict, "n2 cannot connect" in warned.told) == (Verdict.WARNING, True)
    assert "srun --jobid=7 --overlap -w n2 bash -c 'exec 3<>/dev/tcp/10.0.0.1/61001'" in warned.hint


def test_an_allocation_that_ends_unused_meanwhile_is_asked_for_again(slurm: PlayedSlurm) -> None:
    slurm.add("7", slurm.script(), comment="mesh ended: nobody has used it for 5 s")
    (slurm.place / "finished").touch()
    sbatch = slurm.place / "bin/sbatch"
    sbatch.write_text(sbatch.read_text().replace('echo "" > 8', "echo mesh n1:5 > 8"))
    job, record = slurm.maker.ensure()
    assert (job.job, record.key, record.address, slurm.cancelled) == ("8", "KEY", "n1:5", [])


def test_a_comment_reaches_the_holder_whole() -> None:
    source = MadeAllocation(request={"nodes": "1", "comment": "r\u00e4nks \U0001f680"})
    given = render.values(source, "KEY", b"zip", "python3", [])
    call = render.text_of(given).rpartition("main(Given(**")[2].strip().removesuffix("))")
    assert as_bytes(eval(call)["comment"]).decode() == "r\u00e4nks \U0001f680"


def test_a_holder_removes_its_own_file_and_no_other_one(tmp_path: Path) -> None:
    place = tmp_path / "7.json"
    remove_own(str(place), "mine")
    place.write_text("theirs")
    remove_own(str(place), "mine")
    assert place.exists()
    remove_own(str(place), "theirs")
    assert not place.exists()


def test_an_allocation_that_ends_while_a_client_looks_for_it_is_asked_for_again(
    slurm: PlayedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(slurm.place / "state"))
    file = slurm.place / "cluster.yaml"
    file.write_text("big: {slurm: {nodes: 1, hold: 5s}}\n")
    cluster = find_cluster("big", load_clusters(file, required=True))
    assert isinstance(cluster.source, MadeAllocation)
    digest = render.digest_of(cluster.source, cluster.python)
    with socket.socket() as closed:  # bound, and nobody listens: the switchboard has just ended
        closed.bind(("127.0.0.1", 0))
        given = render.values(cluster.source, make_credentials(), b"zip", "python3", [], digest=digest)
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        slurm.add("7", render.script_of(given, "python3"), comment=f"mesh {address}")
        (slurm.place / "finished").touch()
        sbatch = slurm.place / "bin/sbatch"
        sbatch.write_text(sbatch.read_text().replace('echo "" > 8', "echo mesh n1:5 > 8"))
        found = MadeAllocationSource().find(cluster, Purpose.RUN)
    assert (found.allocation.job, [host.name for host in found.hosts]) == ("8", ["n1"])


# The output of squeue without --me and of scontrol, and the words of the message.
ABSENT = {
    "ended": ("", "JobState=TIMEOUT", "job 9 has ended: its time is up"),
    "unknown": ("", "", "job 9 is unknown"),
    "another's": ("9|RUNNING|None|N/A|N/A|n1|n1|", "", "job 9 is another user's"),
    "waiting": ("9|PENDING|Priority|N/A|N/A|||", "", "job 9 waits: jobs of a higher priority are first (Priority)"),
}


@pytest.mark.parametrize("name", ABSENT)
def test_an_allocation_that_cannot_be_used_is_named_with_the_reason(slurm: PlayedSlurm, name: str) -> None:
    listed, shown, words = ABSENT[name]
    squeue = f'case "$*" in *--me*) ;; *) echo "{listed}";; esac'
    for program, text in (("squeue", squeue), ("scontrol", f"echo {shown}")):
        (slurm.place / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
    cluster = find_cluster("slurm:9", load_clusters(slurm.place / "none", required=False))
    with pytest.raises(MeshError) as refused:
        AllocationSource().find(cluster, Purpose.RUN)
    assert f"slurm:9: {words}" in str(refused.value)


def test_another_step_keeps_an_allocation_that_nobody_of_mesh_uses() -> None:
    hold = Hold(0.0, 5.0, 0.0)
    assert hold.is_over(10.0, 15.0, 0.0)
    hold.keep(15.0)
    assert not hold.is_over(10.0, 44.0, 0.0)
    assert hold.is_over(10.0, 45.0, 0.0)


def asked_end(command: str) -> EndTime:
    return EndTime(["sh", "-c", command], dict(os.environ))


def test_the_end_of_an_allocation_is_asked_for_without_a_wait(tmp_path: Path) -> None:
    flag = tmp_path / "answers"
    answer = "echo JobId=7 EndTime=2026-11-26T12:00:00 Comment="
    end = asked_end(f"[ ! -e {flag} ] || exec sleep 600; {answer}; touch {flag}")
    wanted = time.mktime((2026, 11, 26, 12, 0, 0, 0, 0, -1))
    assert end.look(0.0) == 0.0
    assert eventually(lambda: end.look(0.0) == wanted)
    assert end.look(30.0) == wanted  # asked again, and the answer of before holds
    assert end.look(31.0) == wanted
    end.close()


def test_a_question_about_the_end_that_fails_changes_nothing() -> None:
    for command in ("echo EndTime=2026-11-26T12:00:00; exit 1", "echo slurm_load_jobs error", "exec no-such-program"):
        end = asked_end(command)
        end.look(0.0)
        assert end.look(21.0) == 0.0
        end.close()
    unlimited = asked_end("echo EndTime=Unknown")
    unlimited.look(0.0)
    assert unlimited.look(0.5) == 0.0
    unlimited.close()


def started_task(directory: Path, own: Path, port: int = 9) -> subprocess.Popen[bytes]:
    """Start the program of a node. own: mesh's directory on nodes; port: of the switchboard, on this machine"""
    given = {"watches": 0, "program": base64.b64encode(pack()).decode(), "key": make_credentials(), "port": port}
    given |= {"addresses": ["127.0.0.1"], "hidden": HIDDEN, "local": str(own)}
    task = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", render.TASK],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory,
        env={"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1"},
    )
    assert task.stdin is not None
    with task.stdin as stdin:
        stdin.write(json.dumps(given).encode() + b"\n")
    task.stdin = None
    return task


def test_the_directory_that_a_killed_node_has_left_is_taken_over(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(0o700)
    (own / "old").touch()
    with socket.create_server(("127.0.0.1", 0)) as board:
        board.settimeout(60)
        task = started_task(tmp_path, own, board.getsockname()[1])
        with board.accept()[0]:
            assert list(own.iterdir()) == []
            task.terminate()
            task.communicate()
    assert not own.exists()


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o777)
    _, error = started_task(tmp_path, own).communicate()
    assert b"FileExistsError" in error


def test_a_holder_beside_an_allocation_that_does_not_start_has_its_reason(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        source = Allocation(job="7")
        given = render.values(
            source, make_credentials(), pack(), "python3", [], job="7", file="~/7.json", ports=[port, port]
        )
        argv = [sys.executable, "-I", "-S", "-c", render.START_FROM_STDIN]
        done = subprocess.run(argv, input=render.text_of(given).encode(), capture_output=True, check=True)
    assert b"in use" in done.stdout


@pytest.mark.parametrize("is_by_ssh", [False, True])
def test_the_nodes_of_a_job_report_agents_where_these_come_by_ssh(slurm: PlayedSlurm, is_by_ssh: bool) -> None:
    source = MadeAllocation(request={"nodes": "1"}, is_by_ssh=is_by_ssh)
    cluster = Cluster(name="big", hosts=(), source=source)
    AllocationMaker({"XDG_STATE_HOME": str(slurm.place / "state")}).make(
        Wish(name="mesh-x-1-1-g1", cluster=cluster, directory=slurm.place)
    )
    assert ("--output=none" not in (slurm.place / "8.sh").read_text()) is is_by_ssh


# An agent without a rank, marked with an allocation. It prints a line once it has its name.
UNRANKED = """\
import time
with open("/proc/self/comm", "w") as file:
    file.write("mesh-agent")
print(flush=True)
time.sleep(600)
"""


def test_a_watch_ends_the_agents_of_its_allocation_that_have_no_rank_yet() -> None:
    agents = {}
    for job in ("771", "772"):
        mark = allocation_mark(Cluster(name="big", hosts=(), allocation=AllocationPlace(job=job)))
        agents[job] = subprocess.Popen([sys.executable, "-c", UNRANKED], stdout=subprocess.PIPE, env=mark)
    for agent in agents.values():
        assert agent.stdout is not None
        with agent.stdout as stdout:
            stdout.readline()
    program = "from mesh.agent.switchboard.watch import Watch; Watch('h1', '771').run()"
    watch = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert watch.stdout == b"h1 1\n"
    assert agents["771"].wait(60) == -signal.SIGTERM
    assert agents["772"].poll() is None
    agents["772"].kill()
    agents["772"].wait()


def test_an_agent_is_marked_where_its_allocation_is_reached_by_ssh_alone() -> None:
    place = AllocationPlace(job="7")
    marked = Cluster(name="big", hosts=(), allocation=place)
    assert allocation_mark(marked) == {"MESH_ALLOCATION": "7"}
    assert start_command("python3", allocation_mark(marked))[:3] == ["env", "MESH_ALLOCATION=7", "python3"]
    assert allocation_mark(replace(marked, backend="slurm")) == {}
    assert start_command("python3", {})[0] == "python3"


WRONG = ({"output": "some"}, {"options": Options(stdin="some")}, {"options": Options(name="a b")})


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_option_is_found_before_an_allocation_is_asked_for(
    slurm: PlayedSlurm, monkeypatch: pytest.MonkeyPatch, words: dict[str, Any]
) -> None:
    clusters = slurm.place / "cluster.yaml"
    clusters.write_text("big: {slurm: {nodes: 1}}\n")
    monkeypatch.chdir(slurm.place)
    for start in (api.run, api.exec):
        with pytest.raises(UsageError):
            start(["true"], cluster="big", clusters_file=str(clusters), **words)
    assert not (slurm.place / "8").exists()
