"""``mesh mad``: from the runner's command lines and files to the command of each node."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from mesh.cli import program
from mesh.cli.others import node_table
from mesh.config.mad import MadJob, read_mad
from mesh.core.errors import UsageError
from mesh.core.outcome import Cause
from mesh.engine.wrapping import multi_node_context
from mesh.rundir.results import RankResult, RunResult
from tests.conftest import Home

SECRET = "hunter2-4711"
MINIMAL = {"model": "m", "nodes": "a,b", "ssh-user": "me"}
# The lines that the runner's document shows, and what it says that they come to.
BASIC = """\
--model pyt_megatron_lm_train_llama2_7b --nodes 192.168.1.1,192.168.1.2 --master-addr 192.168.0.1 --ssh-user ubuntu
--ssh-key ~/.ssh/id_rsa --shared-data-path /nfs/data"""
ADVANCED = """\
--model pyt_megatron_lm_train_llama2_7b --nodes 192.168.1.10,192.168.1.11,192.168.1.12 --master-addr 192.168.1.10
--master-port 5000 --ssh-user mluser --ssh-key ~/.ssh/cluster_key --shared-data-path /mnt/nfs/datasets
--nccl-interface eth0 --gloo-interface eth0 --timeout 7200 --additional-args "--some-extra-flag\""""
BY_PASSWORD = f"""\
--model pyt_megatron_lm_train_llama2_7b --nodes node1.cluster.com,node2.cluster.com --ssh-user root
--ssh-password {SECRET} --shared-data-path /shared/data"""


def read(typed: dict[str, str | bool | None], file: str = "", **environ: str) -> MadJob:
    return read_mad(typed, file, environ)


def planned(line: str, shown: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The words of each node's command, as the command line tells them."""
    assert program.status(["mad", *shlex.split(line), "--dry-run"]) == 0
    out, err = shown.readouterr()
    assert err == ""
    found = dict(text.split(": ", 1) for text in out.splitlines())
    return {host: shlex.split(command) for host, command in found.items()}


def context(words: list[str]) -> dict[str, str]:
    (key,) = told = ast.literal_eval(words[5])
    assert key == "multi_node_args"
    return dict(told[key])


def test_the_lines_of_the_document(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(home.path))
    monkeypatch.chdir(home.project)
    (home.path / ".ssh").mkdir()
    for key in ("id_rsa", "cluster_key"):
        (home.path / ".ssh" / key).write_text("")
    command = ["madengine", "run", "--tags", "pyt_megatron_lm_train_llama2_7b", "--additional-context"]
    found = planned(BASIC, capsys)
    assert list(found) == ["192.168.1.1", "192.168.1.2"]
    for node, words in enumerate(found.values()):
        assert words[:5] + words[6:] == [*command, "--force-mirror-local", "/nfs/data"]
        assert list(context(words).items())[:5] == [
            ("RUNNER", "torchrun"),
            ("MASTER_ADDR", "192.168.0.1"),
            ("MASTER_PORT", "4000"),
            ("NNODES", "2"),
            ("NODE_RANK", str(node)),
        ]
    found = planned(ADVANCED, capsys)
    for node, words in enumerate(found.values()):
        assert words[6:] == ["--force-mirror-local", "/mnt/nfs/datasets", "--some-extra-flag"]
        assert context(words) == {
            "RUNNER": "torchrun",
            "MASTER_ADDR": "192.168.1.10",
            "MASTER_PORT": "5000",
            "NNODES": "3",
            "NODE_RANK": str(node),
            "NCCL_SOCKET_IFNAME": "eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }


def test_a_password_on_the_command_line(home: Home) -> None:
    done = home.mesh("mad", *shlex.split(BY_PASSWORD))
    assert (done.status, done.out) == (2, b"")
    assert "not taken from a command line" in done.err
    assert "--password-env" in done.err
    assert "password_env" in done.err
    assert SECRET not in done.err
    assert not (home.path / ".local").exists()  # no run, and nothing of it


@pytest.mark.parametrize(
    "spelling",
    [
        *("--ssh-password={}", "--ssh-password -{}", "--ssh-password 9{}", "--ssh-password {} --x"),
        *("--ssh_password {}", "--ssh_password={}", "--ssh-password my {}", "--ssh_password my {}"),
    ],
)
def test_a_password_however_it_is_spelt(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = BY_PASSWORD.replace(f"--ssh-password {SECRET}", spelling.format(SECRET))
    told = ""
    try:
        assert program.status(["mad", *shlex.split(line)]) == 2
    except UsageError as error:
        told = f"{error} {error.hint}"
    out, err = capsys.readouterr()
    assert any(part in told for part in ("not taken from a command line", "unknown option --x", "part of a password"))
    assert SECRET not in out + err + told


def test_a_password_is_asked_for(home: Home) -> None:
    line = BY_PASSWORD.replace(f" {SECRET}", "")
    assert "no password for root" in home.mesh("mad", *shlex.split(line)).err  # nobody is there to be asked
    with home.terminal("mad", *shlex.split(line)) as terminal:
        terminal.expect(b"Password for root")
        assert not terminal.has_echo
        terminal.type(b"\x03")
        assert terminal.end() == 130
        assert terminal.shown.count(b"error") == 0


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    file = tmp_path / "mad.ini"
    file.write_text(
        "[cluster]\nnodes = a, b ,\nmaster_addr = 10.0.0.1\nmaster-port = 4100\n"
        f"[ssh]\nuser = me\nkey_file = {tmp_path}/key\npassword_env = POD\n"
        "[training]\nmodel = m%\nshared-data-path = /a b\ntimeout = 2h\nnccl_interface = eth1\n"
        "[madengine]\nmadengine-path = /opt/madengine\nadditional_args = --x 'a b' --y\n"
    )
    job = read({"model": "", "timeout": "60"}, str(file), POD="x")
    assert [(host.name, host.user, host.identity_file) for host in job.nodes] == [
        ("a", "me", f"{tmp_path}/key"),
        ("b", "me", f"{tmp_path}/key"),
    ]
    assert job.command[:4] == ("/opt/madengine", "run", "--tags", "m%")
    assert job.command[6:] == ("--force-mirror-local", "/a b", "--x", "a b", "--y")
    assert (job.master_addr, job.master_port, job.timeout) == ("10.0.0.1", 4100, 60.0)  # the flag wins
    assert (job.nccl_interface, job.gloo_interface, job.password_env, job.ask_password) == ("eth1", "", "POD", False)
    file.write_text("[ssh]\nssh-password\n")
    assert read({**MINIMAL}, str(file)).ask_password


def test_what_the_runners_own_files_say_of_its_connections_is_no_time_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "mad.ini"
    file.write_text("[ssh]\nuser = u\ntimeout = 30\nmax_retries = 3\n[training]\nmodel = m\n[cluster]\nnodes = a\n")
    assert read_mad({}, str(file), {}).timeout == 3600.0


def test_a_password_that_is_to_be_asked_for_wins_over_a_files_variable(tmp_path: Path) -> None:
    file = tmp_path / "mad.ini"
    file.write_text("[ssh]\nuser = u\npassword_env = NOT_SET\n[training]\nmodel = m\n[cluster]\nnodes = a\n")
    job = read_mad({"ssh-password": True}, str(file), {})
    assert (job.ask_password, job.password_env) == (True, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[training]\nmodel=m\n[clutser]\n", ":3: [clutser]: unknown section; did you mean 'cluster'?"),
        ("[training]\nmodle = m\n", ":2: training.modle: unknown key; did you mean 'model' or 'nodes'?"),
        ("[cluster]\nnodes =\n", ":2: cluster.nodes: has no value"),
        ("[training]\ntimeout = 5\n[madengine]\ntimeout = 6\n", ":4: madengine.timeout: is given twice"),
        ("nodes = a\n", ":1: expected a section first"),
        ("[ssh]\nuser = a\nuser = b\n", ":3: is given twice"),
        (f"[ssh]\npassword = {SECRET}\n", ":2: ssh.password: a password is not taken"),
        (f"[ssh]\n= {SECRET}\n", ":2: expected KEY = VALUE"),
        (f"[ssh]\npassword {SECRET}\n", ": [ssh]: expected KEY = VALUE"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mad.ini"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read({**MINIMAL}, str(file))
    assert str(raised.value).startswith(f"{file}{told}")
    assert SECRET not in str(raised.value) + raised.value.hint


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"nodes": ""}, "--nodes must be given"),
        ({"nodes": "a,b,a"}, "--nodes: a is listed twice"),
        ({"nodes": " , "}, "--nodes: expected hosts, separated by commas"),
        ({"nodes": "a b"}, "--nodes, --ssh-user: 'a b' is no host name"),
        ({"ssh-user": "a b"}, "--nodes, --ssh-user: 'a b' is no user"),
        ({"ssh-key": "/no/such/key"}, "--ssh-key: there is no file /no/such/key"),
        ({"master-addr": "me@a"}, "--master-addr: expected an address alone, found 'me@a'"),
        ({"master-port": "0"}, "--master-port: '0' is no port (1 to 65535)"),
        ({"timeout": "soon"}, "--timeout: expected seconds, or a time such as 30s, 5m or 2h, found 'soon'"),
        ({"additional-args": "'"}, "--additional-args: no closing quotation: a shell could not read it either"),
        ({"madengine-path": "~/venv/bin/madengine"}, "--madengine-path: expected a path on the nodes"),
        ({"nccl-interface": "eth0 "}, "--nccl-interface: expected the name of a network interface, found 'eth0 '"),
        ({"password-env": SECRET}, "--password-env: expected the name of a variable that is set"),
        ({"password-env": "UNSET"}, "--password-env: expected the name of a variable that is set"),
    ],
)
def test_wrong_flags(typed: dict[str, str | bool | None], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        read({**MINIMAL, **typed})
    assert str(raised.value).startswith(told)
    assert SECRET not in str(raised.value) + raised.value.hint


def test_nodes() -> None:
    job = read({**MINIMAL, "nodes": "gpu-[1-2],you@c:2222,c:2223,[fe80::1]:22"})
    assert [(host.name, host.user, host.port) for host in job.nodes] == [
        ("gpu-1", "me", 0),
        ("gpu-2", "me", 0),
        ("c", "you", 2222),
        ("c:2223", "me", 2223),
        ("fe80::1", "me", 22),
    ]


def test_the_context_is_a_literal_whatever_it_holds() -> None:
    env = {"MASTER_ADDR": "h", "MASTER_PORT": "4000", "NCCL_SOCKET_IFNAME": '=it\'s "eth0"'}
    told = ast.literal_eval(multi_node_context(2, 1, env))["multi_node_args"]
    assert (told["NCCL_SOCKET_IFNAME"], told["GLOO_SOCKET_IFNAME"]) == ('=it\'s "eth0"', "")
    assert (told["NNODES"], told["NODE_RANK"]) == ("2", "1")


def test_the_table() -> None:
    def rank(number: int, code: int | None, signal: int | None) -> RankResult:
        path = Path("/no")
        how = {"code": code, "signal": signal}
        return RankResult(rank=number, host=f"h{number}", label="", **how, stdout_path=path, stderr_path=path)  # type: ignore[arg-type]

    ranks = (rank(0, 0, None), rank(1, 3, None), rank(2, None, 15), rank(3, None, None))
    result = RunResult(run="r", exit_code=3, cause=Cause.RANK, ranks=ranks, failures=(), directory=Path("/no"))
    assert list(node_table(result)) == [
        "node  rank  result",
        "h0    0     exit 0",
        "h1    1     exit 3",
        "h2    2     killed by SIGTERM",
        "h3    3     its end is not recorded",
        "Successful nodes: 1/4",
    ]
