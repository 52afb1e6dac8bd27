"""TLaunch's programs on a real cluster of Kubernetes, as their users start them: a file, and its interpreter.

On with MESH_TEST_KUBERNETES=1, as tests/integration/test_pods_real.py.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import absl
import pytest

from tests.conftest import Home
from tests.gitserver import USER, GitServer
from tests.kubecluster import images
from tests.kubecluster.cluster import NAMESPACE, NODES, Cluster
from tests.kubecluster.faults import PATIENT_S, made, roots
from tests.kubecluster.machines import SERVER

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.environ.get("MESH_TEST_KUBERNETES") != "1", reason="needs MESH_TEST_KUBERNETES=1"),
]
CREDENTIALS = {"username": USER, "password": "hunter2-hunter2"}
GPU = "nvidia.com/gpu"  # advertised by the tests: there is none

# The program of TLaunch's page on Kubernetes with mesh's import lines, less sleep, and a level that is shown.
DOCUMENTED = """
from absl import app
import logging
import time
from mesh import launchpad as lp
from mesh.launchpad import lp_k8s

class Producer:
  def work(self, context):
    logging.warning('I got called, wohoo...')
    time.sleep(0.3)
    logging.warning('I am waking up')
    return context

class Consumer:
  def __init__(self, producers):
    self._producers = producers

  def run(self):
    logging.warning('calling workers')
    futures = [producer.futures.work(context)
               for context, producer in enumerate(self._producers)]
    results = [future.result() for future in futures]
    logging.warning('Results: %s', results)
    lp_k8s.stop()

def make_program(num_producers):
  program = lp.Program('consumer_producers')
  with program.group('producer'):
    producers = [
        program.add_node(lp.CourierNode(Producer)) for _ in range(num_producers)
    ]
  node = lp.CourierNode(
      Consumer,
      producers=producers)
  program.add_node(node, label='consumer')
  return program

def main(_):
  program = make_program(num_producers=3)
  lp_k8s.launch(program)

if __name__ == '__main__':
  app.run(main)
"""

# The second example of TLaunch: a command that prepares the pod, GPUs, and arguments of the program.
CONFIGURED = """
import os
import socket
import sys

import lesson
from mesh import launchpad as lp
from mesh.launchpad import lp_k8s
from mesh.launchpad.lp_k8s import Config, Container, Resource
from mesh.launchpad.lp_k8s.util import get_namespace

COMMAND = ['bash', '-c', 'export PREPARED=yes; python3 -u -mtlaunch.lp_k8s.process_entry']
LIGHT = Resource(cpu='10m', memory=('16Mi', '256Mi'))


class Tester:
    def run(self):
        print(socket.gethostname(), os.environ['PREPARED'], os.environ['SEED'], lesson.TEXT, sys.argv[1:], flush=True)
        if 'wait' in sys.argv:
            lp.wait_for_stop()


def main(words):
    program = lp.Program('test_gpu')
    program.add_node(lp_k8s.CourierNode(Tester), label='tester')
    resources = Resource(cpu=LIGHT.requests['cpu'], nvidia_gpu=('1', '1'))
    container = Container(image=IMAGE, command=COMMAND, flags=words, resources=resources, env={'SEED': '7'})
    config = Config(container, active_deadline_seconds=3600)
    lp_k8s.launch(program, SOURCE, get_namespace(), '~/.kube/config', {'tester': config})
    print('launched', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
"""


def python(home: Home, *words: str) -> subprocess.Popen[bytes]:
    """Start a program of the project's directory."""
    return subprocess.Popen(
        [sys.executable, *words], cwd=home.project, env=home.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_documented_program_of_tlaunch(home: Home, kube: Cluster) -> None:
    home.clusters(made(1))
    home.files(run__py=DOCUMENTED)
    shutil.copytree(Path(absl.__file__).parent, home.project / "absl")  # which the image lacks
    home.environ["MESH_CLUSTER"] = "gpus"
    program = python(home, "run.py")
    out, err = program.communicate(timeout=PATIENT_S)
    assert program.returncode == 0, err.decode()
    shown = (out + err).decode()
    assert "Results: [0, 1, 2]" in shown, shown
    assert shown.count("wohoo") == 3
    assert (kube.phases(), roots(kube)) == ({}, [])


@pytest.fixture
def forge(kube: Cluster, tmp_path: Path) -> Iterator[GitServer]:
    """A server of git that asks for a password, which is in the Secret ``forge``."""
    values = {name: base64.b64encode(text.encode()).decode() for name, text in CREDENTIALS.items()}
    kube.ask("POST", kube.path("secrets"), {"metadata": {"name": "forge"}, "data": values})
    try:
        with GitServer(tmp_path, SERVER, CREDENTIALS["password"]) as server:
            yield server
    finally:
        kube.ask("DELETE", kube.path("secrets", "forge"))


def elsewhere(home: Home) -> Path:
    """Write a kubeconfig as another shell may have it, whose current context names another server; return it."""
    config = json.loads((home.path / ".kube/config").read_text())
    config["clusters"].append({"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}})
    user = config["contexts"][0]["context"]["user"]
    config["contexts"].append({"name": "nowhere", "context": {"cluster": "nowhere", "user": user}})
    file = home.path / "other-kubeconfig"
    file.write_text(json.dumps({**config, "current-context": "nowhere"}))
    return file


def test_a_program_in_configured_pods_is_stopped_by_another_command(
    home: Home, kube: Cluster, forge: GitServer
) -> None:
    patch = [{"op": "add", "path": f"/status/capacity/{GPU.replace('/', '~1')}", "value": "1"}]
    for node in NODES:
        kube.ask("PATCH", f"/api/v1/nodes/{node}/status", patch, kind="application/json-patch+json")
    commit, _ = forge.commit({"lesson.py": "TEXT = 'fetched'\n", "run.py": CONFIGURED})
    source = f"lp_k8s.GitSource({forge.url!r}, ref={commit!r}, secret='forge')"
    home.files(
        run__py=CONFIGURED.replace("IMAGE", repr(images.PYTHON)).replace("SOURCE", source), lesson__py="TEXT = 'here'\n"
    )
    program = python(home, "run.py", "wait")
    assert program.stdout is not None
    try:
        shown = "".join(program.stdout.readline().decode() for _ in range(2))
        assert "launched\n" in shown
        assert "tester-0 yes 7 fetched ['wait']\n" in shown
        (pod,) = kube.listed("pods")
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources == {"limits": {GPU: "1"}, "requests": {GPU: "1", "cpu": "10m"}}
        assert (pod["metadata"]["namespace"], pod["spec"]["activeDeadlineSeconds"]) == (NAMESPACE, 3600)
        home.environ["KUBECONFIG"] = str(elsewhere(home))
        stopped = home.mesh("stop", "last", within=PATIENT_S)
        assert stopped.status == 0, stopped.err
        program.communicate(timeout=PATIENT_S)
    finally:
        program.kill()
        program.communicate()
    assert (kube.phases(), roots(kube)) == ({}, [])
