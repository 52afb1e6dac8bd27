"""Programs of Launchpad and TLaunch as their users start them: files, real hosts, the interpreter's own exit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.config.clusters import load_clusters
from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.full import times
from tests.lab import eventually

README = """
from absl import app
import logging
from mesh.launchpad import lp_ssh

class Worker:
  def __init__(self, worker_id):
    self.worker_id = worker_id

  def run(self):
    logging.info('Worker {}:{}'.format(self.worker_id, self.worker_id))
    lp_ssh.stop()

def make_program():
  program = lp_ssh.Program('worker')
  worker_num = 2
  current_num = 0
  for host in ['host1','host2']:
    for i in range(worker_num):
      ssh_node  = lp_ssh.SSHNode(Worker, current_num).to_host(host)
      current_num += 1
      program.add_node(ssh_node, label=host+'_worker')
  lp_ssh.launch(program, terminal='ssh_tmux_session')
def main(_):
  make_program()

if __name__ == '__main__':
  app.run(main)
"""

EXITS = """
import sys

from mesh import launchpad as lp


def works(status):
    sys.exit(status)


if __name__ == "__main__":
    program = lp.Program("exits")
    program.add_node(lp.PyNode(works, int(sys.argv[1])), label="works")
    lp.launch(program, launch_type="local_mp")
    print("launched", flush=True)
"""

WAITS = """
import sys

from mesh import launchpad as lp


def waits():
    print("begun", flush=True)
    lp.wait_for_stop()
    print("stopped in time", flush=True)


if __name__ == "__main__":
    program = lp.Program("waits")
    program.add_node(lp.PyNode(waits), label="waits")
    lp.launch(program, launch_type="local_mp")
"""

LAUNCH_LOCAL = 'lp.launch(program, launch_type="local_mp")'
LAUNCH_AND_WAIT = """launched = lp.launch(program, launch_type="local_mt")
    print("launched", flush=True)
    launched.wait()"""
FORKS = """launched = lp.launch(program, launch_type="local_mt")
    from multiprocessing import get_context

    child = get_context("fork").Process(target=int)
    child.start()
    child.join(60)
    print("exit", child.exitcode, flush=True)
    child.kill()
    launched.stop()"""
LOCAL = 'lp.launch(program, launch_type="local_mp", terminal="tmux_session")'
OF_TLAUNCH = """from mesh.launchpad import lp_ssh
    lp_ssh.launch(program, terminal="ssh_tmux_session", session_name_prefix="chosen", cluster="local")"""

PROCESSES = """
import os
import sys

from absl import app, flags
from mesh import launchpad as lp

STEPS = flags.DEFINE_integer("steps", 1, "of each worker")


def works(name):
    words = [word for word in sys.argv[1:] if "lp_" not in word]
    print(name, STEPS.value, os.environ.get("COLOUR", ""), words, flush=True)


def fails_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        raise SystemExit(3)
    print("again", flush=True)


def main(_):
    program = lp.Program("processes")
    program.add_node(lp.PyNode(works, "plain"), label="plain")
    program.add_node(lp.PyNode(works, "chosen"), label="chosen")
    inner = [lp.PyNode(fails_once, os.path.abspath("failed")), lp.PyNode(works, "beside")]
    program.add_node(lp.MultiProcessingColocation(inner, num_retries_on_failure=1), label="both")
    processes = {"chosen": lp.PythonProcess(args={"steps": 7}, env={"COLOUR": "blue"})}
    lp.launch(program, local_resources=processes).wait()


if __name__ == "__main__":
    app.run(main)
"""

TESTED = """
import os
import unittest

from mesh import launchpad as lp


class Server:
    def add(self, value):
        return value + 1, os.getpid()


def fails(path):
    while not os.path.exists(path):
        if lp.wait_for_stop(0.05):
            return
    raise ValueError("lost in a process")


class Steps(unittest.TestCase):
    def test_steps(self):
        program = lp.Program("tested")
        servers = [lp.CourierNode(Server) for _ in range(2)]
        handles = [server.create_handle() for server in servers]
        program.add_node(lp.MultiProcessingColocation(servers), label="both")
        program.add_node(lp.PyNode(fails, os.path.abspath("stepped")), label="fails")
        launched = lp.launch(program, launch_type="test_mp", test_case=self)
        found = [handle.dereference().add(value) for handle, value in zip(handles, (2, 3))]
        print("stepped", *[value for value, _ in found], flush=True)
        print("launched", len({os.getpid(), *[process for _, process in found]}) == 3, flush=True)
        open("stepped", "w").close()
        launched.wait(60)


if __name__ == "__main__":
    unittest.main()
"""

MAP = """
import os
import signal
import sys

from mesh.program import ItemFailed, map

COUNT = int(sys.argv[1])


def kills(value):
    if value == 40 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return value, os.getpid()


def all_values(retries):
    return list(map(kills, range(COUNT), nproc=8, retries=retries))


if __name__ == "__main__":
    try:
        all_values(0)
    except ItemFailed as error:
        print(f"item {error.index}: {type(error.cause).__name__}")
    os.remove("killed")
    found = all_values(1)
    assert [value for value, _ in found] == list(range(COUNT))
    print(len(found), "values,", len({process for _, process in found}), "workers")
"""

SEMANTICS = """
from mesh import launchpad as lp


class Server:
    def __init__(self, batch):
        self.batch = batch

    def echo(self, *args, **kwargs):
        return args, kwargs

    def __call__(self, value):
        return ("called", value)

    def fail(self):
        raise KeyError("lost")

    def _hidden(self):
        return 1


class Runs:
    def __init__(self, number, made):
        self.number, self.made = number, made

    def who(self):
        return self.number, self.made

    def run(self):
        lp.wait_for_stop()


class Client:
    def __init__(self, server, others, nested):
        self.server, self.others, self.nested = server, others, nested

    def run(self):
        server = self.server
        print("echo", server.echo(1, "a", None, [1, 2], key={"x": 2.5}), flush=True)
        print("call", server(3), server.futures(4).result(), flush=True)
        print("who", [other.who() for other in self.others], [one.who()[0] for one in self.nested["all"]], flush=True)
        for name in ("fail", "nothing", "_hidden"):
            try:
                print(name, getattr(server, name)(), flush=True)
            except Exception:
                print(name, "raises", flush=True)
        print("stop", lp.stop_event().is_set(), lp.wait_for_stop(0), flush=True)
        lp.stop()


def node(name):
    lp.wait_for_stop()


def main():
    program = lp.Program("semantics")
    server = program.add_node(lp.CourierNode(Server, 2), label="server")
    with program.group("runs"):
        others = [program.add_node(lp.CourierNode(Runs, n, str(n))) for n in range(2)]
    client = lp.CourierNode(Client)
    client.configure(server, others, nested={"all": others})
    program.add_node(client, label="client")
    program.add_node(lp.PyNode(node, "x"), label="node")
    program.add_node(lp.MultiThreadingColocation([lp.PyNode(node, "y"), lp.PyNode(node, "z")]), label="both")
    print("groups", {label: len(nodes) for label, nodes in program.groups.items()}, program.name)
    unlabelled = lambda: program.add_node(lp.PyNode(node, "x"))
    unnamed = lambda: program.group("").__enter__()
    for wrong in (unlabelled, unnamed, lambda: lp.Address("1-2"), lambda: lp.Address().resolve()):
        try:
            wrong()
        except Exception as error:
            print("wrong", type(error).__name__)
    print("local", lp.is_local_launch("local_mt"), lp.is_local_launch("test_mt"), lp.get_port_from_address("h:12"))
    manager = lp.launch(program, launch_type="local_mt")
    manager.wait()
    print("ended")


if __name__ == "__main__":
    main()
"""
# Printed by the same programs under dm-launchpad 0.5.2 and Python 3.10.13, with `import launchpad as lp`. Python 3.10
# passes its batched_handler a timeout that it refuses; there PEER hands it whole milliseconds.
OF_LAUNCHPAD = """\
groups {'server': 1, 'runs': 2, 'client': 1, 'node': 1, 'both': 1} semantics
wrong ValueError
wrong ValueError
wrong ValueError
wrong RuntimeError
local True False 12
echo ((1, 'a', None, [1, 2]), {'key': {'x': 2.5}})
call ('called', 3) ('called', 4)
who [(0, '0'), (1, '1')] [0, 1]
fail raises
nothing raises
_hidden raises
stop False False
ended
"""
# The rows that the first program leaves out: groups of handles, methods, addresses, and nodes that do not run.
FURTHER = """
import threading

from mesh import launchpad as lp

RAN, ENDED = [], []


class Pair:
    def __init__(self, value, other=None):
        self.value, self.other = value, other

    def get(self):
        return self.value

    def get_other(self):
        return self.other.get()


class Runs(Pair):
    def run(self):
        RAN.append(self.value)


def ends(name):
    ENDED.append(name)


def waits(name):
    lp.wait_for_stop()
    ENDED.append(name)


def methods_of(handle):
    if not hasattr(lp, "list_methods"):
        import courier

        return courier.list_methods(handle)
    return lp.list_methods(handle)


class Main:
    def __init__(self, handles, address):
        self.handles, self.address = handles, address

    def run(self):
        one, two, three = self.handles
        print("values", one.get(), two.get_other(), three.get(), flush=True)
        print("methods", sorted({*methods_of(one)} & {"get", "get_other", "run"}), flush=True)
        print("futures", [future.result() for future in [one.futures.get() for _ in range(3)]], flush=True)
        host, _, port = self.address.resolve().rpartition(":")
        is_same = lp.get_port_from_address(self.address.resolve()) == int(port)
        print("address", bool(host), port.isdigit(), is_same, flush=True)
        print("disabled", RAN, flush=True)
        print("stopped", lp.stop_event().is_set(), flush=True)
        lp.stop()


def main():
    program = lp.Program("second")
    one = program.add_node(lp.CourierNode(Pair, 1), label="one")
    with program.group("pairs"):
        two = program.add_node(lp.CourierNode(Pair, 2, other=one))
        quiet = lp.CourierNode(Runs, "quiet")
        quiet.disable_run()
        three = program.add_node(quiet)
    node = lp.CourierNode(Pair, 3)
    print("own", type(node.courier_address).__name__, flush=True)
    program.add_node(node, label="node")
    program.add_node(lp.PyClassNode(Main, [one, two, three], node.courier_address), label="main")
    both = [lp.PyNode(ends, "a"), lp.PyNode(waits, "b")]
    program.add_node(lp.MultiThreadingColocation(both, return_on_first_completed=True), label="first")
    print("nodes", len(program.get_all_nodes()), sorted(program.groups), flush=True)
    for wrong in (lambda: program.add_node(one), lambda: lp.CourierNode(Pair).create_handle().get()):
        try:
            wrong()
        except Exception as error:
            print("wrong", type(error).__name__, flush=True)
    lp.launch(program, launch_type="local_mt").wait()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
"""
FURTHER_OF_LAUNCHPAD = """\
own Address
nodes 6 ['first', 'main', 'node', 'one', 'pairs']
wrong ValueError
wrong AttributeError
values 1 1 quiet
methods ['get', 'get_other']
futures [1, 1, 1]
address True True True
disabled []
stopped False
ended
"""
EXAMPLES_OF_LAUNCHPAD = {
    "hello_world": ["Hello World!!!"],
    "consumer_producers": ["Results: [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]"],
    "batching": [
        f"Client {number}: {values}"
        for number in range(2)
        for values in ("[1, 3]", "[4, 8]", "[9, 15]", "[16, 24]", "[25, 35]")
    ],
    "program_wait": [
        *("Program finished.", "event: stopped", "handler: stopped", "looks: stopped", "waits: stopped"),
    ],
}
PEER = """
import datetime, runpy, sys
from courier.handlers.python import pybind

build = pybind.BuildBatchedHandlerWrapper

def whole(value):
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return int(value) if isinstance(value, float) else value

pybind.BuildBatchedHandlerWrapper = lambda *args: build(*map(whole, args))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# A Python that has dm-launchpad, which the outputs above are compared with once more; "": the recorded ones alone.
LAUNCHPAD_PYTHON = os.environ.get("MESH_TEST_LAUNCHPAD", "")


def names_of(pod: Home) -> list[str]:
    """Return the names of the lab's hosts."""
    clusters = load_clusters(pod.path / ".config/mesh/cluster.yaml", required=True).clusters
    return [host.name for host in clusters["pod"].hosts]


def with_hosts(pod: Home, text: str) -> str:
    """Return a program with the names of the lab's hosts, and have them find this Python as python3."""
    pod.files(mesh__yaml=f"prerun: ['export PATH={Path(sys.executable).parent}:$PATH']\n")
    for number, name in enumerate(names_of(pod), start=1):
        text = text.replace(f"'host{number}'", repr(name)).replace(f'"host{number}"', repr(name))
    return text


def example(name: str) -> str:
    return (REPOSITORY / "examples" / f"{name}.py").read_text()


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of all nodes without their labels, sorted."""
    return sorted(re.sub(r"^\[\S+?\] +", "", line) for line in done.stdout.splitlines())


def of_launchpad(home: Home, text: str, *words: str) -> list[str]:
    """Return the lines that a program prints under dm-launchpad itself, sorted."""
    text = text.replace("from mesh import launchpad as lp", "import launchpad as lp")
    home.files(peer__py=PEER, own__py=text)
    # Some of its programs do not end by themselves after their last line.
    command = ["timeout", "-s", "KILL", "40", LAUNCHPAD_PYTHON, "peer.py", "own.py", *words]
    done = subprocess.run(command, cwd=home.project, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    # Its threads print at the same time, and its own notice about the end has no end of line.
    found = re.sub(r"Waiting for workers to stop for \d+s\.", "", done.stdout)
    return sorted(line for line in re.sub(r"(?<=stopped)(?=[a-z])", "\n", found).splitlines() if line)


def run_program(home: Home, text: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the user's project to its end. more: variables"""
    home.files(program__py=text)
    return subprocess.run(
        [sys.executable, "program.py", *words],
        cwd=home.project,
        env={**environ(home), **more},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def environ(home: Home) -> dict[str, str]:
    """Return the user's environment with this repository, and a tmux server of the user's own."""
    directory = home.path / "tmux"
    directory.mkdir(mode=0o700, exist_ok=True)
    return {**home.environ, "PYTHONPATH": str(REPOSITORY), "TMUX_TMPDIR": str(directory)}


def handles(pid: int, number: int) -> bool:
    """Return True for a process that has a handler for a signal."""
    text = Path(f"/proc/{pid}/status").read_text()
    return bool(int(text.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.root
@pytest.mark.sshd
def test_the_first_program_of_tlaunch_on_two_hosts(pod: Home) -> None:
    """Its main returns at once; the interpreter waits, and exits with the status of the program."""
    done = run_program(pod, with_hosts(pod, README))
    try:
        assert done.returncode == 0, done.stderr
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "] Worker " in line]
        assert lines, done.stderr
        assert "no process left" in done.stderr
        assert "tmux attach -t worker" in done.stderr
    finally:
        subprocess.run(["tmux", "kill-server"], env=environ(pod), capture_output=True, check=False)


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.parametrize("name", EXAMPLES_OF_LAUNCHPAD)
def test_the_examples_of_launchpad_on_two_hosts(pod: Home, name: str) -> None:
    """Only their import line differs: the cluster is a variable, and mesh.yaml has the hosts of labels."""
    expected = sorted(EXAMPLES_OF_LAUNCHPAD[name])
    one, other, *_ = names_of(pod)
    places = {"producer": [one, other], "consumer": [other], "clients": [one, other], "server": [other]}
    program = "".join(f"  {label}: {{on: [{', '.join(hosts)}], env: {{OWN: x}}}}\n" for label, hosts in places.items())
    text = with_hosts(pod, example(f"launchpad/{name}"))
    mesh_yaml = (pod.project / "mesh.yaml").read_text()
    pod.files(mesh__yaml=f"{mesh_yaml}program:\n{program}")
    done = run_program(pod, text, MESH_CLUSTER="pod")
    assert (done.returncode, lines_of(done)) == (0, expected), done.stderr
    (written,) = (pod.path / ".local/state/mesh/runs").glob("*/run.json")
    ranks = json.loads(written.read_text())["ranks"]
    for label, hosts in places.items():
        found = [rank["host"] for rank in ranks if str(rank["label"]).partition("/")[0] == label]
        assert found in ([], hosts), ranks
    if LAUNCHPAD_PYTHON:
        assert of_launchpad(pod, example(f"launchpad/{name}"), "local_mt") == expected


@pytest.mark.root
@pytest.mark.sshd
@pytest.mark.parametrize("name", ["star_type", "tree_type", "net_type", "run_cmd"])
def test_the_examples_of_tlaunch_on_hosts(pod: Home, name: str) -> None:
    """Each ends by itself once the root has what it waits for, in spite of workers that never end."""
    one, other, third, fourth = names_of(pod)
    expected = {
        "star_type": [f"root has seen {sorted([one, other])}"],
        "tree_type": [f"root has seen {sorted([third, fourth])}"],
        "net_type": [f"{host} has seen {sorted([one, other])}" for host in (one, other)],
        "run_cmd": [f"{host}: no GPUs" for host in (one, other)],
    }[name]
    done = run_program(pod, with_hosts(pod, example(f"tlaunch/{name}")))
    assert (done.returncode, lines_of(done)) == (0, sorted(expected)), done.stderr
    assert "no process left" in done.stderr


@pytest.mark.root
@pytest.mark.sshd
def test_a_torch_program_trains_on_two_hosts_and_meets_without_a_file(pod: Home) -> None:
    """All processes end with the same weights. A file that the hosts do not share is refused before any starts."""
    pytest.importorskip("torch", reason="PyTorch is not installed here")
    pod.files(mnist__py=example("tlaunch/mnist"))
    words = ["--num_trainer", "2", "pod", f"{sys.prefix}/bin/python", "mnist.py"]
    done = pod.mesh("tlaunchrun", "basic", *words, within=5 * PATIENCE)  # each process imports PyTorch
    assert done.status == 0, done.err
    found = sorted(re.sub(r"^\[\d\] rank (\d) of 2: learned, weights ", r"\1 ", line) for line in done.lines)
    assert [line.split()[0] for line in found] == ["0", "1"], done.out
    assert len({line.split()[1] for line in found}) == 1, done.out
    done = pod.mesh("tlaunchrun", "basic", "--set_share_file", "/tmp/meet", *words)
    assert (done.status, done.out) == (2, b"")
    assert "/tmp is not the same directory on" in done.err
    assert 'init_method="env://" reads MASTER_ADDR and MASTER_PORT' in done.err


@pytest.mark.root
@pytest.mark.sshd
def test_an_unknown_host_is_refused_before_the_start(pod: Home) -> None:
    text = with_hosts(pod, README)
    name = names_of(pod)[1]
    swapped = name[0] + name[2] + name[1] + name[3:]  # as 'hots2'
    done = run_program(pod, text.replace(repr(name), repr(swapped)))
    assert done.returncode == 1
    assert f"no host '{swapped}' in pod" in done.stderr
    assert f"the nearest is {name}" in done.stderr
    assert not (pod.path / ".local/state/mesh/runs").exists()


@pytest.mark.parametrize("status", [0, 7])
def test_the_interpreter_exits_with_the_status_of_the_program(home: Home, status: int) -> None:
    done = run_program(home, EXITS, str(status))
    assert (done.returncode, done.stdout) == (status, "launched\n"), done.stderr


def test_processes_with_flags_variables_and_a_restart(home: Home) -> None:
    """Nodes get the command line of their program, and a label's own flags win over it."""
    done = run_program(home, PROCESSES, "--steps=2", "--lp_launch_type=local_mp")
    assert done.returncode == 0, done.stderr
    assert lines_of(done) == [
        "again",
        "beside 2  ['--steps=2']",
        "chosen 7 blue ['--steps=2', '--steps=7']",
        "plain 2  ['--steps=2']",
    ], done.stderr


def test_a_test_steps_processes_that_share_a_host_and_fails_with_their_failure(home: Home) -> None:
    done = run_program(home, TESTED)
    assert done.returncode == 1, done.stderr
    assert lines_of(done) == ["launched True", "stepped 3 4"], done.stderr
    assert "Ran 1 test" in done.stderr
    assert "ValueError: lost in a process" in done.stderr


@pytest.mark.root
@pytest.mark.sshd
def test_the_verdict_shows_the_name_that_the_first_program_does_not_define(pod: Home) -> None:
    text = README.replace(".format(self.worker_id, self.worker_id)", ".format(self.worker_id, i)")
    done = run_program(pod, with_hosts(pod, text).replace("terminal='ssh_tmux_session'", ""))
    assert done.returncode == 1
    assert "NameError: name 'i' is not defined" in done.stdout + done.stderr
    assert re.fullmatch(r"mesh: _\S+_worker/\d: name 'i' is not defined", done.stderr.splitlines()[-1])


def test_a_signal_stops_the_program_and_then_the_interpreter(home: Home) -> None:
    home.files(program__py=WAITS)
    process = subprocess.Popen(
        [sys.executable, "program.py"], cwd=home.project, env=environ(home), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "begun" in process.stdout.readline()
    assert eventually(lambda: handles(process.pid, signal.SIGTERM), PATIENCE)  # once its main has returned
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE)
    assert "stopped in time" in out
    assert process.returncode == 128 + signal.SIGTERM


def test_a_process_that_the_main_program_forks_does_not_wait_for_the_program(home: Home) -> None:
    quiet = WAITS.replace('    print("begun", flush=True)\n', "")  # a fork in the middle of a print has its lock
    done = run_program(home, quiet.replace(LAUNCH_LOCAL, FORKS))
    assert (done.returncode, "exit 0" in done.stdout, "stopped in time" in done.stdout) == (0, True, True), done.stderr


@pytest.mark.parametrize("kind", ["local_mt", "local_mp"])
def test_ctrl_c_in_the_main_program_stops_the_program_as_well(home: Home, kind: str) -> None:
    """The main program ends by it, and the interpreter waits for the program at its exit."""
    home.files(program__py=WAITS.replace(LAUNCH_LOCAL, LAUNCH_AND_WAIT.replace("local_mt", kind)))
    words = [sys.executable, "program.py"]
    process = subprocess.Popen(words, cwd=home.project, env=environ(home), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("launched" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert "stopped in time" in out
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
@pytest.mark.parametrize(
    ("name", "how"), [("", LOCAL), ("chosen", LOCAL), ("chosen", OF_TLAUNCH)], ids=["program", "flag", "argument"]
)
def test_windows_show_the_logs_and_end_with_their_session(home: Home, name: str, how: str) -> None:
    """``kill_tmux`` ends the program of a session, and leaves a session that mesh has not made.

    name: of the session, by the flag, or by an argument that TLaunch's launch has; "": that of the program
    """
    home.files(program__py=WAITS.replace(LAUNCH_LOCAL, how))
    flag = [f"--tmux_session_name={name}"] if name and how == LOCAL else []
    session = name or "waits"
    process = subprocess.Popen([sys.executable, "program.py", *flag], cwd=home.project, env=environ(home))

    def tmux(*words: str) -> str:
        return subprocess.run(
            ["tmux", *words], env=environ(home), capture_output=True, text=True, check=False
        ).stdout.strip()

    try:
        tmux("new-session", "-d", "-s", f"{session}-too", "sleep 1000")
        assert eventually(lambda: "begun" in tmux("capture-pane", "-p", "-t", f"={session}:waits"), PATIENCE)
        kill = f"from mesh.launchpad import lp_ssh; lp_ssh.kill_tmux(prefix={session!r})"
        subprocess.run([sys.executable, "-c", kill], cwd=home.project, env=environ(home), check=True, timeout=PATIENCE)
        process.wait(PATIENCE)
        assert tmux("list-sessions", "-F", "#{session_name}") == f"{session}-too"
    finally:
        tmux("kill-server")
        if process.poll() is None:
            process.kill()
            process.wait()


def test_many_items_over_eight_processes_of_which_one_is_killed(home: Home) -> None:
    """An item of the lost worker is named; with a retry all values come. With MESH_TEST_FULL=1 there are 10,000."""
    count = times(2000, 10_000)
    done = run_program(home, MAP, str(count))
    assert done.returncode == 0, done.stderr
    lost, retried = done.stdout.splitlines()[-2:]
    number, _, cause = lost.removeprefix("item ").partition(": ")
    assert int(number) <= 40  # the answer for one before may still have been on its way
    assert (cause, retried) == ("NodeLost", f"{count} values, 8 workers")


@pytest.mark.parametrize(("text", "expected"), [(SEMANTICS, OF_LAUNCHPAD), (FURTHER, FURTHER_OF_LAUNCHPAD)])
def test_the_same_program_prints_the_same_as_under_launchpad(home: Home, text: str, expected: str) -> None:
    done = run_program(home, text)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    if LAUNCHPAD_PYTHON:
        assert of_launchpad(home, text) == sorted(expected.splitlines())
