"""Programs of Launchpad and TLaunch as their users start them: files, real hosts, the interpreter's own exit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.config.clusters import load_clusters
from tests.conftest import PATIENCE, REPOSITORY, Home
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

# A middle host sends what its leaves have sent on to the root, which ends the program once it has seen them all.
TREE = """
import time
import traceback

from mesh.launchpad import lp_ssh


class Worker:
    def __init__(self, host, client):
        self.host, self.client = host, client

    def run(self):
        while True:
            try:
                self.client.send_info({self.host: 1})
                time.sleep(0.05)
            except Exception:
                traceback.print_exc()
                break
        lp_ssh.stop()


class Middle:
    def __init__(self, own, root):
        self.own, self.root = own, root

    def run(self):
        while not lp_ssh.wait_for_stop(0):
            self.root.send_info(self.own.get_info())


class Root:
    def __init__(self, client, wanted):
        self.client, self.wanted = client, wanted

    def run(self):
        seen = set()
        while seen != self.wanted:
            seen |= set(self.client.get_info())
        print("root has seen", sorted(seen), flush=True)
        lp_ssh.stop()


if __name__ == "__main__":
    program = lp_ssh.Program("tree_type")
    root, middle, *leaves = HOSTS
    root_client = program.add_node(lp_ssh.TransmitNode().to_host(root), label=root)
    middle_client = program.add_node(lp_ssh.TransmitNode().to_host(middle), label=middle)
    program.add_node(lp_ssh.SSHNode(Root, root_client, set(leaves)).to_host(root), label=root)
    program.add_node(lp_ssh.SSHNode(Middle, middle_client, root_client).to_host(middle), label=middle)
    for leaf in leaves:
        program.add_node(lp_ssh.SSHNode(Worker, leaf, middle_client).to_host(leaf), label=leaf)
    lp_ssh.launch(program)
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

MAP = """
import os
import signal
import sys

from mesh.program import ItemFailed, map


def kills(value):
    if value == 40 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return value, os.getpid()


def all_values(retries):
    return list(map(kills, range(200), nproc=3, retries=retries))


if __name__ == "__main__":
    try:
        all_values(0)
    except ItemFailed as error:
        print(f"item {error.index}: {type(error.cause).__name__}")
    os.remove("killed")
    found = all_values(1)
    assert [value for value, _ in found] == list(range(200))
    print(len(found), "values,", len({process for _, process in found}), "workers")
"""


def with_hosts(pod: Home, text: str) -> str:
    """Return a program with the names of the lab's hosts, and have them find this Python as python3."""
    pod.files(mesh__yaml=f"prerun: ['export PATH={Path(sys.executable).parent}:$PATH']\n")
    clusters = load_clusters(pod.path / ".config/mesh/cluster.yaml", required=True).clusters
    names = [host.name for host in clusters["pod"].hosts]
    text = text.replace("HOSTS", repr(names))
    for number, name in enumerate(names, start=1):
        text = text.replace(f"'host{number}'", repr(name))
    return text


def run_program(home: Home, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the user's project to its end."""
    home.files(program__py=text)
    return subprocess.run(
        [sys.executable, "program.py", *words],
        cwd=home.project,
        env=environ(home),
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
def test_values_from_leaves_over_a_middle_host_to_the_root(pod: Home) -> None:
    done = run_program(pod, with_hosts(pod, TREE))
    assert done.returncode == 0, done.stderr
    assert "root has seen" in done.stdout, done.stderr


@pytest.mark.root
@pytest.mark.sshd
def test_an_unknown_host_is_refused_before_the_start(pod: Home) -> None:
    text = with_hosts(pod, README)
    name = load_clusters(pod.path / ".config/mesh/cluster.yaml", required=True).clusters["pod"].hosts[1].name
    done = run_program(pod, text.replace(repr(name), repr(name + "x")))
    assert done.returncode == 1
    assert f"no host '{name}x' in pod" in done.stderr
    assert not (pod.path / ".local/state/mesh/runs").exists()


@pytest.mark.parametrize("status", [0, 7])
def test_the_interpreter_exits_with_the_status_of_the_program(home: Home, status: int) -> None:
    done = run_program(home, EXITS, str(status))
    assert (done.returncode, done.stdout) == (status, "launched\n"), done.stderr


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


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_windows_show_the_logs_and_end_with_their_session(home: Home) -> None:
    """``kill_tmux`` ends the program of a session, and leaves a session that mesh has not made."""
    text = WAITS.replace('launch_type="local_mp"', 'launch_type="local_mp", terminal="tmux_session"')
    home.files(program__py=text)
    process = subprocess.Popen([sys.executable, "program.py"], cwd=home.project, env=environ(home))

    def tmux(*words: str) -> str:
        return subprocess.run(
            ["tmux", *words], env=environ(home), capture_output=True, text=True, check=False
        ).stdout.strip()

    try:
        tmux("new-session", "-d", "-s", "waits-too", "sleep 1000")
        assert eventually(lambda: "begun" in tmux("capture-pane", "-p", "-t", "=waits:waits"), PATIENCE)
        kill = "from mesh.launchpad import lp_ssh; lp_ssh.kill_tmux(prefix='waits')"
        subprocess.run([sys.executable, "-c", kill], cwd=home.project, env=environ(home), check=True, timeout=PATIENCE)
        process.wait(PATIENCE)
        assert tmux("list-sessions", "-F", "#{session_name}") == "waits-too"
    finally:
        tmux("kill-server")
        if process.poll() is None:
            process.kill()
            process.wait()


def test_items_over_processes_of_which_one_is_killed(home: Home) -> None:
    """The item of the lost worker is named; with a retry all values come."""
    done = run_program(home, MAP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["item 40: NodeLost", "200 values, 3 workers"]
