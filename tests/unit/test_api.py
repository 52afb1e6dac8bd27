"""The Python API where it refuses, and where it is quiet; docs/python.md shows the rest."""

from __future__ import annotations

import ast
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mesh import api
from mesh.api.choosing import make_spec
from mesh.app.owner import user_name
from mesh.config.project import Project, project_directory_name
from mesh.core.errors import UsageError
from tests.conftest import Home


def ended(home: Home, program: str) -> subprocess.CompletedProcess[str]:
    """A Python program of a user's, in his project."""
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, cwd=home.project, env=home.environ, capture_output=True, text=True, check=False)


def test_what_is_imported_when_it_is_asked_for_is_what_types_are_checked_by() -> None:
    tree = ast.parse(Path(api.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    declared = {one.name: line.module for line in block.body if isinstance(line, ast.ImportFrom) for one in line.names}
    assert declared == api._PLACES
    for name in api.__all__:
        assert not isinstance(getattr(api, name), ModuleType)
        assert importlib.util.find_spec(f"mesh.api.{name}") is None, "a module of that name would hide it"


@pytest.mark.parametrize("command", ["echo hi", "", [], ()])
def test_a_command_is_a_list_of_words(command: list[str]) -> None:
    for function in (api.run, api.exec):
        with pytest.raises(UsageError, match="expected a command as a list of words"):
            function(command, cluster="local")


@pytest.mark.parametrize(
    "options",
    [
        api.Options(nproc="2"),  # type: ignore[arg-type]
        api.Options(nproc=True),
        api.Options(timeout="5"),  # type: ignore[arg-type]
        api.Options(hosts=["local-0"]),  # type: ignore[arg-type]
        api.Options(env={"A": 1}),  # type: ignore[dict-item]
        api.Options(env={"A=B": "1"}),
        api.Options(env={"A": "\0"}),
    ],
)
def test_options_of_another_kind(options: api.Options) -> None:
    with pytest.raises(UsageError):
        api.exec(["true"], cluster="local", options=options)


def test_what_else_cannot_be(home: Home) -> None:
    with pytest.raises(UsageError, match="the words of a command are texts"):
        api.exec(["echo", 5], cluster="local")  # type: ignore[list-item]
    with pytest.raises(UsageError, match="once for each host"):
        api.setup(cluster="local", options=api.Options(nproc=3))


def test_a_sync_that_fails_says_why(home: Home) -> None:
    (home.path / ".mesh").write_text("a file where a directory belongs")
    home.files(a__txt="x")
    program = (
        "from mesh import api\n"
        "result = api.sync(cluster='local', quiet=True)\n"
        "print(result.ok, result.exit_code, result.failures)"
    )
    done = ended(home, program)
    place = f"{home.path}/.mesh/local"
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"False 125 ('local-0: Not a directory: {place}', 'local-1: Not a directory: {place}')\n"
    assert done.stderr == ""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_comes_too_late_leaves_the_record_whole(home: Home, number: str) -> None:
    program = (
        "import json, os, signal\n"
        "from mesh import api\n"
        "from mesh.rundir import writer\n"
        "replace = os.replace\n"
        "def late(*paths):\n"
        f"    signal.raise_signal(signal.{number})\n"
        "    replace(*paths)\n"
        "def finish(self, *about, finish=writer.StoreSink.finish):\n"
        "    os.replace = late\n"
        "    return finish(self, *about)\n"
        "writer.StoreSink.finish = finish\n"
        "result = api.run(['true'], cluster='local:1', quiet=True)\n"
        "os.replace = replace\n"
        "about = json.loads((result.directory / 'run.json').read_text())\n"
        "print(result.exit_code, about['exit_code'], list(result.directory.glob('*.new')))"
    )
    done = ended(home, program)
    assert (done.returncode, done.stdout) == (0, "0 0 []\n"), done


def test_from_a_thread_and_without_a_terminal(home: Home) -> None:
    program = (
        "import threading\nfrom mesh import api\nfound = []\n"
        "def work(): found.append(api.run(['sh', '-c', 'echo $RANK'], cluster='local:3', quiet=True))\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "print(found[0].exit_code, b''.join(rank.stdout for rank in found[0].ranks))"
    )
    done = ended(home, program)
    assert (done.returncode, done.stdout) == (0, "0 b'0\\n1\\n2\\n'\n"), done.stderr


def test_a_run_that_is_checked_first(home: Home) -> None:
    """Nothing of it starts where something is in its way."""
    program = (
        "import socket, sys\nfrom mesh import api\n"
        "with socket.create_server(('', 0)) as taken:\n"
        "    port = taken.getsockname()[1]\n"
        "    for options in (api.Options(check=True), api.Options(check=True, master_port=port)):\n"
        "        result = api.run(['touch', 'started'], cluster='local', quiet=True, options=options)\n"
        "        print(result.exit_code, [line.replace(str(port), 'PORT') for line in result.failures])\n"
    )
    done = ended(home, program)
    in_use = "local-0: master port: port PORT: it is in use there"
    assert done.stdout.splitlines() == ["0 []", f"125 ['{in_use}']"], done.stderr


WRITES = ["sh", "-c", "printf 'out \\303\\244\\n'; echo err >&2"]


def test_output_goes_where_the_program_has_put_its_streams(home: Home) -> None:
    """As in a notebook, where sys.stdout is an object without a descriptor."""
    program = (
        "import sys\nfrom mesh import api\n"
        "class Cell:\n"
        "    text = ''\n"
        "    def write(self, text):\n        self.text += text\n"
        "    def flush(self): pass\n"
        "own = sys.stdout, sys.stderr\n"
        "sys.stdout, sys.stderr = cells = Cell(), Cell()\n"
        f"api.exec({WRITES!r}, cluster='local:1')\n"
        f"api.exec({WRITES!r}, cluster='local:1', output='')\n"
        "api.logs(api.list_records()[0].run)\n"
        f"api.exec({WRITES!r}, cluster='local:1', json=True)\n"
        "sys.stdout, sys.stderr = own\n"
        "print(cells[0].text.replace('\\n', '|'), 'finished' in cells[0].text)\n"
        "print([line for line in cells[1].text.splitlines() if line.startswith('[')], flush=True)\n"
        f"api.exec({WRITES!r}, cluster='local:1')\n"
    )
    done = ended(home, program)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first.startswith('[0] out ä|[0] out ä|[0] out ä|{"event"')
    assert first.endswith("True")
    assert second == "['[0] err', '[0] err', '[0] err']"
    assert third == "[0] out ä"
    assert "[0] err" in done.stderr.split("\n")


def test_output_is_captured_by_pytest(home: Home) -> None:
    (home.project / "test_it.py").write_text(
        "import sys\nfrom mesh import api\n"
        f"command = {WRITES!r}\n"
        "def test_text(capsys):\n"
        "    api.exec(command, cluster='local:1')\n"
        "    out, err = capsys.readouterr()\n"
        "    assert out == '[0] out ä\\n'\n"
        "    assert '[0] err' in err.split('\\n')\n"  # a busy machine has a notice before it
        "def test_bytes(capsysbinary):\n"
        "    api.exec(['printf', '\\\\377'], cluster='local:1', output='rank0')\n"
        "    assert capsysbinary.readouterr().out == b'\\xff'\n"
        "def test_descriptors(capfd):\n"
        "    api.exec(command, cluster='local:1')\n"
        "    assert capfd.readouterr().out == '[0] out ä\\n'\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    for options in ([], ["-s", "-k", "text"], ["--capture=sys", "-k", "text"]):
        done = subprocess.run([*argv, *options], cwd=home.project, env=home.environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode()


def test_jobs_of_a_repository_share_a_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def name() -> str:
        return make_spec(Project(workspace=tmp_path, named=True), api.Options(), ["true"]).project

    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/one")
    here = name()
    assert here == project_directory_name(tmp_path, user_name(), socket.gethostname())
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    one = name()
    assert one == project_directory_name(tmp_path, user_name(), "github.com/me/one")
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/two")
    assert len({here, one, name()}) == 3
