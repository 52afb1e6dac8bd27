"""The life of a program: restarts, results that are kept, ties to its client, other machines, and notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh import api
from mesh.api.records import find_record
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.program import Group, Handle, Program, connect
from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.integration import program_nodes as nodes
from tests.integration.test_nodes import nothing_is_there
from tests.integration.test_program import (
    _new_user,  # noqa: F401
    _nothing_is_left,  # noqa: F401
    launch,
    new_program,
    node_processes,
    pod_names,
)
from tests.lab import Lab, eventually

DETACHED = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.config.settings import Options
from mesh.program import Program
from tests.integration import program_nodes as nodes

program = Program("detached", python=sys.executable, options=Options(detach=True))
"""
LAUNCHED = """
running = program.launch("local", keep_results=True)
print(running.wait().reason, running.run)
"""


def detached(source: str) -> str:
    """Launch a program from a process that leaves it; return its run. source: adds its nodes"""
    words = [sys.executable, "-c", DETACHED + source + LAUNCHED, str(REPOSITORY)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    reason, run = done.stdout.split()
    assert reason == "detached", done.stderr
    return run


MORTAL = """
server = program.add(nodes.Server, on="local-0", on_failure="restart", restarts=3, concurrency=3)
program.add(nodes.Killer, server, 4, on="local-1")
"""


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_node_that_dies_three_times_is_started_three_times_and_the_fourth_death_is_the_end(is_detached: bool) -> None:
    if is_detached:
        run = detached(MORTAL)
        assert api.attach(run, quiet=True).exit_code == 137
    else:
        program = new_program("mortal")
        server = program.add(nodes.Server, on="local-0", on_failure="restart", restarts=3, concurrency=3)
        program.add(nodes.Killer, server, 4, on="local-1")
        running = launch(program)
        result, run = running.wait(PATIENCE), running.run
        assert (result.reason, result.label, result.exit_code) == ("failure", "server", 137)
    record = find_record(run)
    assert record is not None
    lines = (record.directory / "logs/rank-0001.out").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    again, last = "server on local-0: ended by SIGKILL; it is started again", "server on local-0: ended by SIGKILL"
    late = "server on local-0: its process has ended"  # on a slow machine calls do not wait for the reason
    assert [attempt for *_, attempt in found[:3]] == [1, 2, 3]
    texts = {text for *texts, _ in found[:3] for text in texts}
    assert again in texts
    assert texts <= {again, late}
    assert found[3:] in ([[*[last] * 3, 4]], [[*[late] * 3, 4]], [])  # the program may end before its last words
    assert eventually(lambda: not node_processes())


def test_results_are_kept_in_the_run_directory_and_read_by_label_after_the_end() -> None:
    program = new_program("kept")
    program.add(nodes.returns, 7, on="a,b", per_host=1)
    program.add(nodes.raises, on="b", on_failure="ignore")
    program.add(nodes.Server, on="a")
    with program.launch("local", keep_results=True) as running:
        assert running.wait(PATIENCE).ok
    record = find_record(running.run)
    assert record is not None
    names = sorted(path.name for path in (record.directory / "results").iterdir())
    assert names == ["raises-0.bin", "returns-0.bin", "returns-1.bin"]
    with connect(running.run) as connected:
        assert connected.result("returns", PATIENCE) == [(7, "a"), (7, "b")]
        with pytest.raises(nodes.Strange, match="3 and 4"):
            connected.result("raises", PATIENCE)
        with pytest.raises(MeshError, match="server on a: "):
            connected.result("server", PATIENCE)
    with pytest.raises(UsageError, match="threads are no run"):
        program.launch("threads", keep_results=True)


def test_results_of_a_detached_program_are_kept_by_the_client_that_attaches() -> None:
    run = detached('program.add(nodes.returns, 7, on="local-0")')
    assert api.attach(run, quiet=True).exit_code == 0
    record = find_record(run)
    assert record is not None
    assert (record.directory / "results/returns-0.bin").stat().st_size > 0
    with connect(run) as connected:
        assert connected.result("returns", PATIENCE) == (7, "local-0")


def test_a_program_with_a_node_on_the_client_is_not_left_to_its_hosts() -> None:
    program = new_program("tied")
    log = program.add(nodes.Log, on="client")
    writer = program.add(nodes.Writer, log, on="local-0")
    program.add(nodes.waits, on="local-1")
    assert isinstance(writer, Handle)
    with launch(program) as running:
        why = "log is on the client, and ends with it"
        with pytest.raises(UsageError, match=why) as refused:
            running.detach()
        assert refused.value.hint == 'on="local-0,local-1"'
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        words = [sys.executable, "-m", "mesh", "detach", running.run]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 125, done.stderr
        assert f"{running.run} cannot be detached: {why}" in done.stderr
        assert f"mesh stop {running.run}" in done.stderr
        assert writer.write("still there") == 2
        assert running.stop().ok
    options = Options(detach=True)
    other = Program("tied", python=sys.executable, options=options)
    other.add(nodes.Writer, other.add(nodes.Log, on="client"), on="local-0")
    with pytest.raises(UsageError, match="log is on the client, so the program cannot be detached"):
        launch(other)


ELSEWHERE = """
from mesh.core.errors import UsageError
from mesh.program import connect

try:
    connect("far")
except UsageError as error:
    print(error.hint)
with connect("far", cluster="pod") as connected:
    places = [place[:2] for place in connected.handle("server").where()]
    print(connected.labels, places, connected.result("returns", 60))
    connected.stop(5, "from elsewhere")
"""


@pytest.mark.root
@pytest.mark.sshd
def test_another_machine_connects_to_a_program_whose_nodes_listen_at_the_ports_of_the_cluster(
    pod: Home, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine is a host of the lab that takes no part in the run; it has cluster.yaml and a key."""
    monkeypatch.setenv("HOME", str(pod.path))
    monkeypatch.chdir(pod.project)
    pod.clusters(lab.cluster_yaml("pod", "ports: 41000-41003"))
    pod.files(far_nodes__py=Path(str(nodes.__file__)).read_text())
    monkeypatch.syspath_prepend(pod.project)
    names = pod_names(pod)
    other = lab.hosts[3]
    with contextlib.ExitStack() as stack:
        far = __import__("far_nodes")
        stack.callback(sys.modules.pop, "far_nodes")
        program = Program("far", cluster="pod", python=sys.executable)
        servers = program.add(far.Server, on=names[:2], per_host=1)
        program.add(far.Caller, servers, on=names[0])
        program.add(far.returns, 7, on=names[1])
        program.add(far.waits, on=names[1])
        assert isinstance(servers, Group)
        running = stack.enter_context(program.launch())
        assert [port for port in servers.ports() if 41000 <= port <= 41003]
        home = other.path(other.home)
        for path in (".config/mesh", ".ssh"):
            (home / path).mkdir(mode=0o700, parents=True)
        shutil.copy(lab.identity, home / ".ssh/id")
        (home / ".config/mesh/cluster.yaml").write_text(
            lab.cluster_yaml("pod").replace(str(lab.identity), f"{other.home}/.ssh/id")
        )
        (home / "there.py").write_text(ELSEWHERE)
        found = other.script(f"PYTHONPATH={REPOSITORY} {sys.executable} there.py").splitlines()
        assert found[0].startswith("connect('far', cluster=CLUSTER)")
        labels = ("server/0", "caller", "server/1", "returns", "waits")
        assert found[1] == f"{labels} {[(f'server/{place}', names[place]) for place in range(2)]} {(7, names[1])}"
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.why) == (5, "from elsewhere")
    assert eventually(lambda: nothing_is_there(lab))


NOTEBOOK = """
import os
from mesh.program import Program, here, stop

class Actor:
    def act(self, step):
        return here().index * step, os.getpid()

class Learner:
    def __init__(self, actors):
        self.actors = actors
    def run(self):
        total = sum(value for value, _ in self.actors.act(3))
        stop(why="learned")
        return total

def program():
    made = Program("notebook")
    actors = made.add(Actor, on="a,b", per_host=2)
    made.add(Learner, actors, on="a")
    return made
"""
RUN = """
for where in ("threads", "local"):
    with program().launch(where) as running:
        result = running.wait(60)
        print(where, result.exit_code, result.why, running.result("learner"))
"""


EXECUTE = """
import json
import sys

import nbclient
import nbformat

notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in json.loads(sys.argv[1])]
nbclient.NotebookClient(notebook, timeout=110).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""


def test_a_notebook_runs_a_program_in_threads_and_in_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, json.dumps([NOTEBOOK, RUN, "running"])],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, ran, shown = json.loads(done.stdout)
    printed = "".join(output.get("text", "") for output in ran)
    assert "threads 0 learned 18" in printed
    assert "local 0 learned 18" in printed
    rows = shown[0]["data"]["text/plain"].splitlines()
    assert [row.split() for row in rows[1:3]] == [["actor/0", "a", "ended", "1"], ["actor/1", "a", "ended", "1"]]
