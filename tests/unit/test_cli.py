"""The command line: which words are options, which are the user's, and what is said about wrong ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.cli import options as o
from mesh.cli.command import FAMILIES
from mesh.cli.options import TABLE, Given, options_of
from mesh.cli.parser import Parser
from mesh.cli.parser import parse as parse_command
from mesh.cli.program import COMMANDS, overview
from mesh.cli.reference import page
from mesh.config.project import load_project
from mesh.config.settings import Client, Options, patient, run_spec
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import command_words
from tests.conftest import PATIENCE, REPOSITORY, Home


def parse(*words: str) -> Given:
    return parse_command(COMMANDS["run"], words)


def test_options_end_at_the_cluster() -> None:
    given = parse("--hosts", "a,b", "--json", "--nproc=2", "pod", "python", "main.py", "--lr", "1e-3", "--json")
    assert given[o.CLUSTER] == "pod"
    assert (given[o.PICK_HOSTS], given[o.JSON], given[o.NPROC]) == ("a,b", True, 2)
    assert given.words == ["python", "main.py", "--lr", "1e-3", "--json"]


def test_a_value_may_begin_with_dashes() -> None:
    given = parse("--env", "ARGS=--x", "--env=B=-y", "--hosts", "--json", "--ranks", "--", "pod", "x")
    assert given[o.ENV] == {"ARGS": "--x", "B": "-y"}
    assert (given[o.PICK_HOSTS], given[o.PICK_RANKS]) == ("--json", "--")
    assert given.words == ["x"]


def test_short_i() -> None:
    assert parse("-i", "pod", "cat").options().stdin == "rank0"


def test_the_cluster_as_an_option() -> None:
    given = parse("--cluster", "pod", "--", "echo", "--")
    assert (given[o.CLUSTER], given.words) == ("pod", ["echo", "--"])


def test_every_option_of_a_command_is_written_once() -> None:
    for name in COMMANDS:
        flags = [option.flag for option in options_of(name)]
        assert len(flags) == len(set(flags)), name
    assert {name for option in TABLE for name in option.commands} <= COMMANDS.keys()


def test_the_reference_page_is_made_from_the_table() -> None:
    found = (REPOSITORY / "docs/reference.md").read_text()
    assert found == page(), "python -m mesh.cli.reference > docs/reference.md"


def test_the_order_of_commands_does_not_depend_on_that_of_imports() -> None:
    modules = sorted({one.body.__module__ for one in COMMANDS.values()}, reverse=True)
    program = f"import {', '.join(modules)}\nfrom mesh.cli.program import COMMANDS\nprint(*COMMANDS, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(COMMANDS)


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_fits_the_terminal(name: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = Parser(COMMANDS[name]).format_help().splitlines() if name else list(overview())
    # Command lines are never cut.
    prose = [line for line in lines if not line.startswith(("  mesh ", "usage: "))]
    assert max(map(len, prose)) <= int(columns)
    if name == "run":
        assert len(lines) < 95
    if not name:  # each command has one line
        shown = {line[2:].strip() for line in lines}
        listed = {one.name: one.summary for one in COMMANDS.values() if " " not in one.name}
        listed |= {word: summary for word, (_, summary) in FAMILIES.items()}
        wrapped = [one for one, summary in listed.items() if f"{one:<10}  {summary}" not in shown]
        assert wrapped == []
    assert not name or any(line.startswith("  ") and name in line for line in lines[-40:]), "an example"


@pytest.mark.parametrize("name", ["run", "exec"])
def test_the_short_help_fits_one_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = Parser(COMMANDS[name], is_short=True).format_help().splitlines()
    assert len(lines) <= 32
    options = "\n".join(lines).partition("Examples:")[0]
    shown = set(re.findall(r"--[\w-]+", options))
    assert {"--hosts", "--timeout", "--detach"} <= shown < {option.flag for option in options_of(name)}
    assert lines[-1] == f"`mesh help {name}` shows all {len(options_of(name)) - 1} options."


@pytest.mark.parametrize(("name", "word"), [("run", "CLUSTER"), ("stop", "RUN"), ("job show", "ID")])
def test_the_help_explains_the_words_of_the_usage_line(name: str, word: str) -> None:
    assert re.search(rf"^{word}: a", Parser(COMMANDS[name]).format_help(), re.MULTILINE)


def test_the_overview_begins_with_the_commands_of_a_first_day() -> None:
    first: dict[str, str] = {}
    for command in COMMANDS.values():
        first.setdefault(command.group, command.name)
    assert list(first)[:4] == ["Run", "Runs", "Files", "Hosts"]
    assert [first[group] for group in list(first)[:4]] == ["run", "ps", "push", "clusters"]


MISTAKES = {
    "no cluster": (
        ["run", "python3", "train.py"],
        "no cluster 'python3': it is a program",
        "mesh run local python3 train.py",
    ),
    "no cluster, dashes": (["run", "ls", "-l"], "unknown option -l", "if ls is the command: mesh run local ls -l"),
    "only a file": (["run", "train.py"], "no cluster 'train.py': it is a program", "mesh run local python3 train.py"),
    "one word": (["run", "local:2 uname -a"], "cluster and command are two words", "mesh run local:2 'uname -a'"),
    "option too early": (["-q", "run", "local", "true"], "-q: options stand after run", "mesh run -q local true"),
    "option of mpirun": (["run", "-np", "4", "local", "true"], "did you mean '--nproc'?", "mesh run [options]"),
    "word elsewhere": (["statsu"], "it is called ps here", "mesh ps"),
    "verb": (["job", "sumbit", "a.yaml"], "did you mean 'submit'?", "mesh job submit a.yaml"),
    "pty and detach": (["run", "-d", "--pty", "local:1", "top"], "leave out --detach", "mesh run --pty pod COMMAND"),
}


@pytest.mark.parametrize(("words", "message", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_with_the_line_to_type(home: Home, words: list[str], message: str, hint: str) -> None:
    home.files(train__py="")
    done = home.mesh(*words)
    first, second = done.err.rstrip("\n").split("\n")
    assert (done.status, first.startswith("error: "), message in first) == (2, True, True), done.err
    assert second.strip().startswith(hint)


def test_a_script_without_its_interpreter_is_answered_with_the_line_to_type(home: Home) -> None:
    home.files(train__py="")
    done = home.mesh("run", "local:1", "train.py", "--lr", "1")
    assert done.status == 127
    assert "a file needs its interpreter: mesh run local:1 python3 train.py --lr 1\n" in done.err


def test_each_variable_of_the_table_is_read(tmp_path: Path) -> None:
    for option in TABLE:
        if option.variable and option.field:
            project = load_project(tmp_path)
            environ = {option.variable: "77"}
            spec = run_spec(project, Options(), ["true"], "r", Client(user="me", machine="laptop", environ=environ))
            cluster = patient(Cluster(name="pod", hosts=()), Options(), environ)
            assert getattr(cluster if option.field == "connect_timeout" else spec.rules, option.field) == 77.0


def test_no_option_is_found_by_a_part_of_its_name() -> None:
    with pytest.raises(UsageError, match="unknown option --host-gr"):
        parse("--host-gr", "5", "pod", "x")


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=10), max_size=6))
def test_every_word_after_the_command_is_the_users(words: list[str]) -> None:
    assert parse("--json", "pod", "python", *words).words == ["python", *words]
    assert parse("--json", "pod", "--", *words).words == ["--", *words]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["pod", "--nproc", "2", "python", "x.py", "--json"],
            "--nproc: options stand before the cluster, found after 'pod'",
            "mesh run --nproc 2 pod python x.py --json",
        ),
        (
            ["--json", "pod", "--env=A=b c", "-i", "--wait", "python", "x y"],
            "--env: options stand before the cluster, found after 'pod'",
            "mesh run --json '--env=A=b c' -i --wait pod python 'x y'",
        ),
        (["pod", "--wait", "5m", "x"], "--wait: options stand before the cluster", "mesh run --wait 5m pod x"),
        (["pod", "--json", "-c", "a b"], "--json: options stand before the cluster", "mesh run --json pod -c 'a b'"),
        (["pod", "--json", "--", "-x"], "--json: options stand before the cluster", "mesh run --json pod -- -x"),
        (["pod", "--json", "--weird"], "--json: options stand before the cluster", "mesh run --json pod -- --weird"),
        (["pod", "--nproc"], "--nproc: options stand before the cluster", "mesh run [options] CLUSTER"),
        (
            ["--json", "pod", "--weird", "x"],
            "unknown option --weird after the cluster",
            "if it is the command: mesh run --json pod -- --weird x",
        ),
        (
            ["pod", "--nprocs", "2"],
            "unknown option --nprocs after the cluster; did you mean '--nproc' or '--nodes'?",
            "if it is the",
        ),
        (
            ["--launcher", "torchrun", "pod", "--nproc", "2", "x.py"],
            "--nproc: options stand before the cluster",
            "mesh run --launcher torchrun --nproc 2 pod x.py",
        ),
    ],
)
def test_options_after_the_cluster_are_refused(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(*words)
    assert str(raised.value).startswith(message)
    assert raised.value.hint.startswith(hint)


def test_command_that_begins_with_a_dash() -> None:
    assert parse("pod", "-c", "echo $1", "--json").words == ["-c", "echo $1", "--json"]
    assert parse("pod", "-", "--json").words == ["-", "--json"]
    assert parse("--launcher", "torchrun", "pod", "-m", "train", "--json").words == ["-m", "train", "--json"]
    assert parse("--launcher=torchrun", "pod", "--tee", "3", "x.py").words == ["--tee", "3", "x.py"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hots", "a", "pod"], "unknown option --hots; did you mean '--hosts' or '--nodes'?"),
        (["--hosts"], "--hosts needs a value"),
        (["--json=1", "pod"], "--json takes no value"),
        (["", "echo"], "CLUSTER: expected a name, found an empty word"),
    ],
)
def test_wrong_options(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(*words)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["echo", "a b"], ("echo", "a b")),
        (["echo $RANK | cat"], ("bash", "-c", "echo $RANK | cat")),
        (["two\twords"], ("bash", "-c", "two\twords")),
        (["hostname"], ("hostname",)),
        (["-c", "echo $1", "zero", "one"], ("bash", "-c", "echo $1", "zero", "one")),
        (["--", "-c", "x"], ("-c", "x")),
        (["--", "a b"], ("a b",)),
        (["--help"], ("--help",)),
        ([""], ("",)),
    ],
)
def test_commands(words: list[str], command: tuple[str, ...]) -> None:
    assert command_words(words) == command


def test_statuses_and_messages(home: Home) -> None:
    for words, status, message in [
        (["rn"], 2, "error: unknown command 'rn'; did you mean 'run' or 'runs'?\n"),
        (["--nonsense"], 2, "error: unknown option '--nonsense'"),
        (["run"], 2, "error: no command was given\n"),
        (["run", "local"], 2, "error: no command was given\n"),
        (
            ["run", "--output", "some", "local", "x"],
            2,
            "error: --output: expected all, fold, rank0, none, found 'some'\n",
        ),
        (["clusters", "extra"], 2, "error: unexpected word 'extra'\n"),
    ]:
        done = home.mesh(*words)
        assert (done.status, done.out) == (status, b""), words
        assert done.err.startswith(message), done.err


def test_a_word_after_wait_that_is_no_time(home: Home) -> None:
    told = "--wait was taken without a value, as '5min' is no time such as 30s, 5m or 2h"
    done = home.mesh("run", "--wait", "5min", "local", "true")
    assert (done.status, done.out) == (2, b"")
    assert "no cluster '5min'" in done.err
    assert told in done.err
    assert "--wait was taken" not in home.mesh("run", "--wait", "5m", "locl", "true").err
    for words in (["push", "local", "--wait", "5min"], ["push", "--wait=5min", "local"]):
        done = home.mesh(*words)
        assert done.status == 2
        assert (told if "=" not in words[1] else "--wait: expected seconds") in done.err
    assert home.mesh("init", "x").err.startswith("error: unexpected word 'x'\n")


def test_what_exec_does_not_do(home: Home) -> None:
    told = [home.mesh(command, "--help").out.decode() for command in ("run", "exec")]
    for option in ("--fresh", "--share", "--no-fanout", "--prerun "):
        assert option in told[0]
        assert option not in told[1]
    assert "--grace" in told[1]
    done = home.mesh("exec", "--fresh", "--share", "local", "true")
    assert (done.status, done.out) == (2, b"")
    assert "mesh exec has no --fresh; mesh run and mesh push have it" in done.err


def test_a_push_does_one_thing(home: Home) -> None:
    for words in (["--list", "--watch"], ["--explain=a", "--watch"], ["--explain=a", "--list"]):
        done = home.mesh("push", *words, "local")
        assert (done.status, done.out) == (2, b"")
        assert "name one of them" in done.err


def test_an_empty_value_is_not_everything(home: Home) -> None:
    for words in (
        ["run", "--hosts", "", "local", "true"],
        ["setup", "--ranks=", "local"],
        ["exec", "--exclude", "", "x"],
    ):
        done = home.mesh(*words)
        assert done.status == 2
        assert "needs a value, found an empty one" in done.err


def test_words_after_two_dashes_are_no_options(home: Home) -> None:
    assert "no cluster '-x'" in home.mesh("check", "--", "-x").err
    assert "unexpected word 'b'" in home.mesh("check", "--", "a", "b").err


def test_outputs_that_cannot_be_written(home: Home) -> None:
    with Path("/dev/full").open("w") as full:
        for words in (["clusters"], ["--help"], ["completion", "bash"], ["check", "local"]):
            done = home.mesh(*words, stdout=full)
            assert done.status == 125, words
            # On a busy machine the notice of a slow connection comes before.
            assert "error: cannot write to stdout: No space left on device\n" in done.err, done.err
    shell = f"{sys.executable} -m mesh clusters >&-"
    done = subprocess.run(["sh", "-c", shell], cwd=home.project, env=home.environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_at_any_moment_has_no_traceback(home: Home) -> None:
    home.files(mesh__yaml="")
    for pause in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2):
        process = home.popen("setup", "local")
        time.sleep(pause)  # the moment is the test
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
        # Before main() is called Python has its own handler, and only these two files of ours have been begun.
        ours = set(re.findall(rb'File "[^"]*/mesh/([^"]*)", line \d+, in (\S+)', err))
        assert ours <= {(b"__main__.py", b"<module>"), (b"__init__.py", b"<module>")}, err
        assert process.returncode in (-2, 0, 1, 130)


def test_errors_of_tasks_under_invoke_are_told_as_ours(home: Home) -> None:
    home.files(tasks__py="from mesh.tasks import namespace\n")
    for words, message in (
        (["setup"], "error: no cluster was named\n"),
        (["check", "--cluster", "loca"], "error: no cluster 'loca'"),
        (["exec", "--cluster", "local", "--nproc", "0", "--", "true"], "error: --nproc: expected"),
        (["completion"], "error: expected one of bash, zsh, fish"),
    ):
        argv = [sys.executable, "-m", "invoke", *words]
        environ = {**home.environ, "PYTHONWARNINGS": ""}
        done = subprocess.run(argv, cwd=home.project, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(message)


def test_a_directory_that_is_gone(home: Home) -> None:
    gone = home.project / "gone"
    gone.mkdir()
    shell = f"rmdir ../gone; {sys.executable} -m mesh init"
    done = subprocess.run(["sh", "-c", shell], cwd=gone, env=home.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: the working directory is gone\n" in done.stderr


def test_a_file_of_clusters_that_was_named_must_be_there(home: Home) -> None:
    for words in (["check", "--clusters", "/nope", "local"], ["clusters", "--clusters", "/nope"]):
        assert "/nope: there is no such file" in home.mesh(*words).err
    home.environ["MESH_CLUSTERS"] = "/nope"
    assert home.mesh("clusters").status == 2


def test_a_cluster_called_local_does_not_hide_the_built_in_one(home: Home) -> None:
    home.clusters("local:\n  hosts: [a]\n")
    lines = home.mesh("clusters").out.decode().splitlines()
    assert lines[0] == "local  2 hosts"
    assert "is the name of a built-in cluster" in lines[1]


def test_version_and_help(home: Home) -> None:
    assert home.mesh("--version").out == b"mesh 0.2.0\n"
    assert home.mesh("--help", "stop").out.startswith(b"usage: mesh stop ")
    for words in ([], ["--help"], ["help"]):
        assert b"run         Run a command on every rank" in home.mesh(*words).out
    for words in (["run", "--help"], ["run", "--json", "-h"], ["help", "run"], ["run", "pod", "--help"]):
        shown = home.mesh(*words).out
        assert shown.startswith(b"usage: mesh run [options] CLUSTER COMMAND [ARG ...]\n")
        assert (b"--grace" in shown) == ("-h" not in words)
    for words in (["local"], ["--cluster", "local"], ["--cluster=local"]):
        assert home.mesh("run", *words, "sh", "-c", "echo $0", "--help").lines == ["[0] --help", "[1] --help"]
    assert home.mesh("run", "local:1", "-c", "echo $0", "--help").lines == ["[0] --help"]


def test_option_after_the_cluster_starts_nothing(home: Home) -> None:
    home.clusters("pod:\n  hosts: [198.51.100.7]\n")
    for command in ("run", "exec"):
        done = home.mesh(command, "pod", "--nproc", "2", "python", "x.py")
        assert (done.status, done.out) == (2, b"")
        assert done.err == (
            "error: --nproc: options stand before the cluster, found after 'pod'\n"
            f"       mesh {command} --nproc 2 pod python x.py\n"
        )
    assert home.mesh("exec", "local:1", "--", "--weird").status == 127
    assert home.mesh("exec", "local:1", "-c", "echo $1", "0", "--json").lines == ["[0] --json"]


def test_a_store_of_jobs_that_cannot_be_read_hides_no_cluster(home: Home) -> None:
    home.clusters("good:\n  hosts: [a]\n")
    home.environ["MESH_STORE"] = "elsewhere"
    done = home.mesh("clusters")
    assert (done.status, done.lines[1]) == (0, "good    1 host")
    assert done.lines[2].startswith("job:ID  MESH_STORE: expected a directory or a postgresql:// address")


def test_clusters_and_init(home: Home) -> None:
    home.clusters("good:\n  hosts: ['t[0-3]']\nbad:\n  hosts: 3\n")
    done = home.mesh("clusters")
    assert done.out.decode().splitlines() == [
        "local  2 hosts",
        "good   4 hosts",
        f"bad    {home.path}/.config/mesh/cluster.yaml:4: bad.hosts: expected a list of hosts, found 3",
    ]
    listed = json.loads(home.mesh("clusters", "--json").out)
    assert [line["name"] for line in listed] == ["local", "good", "bad"]
    good = {"name": "good", "hosts": ["t0", "t1", "t2", "t3"], "problem": "", "slices": [], "note": ""}
    assert listed[1] == good
    assert home.mesh("init").status == 0
    first, rest = (home.project / "mesh.yaml").read_text().split("\n", 1)
    assert first == f"# yaml-language-server: $schema={home.path}/.config/mesh/mesh.schema.json"
    assert rest == (REPOSITORY / "configs/mesh.yaml").read_text()
    again = home.mesh("init")
    assert again.status == 2
    assert "there is a" in again.err
    reading, writing = os.pipe()
    os.close(reading)  # before the program begins
    process = home.popen("clusters", stdout=writing)
    os.close(writing)
    assert process.wait(timeout=PATIENCE) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_cluster_is_added_from_the_command_line(home: Home) -> None:
    done = home.mesh("clusters", "--add", "pod", "me@tpu-[0-1]", "other")
    assert done.status == 0, done.err
    assert home.mesh("clusters").out.decode().splitlines() == ["local  2 hosts", "pod    3 hosts"]
    assert home.mesh("run", "--dry-run", "--hosts", "tpu-0..1", "pod", "true").out.count(b"tpu-") == 4
    again = home.mesh("clusters", "--add", "pod", "a")
    assert (again.status, "pod" in again.err) == (2, True)
    assert home.mesh("clusters", "--add", "none").status == 2


def test_ssh_is_the_systems_with_the_right_options(home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (tmp_path / "bin/ssh").chmod(0o755)
    home.environ["PATH"] = f"{tmp_path}/bin:{home.environ['PATH']}"
    home.clusters("pod:\n  gateway: me@gate\n  hosts: [a, 'you@b:23']\nsafe:\n  host_keys: strict\n  hosts: [a]\n")
    accept, strict = "-o|StrictHostKeyChecking=accept-new|", "-o|StrictHostKeyChecking=yes|"
    assert home.mesh("ssh", "pod").out.decode() == f"{accept}-J|me@gate|a|"
    assert home.mesh("ssh", "pod:1", "--", "echo", "a b").out.decode() == f"{accept}-p|23|-J|me@gate|-l|you|b|echo|a b|"
    assert home.mesh("ssh", "safe", "-v").out.decode() == f"{strict}a|-v|"
    assert "no host 2 in pod: its hosts are 0-1" in home.mesh("ssh", "pod:2").err
    assert "local is this machine" in home.mesh("ssh", "local").err


def test_settings_of_invoke_change_nothing(home: Home) -> None:
    (home.path / ".invoke.yaml").write_text("tasks: {dedupe: [broken\n")
    (home.path / ".mesh.yaml").write_text("run: {echo: true}\n")
    (home.project / "invoke.yaml").write_text("run: [\n")
    home.environ |= {"INVOKE_RUN_ECHO": "1", "INVOKE_DEBUG": "0", "MESH_RUN_ECHO": "1"}
    assert home.mesh("run", "local:1", "echo", "hi").out == b"[0] hi\n"


def test_through_invoke(home: Home) -> None:
    home.environ["PYTHONWARNINGS"] = ""
    argv = [sys.executable, "-m", "invoke", "--search-root", str(REPOSITORY), "run", "--cluster", "local:1"]
    words = ["printf", "%s|", "a b", "", "--json", "it's", "ü"]
    done = subprocess.run(
        [*argv, "--env", "A=1", "--", *words],
        cwd=home.project,
        env=home.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.decode() == "[0] a b||--json|it's|ü|\n", done.stderr
    failing = subprocess.run(
        [*argv, "--", "sh", "-c", "exit 7"], cwd=home.project, env=home.environ, capture_output=True, check=False
    )
    assert failing.returncode == 7


def test_a_task_of_ones_own_follows_a_command(home: Home) -> None:
    imports = "from invoke import task\nfrom mesh.tasks import clusters\n"
    home.files(tasks__py=f"{imports}@task(pre=[clusters])\ndef after(c):\n    print('x')\n")
    argv, environ = [sys.executable, "-m", "invoke", "after"], {**home.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(argv, cwd=home.project, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "local  2 hosts\nx\n"), done.stderr


def test_stop_through_invoke(home: Home) -> None:
    """Invoke has no word that may be left out: there the run is an option."""
    home.environ["PYTHONWARNINGS"] = ""
    argv = [sys.executable, "-m", "invoke", "--search-root", str(REPOSITORY), "stop", "--run", "nothing"]
    done = subprocess.run(argv, cwd=home.project, env=home.environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: no run 'nothing' is on local:1\n" in done.stderr  # others may be on this machine


def last_line(home: Home, program: str) -> bytes:
    """Of what a Python program prints."""
    done = subprocess.run([sys.executable, "-c", program], env=home.environ, capture_output=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_imports_nothing_of_ssh(home: Home) -> None:
    show = (
        "import atexit, sys; sys.argv = ['mesh', '--help']; from mesh.__main__ import main\n"
        "heavy = ('fabric', 'paramiko', 'mesh.api.', 'mesh.engine.', 'mesh.backends.', 'asyncio', 'unittest')\n"
        "heavy += ('invoke.vendor.yaml', 'email')\n"
        "atexit.register(lambda: print(sorted(m for m in sys.modules if m.startswith(heavy))))\n"
        "main()"
    )
    assert last_line(home, show) == b"[]"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["run", "local:1", "sh", "-c", "echo out; echo err >&2; exit 7"], 7),
        (["exec", "local:1", "true"], 0),
        (["exec", "local:1", "sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 2),
        (["run"], 2),
    ],
)
def test_it_ends_in_the_same_way_without_taking_itself_apart(home: Home, words: list[str], status: int) -> None:
    """Tests ask for warnings, and so have Python look for what was left open."""
    environ = {name: value for name, value in home.environ.items() if name != "PYTHONWARNINGS"}
    found = []
    for variables in (home.environ, environ):
        process = home.popen(*words, env=variables)
        out, err = process.communicate()
        # On a machine with much to do, a line says that a host is not connected yet.
        changing = rb"\d{8}-\d{6}-\w{6}|\d+ B|\d+\.\d s|==> still connecting to .*\n"
        found.append((process.returncode, out, re.sub(changing, b"", err)))
    assert found[0] == found[1]
    assert found[1][0] == status


def test_what_cannot_be_written_is_told_at_the_end(home: Home) -> None:
    environ = {name: value for name, value in home.environ.items() if name != "PYTHONWARNINGS"}
    with open("/dev/full", "wb") as full:
        process = home.popen("--help", env=environ, stdout=full)
    _, err = process.communicate()
    assert (process.returncode, err[:50]) == (125, b"error: cannot write to stdout: No space left on de")


def test_a_program_that_looks_into_it_has_its_end(home: Home) -> None:
    environ = {name: value for name, value in home.environ.items() if name != "PYTHONWARNINGS"}
    profiled = [sys.executable, "-m", "cProfile", "-m", "mesh", "--version"]
    assert b"function calls" in subprocess.run(profiled, env=environ, capture_output=True, check=True).stdout
    debugged = [sys.executable, "-m", "pdb", "-c", "continue", "-m", "mesh", "--version"]
    done = subprocess.run(debugged, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert b"Exit status: 0" in done.stdout
    called = (
        "import sys; sys.argv = ['mesh', '--version']\nfrom mesh.__main__ import main\ntry: main()\nfinally: print('x')"
    )
    done = subprocess.run([sys.executable, "-c", called], env=environ, capture_output=True, check=True)
    assert done.stdout.endswith(b"x\n")


def test_invoke_has_its_mocks_all_the_same(home: Home) -> None:
    show = (
        "import sys; sys.argv = ['mesh', '--version']; from mesh.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "from unittest.mock import Mock; from invoke import MockContext, Result\n"
        "context = MockContext(run=Result('done'))\n"
        "print(context.run('x').stdout, context.run.call_count, isinstance(context.run, Mock))"
    )
    assert last_line(home, show) == b"done 1 True"


@pytest.mark.parametrize(
    ("words", "flag", "hint"),
    [
        (["42", "-F"], "--fixed-strings", "mesh job logs -F --grep TEXT"),
        (["42", "--module", "gcsfuse", "-f"], "--follow", "mesh job logs 42 --module gcsfuse"),
        (["--module", "gcsfuse", "--since", "0s"], "--since", "mesh job logs last --module gcsfuse"),
        (["--module", "gcsfuse", "-F"], "--fixed-strings", "mesh job logs last --module gcsfuse"),
    ],
)
def test_options_of_job_logs_that_would_not_count_are_refused(words: list[str], flag: str, hint: str) -> None:
    command = COMMANDS["job logs"]
    with pytest.raises(UsageError, match=f"^{flag}: ") as raised:
        command.body(parse_command(command, words))
    assert raised.value.hint == hint
