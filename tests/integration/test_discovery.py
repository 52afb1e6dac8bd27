"""TPUs by name and `mesh multihost`, on hosts that a stand-in for Google's API tells of (tests/tpu_emulator.py)."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import Done, Home
from tests.lab import Lab, make_key
from tests.tpu_emulator import PROJECT, ZONE, Emulator, emulator, node

pytestmark = pytest.mark.root

PLACE = "echo $SLICE_ID.$WORKER_ID of ${MEGASCALE_NUM_SLICES:-1} at $MASTER_ADDR"
# Google's metadata server, as each TPU VM sees it. $1: the number of the worker.
METADATA = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path.endswith("/agent-worker-number") and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if known else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(sys.argv[1].encode() if known else b"")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("169.254.169.254", 80), Handler)
if not os.fork():
    os.setsid()
    for number in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    server.serve_forever()
"""
# gcloud's tunnel, on a machine without it: $3 is the instance, which stands with its address in the file beside.
TUNNEL = """\
#!{python}
import os, pathlib, socket, sys, threading
here = pathlib.Path(__file__).parent
(here / "asked").open("a").write(" ".join(sys.argv[1:]) + "\\n")
address = dict(line.split() for line in (here / "instances").read_text().splitlines())[sys.argv[3]]
sock = socket.create_connection((address, int(sys.argv[4])))
def up():
    while data := os.read(0, 65536):
        sock.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := sock.recv(65536):
    os.write(1, data)
"""


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("tpu") / "state.json") as running:
        yield running


@pytest.fixture
def user(home: Home, lab: Lab, tpus: Emulator) -> Home:
    """Somebody for whom gcloud has a project, a zone and a key."""
    home.trust(lab)
    shutil.copy(lab.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ(), "LOGNAME": "root", "USER": "root"}
    return home


def addresses(lab: Lab) -> list[str]:
    return [host.address for host in lab.hosts]


def cached(user: Home) -> Path:
    """What mesh keeps of the only answer that it has had."""
    (path,) = (user.path / ".cache/mesh/tpu").iterdir()
    return path


def make_old(path: Path, seconds: float, address: str = "") -> None:
    """As if the API had told it so long ago, and of this address for the first machine."""
    told = json.loads(path.read_text())
    told["time"] -= seconds
    if address:
        told["nodes"][0]["workers"][0]["internal"] = address
    path.write_text(json.dumps(told))


def test_twelve_slices_by_their_numbers_and_then_from_memory(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    others = [node("podium-3", [a[0]]), node("pod-1-7", [a[0]]), node("pod-x", [], "CREATING")]
    nodes = [*(node(f"pod-{n}", [a[n % 4]]) for n in range(12)), *others]
    tpus.tell(sorted(nodes, key=lambda told: str(told["name"])), page=5, fail="UNAVAILABLE", times=1)
    user.clusters("all:\n  tpu: {prefix: pod}\none:\n  tpu: {name: pod-1}\n")
    done = user.mesh("run", "--output", "all", "all", PLACE)
    assert done.status == 0, done.err
    assert done.lines == [f"[{n:02d}] {n}.0 of 12 at {a[0]}" for n in range(12)]
    assert "==> TPU pod in us-central2-b: 12 slices, 12 hosts\n" in done.err
    assert len(tpus.calls) == 4  # three pages, and one that failed

    tpus.tell([], fail="PERMISSION_DENIED")
    again = user.mesh("run", "--hosts", "pod-10-w0,pod-2-w0", "--output", "all", "all", PLACE)
    assert (again.status, again.lines) == (0, [f"[0] 0.0 of 2 at {a[2]}", f"[1] 1.0 of 2 at {a[2]}"])
    assert "(as told " in again.err
    listed = user.mesh("clusters").out.decode()
    assert "all    TPU pod in us-central2-b: 12 slices, 12 hosts (as told " in listed
    assert "one    the TPU API refuses, asked about zone us-central2-b of project lab: " in listed


def test_an_old_answer_and_slices_that_are_not_ready(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    tpus.tell([node("pod-0", a[:2])])
    assert user.mesh("run", "tpu:pod", "true").status == 0

    make_old(cached(user), 300, address="127.99.99.99")
    moved = user.mesh("run", "--output", "all", "tpu:pod", PLACE)
    assert (moved.status, len(moved.lines), len(tpus.calls)) == (0, 2, 2), moved.err

    tpus.tell([], fail="RESOURCE_EXHAUSTED")
    make_old(cached(user), 7200)
    busy = user.mesh("run", "tpu:pod", "true")
    assert busy.status == 0
    assert "as told 2 h ago; now the TPU API has had enough of this project's requests (quota)" in busy.err

    tpus.tell([node("pod-0", a[:2]), node("pod-1", a[2:], "PREEMPTED")])
    gone = user.mesh("run", "tpu:pod", "true")
    assert (gone.status, gone.out) == (125, b"")
    assert "TPU pod-1 is PREEMPTED, not READY\n       pod-1 does not come back by itself" in gone.err
    asked = user.mesh("ps", "tpu:pod")  # what runs on the others can be asked for all the same
    assert asked.status == 0, asked.err


def test_workers_that_contradict_the_order(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    tpus.tell([node("pod", a[:3])])
    for host, number in zip(lab.hosts, (1, 0, 2), strict=False):
        host.script("ip addr add 169.254.169.254/32 dev lo")
        host.run("python3", "-c", METADATA, str(number))
    try:
        done = user.mesh("run", "tpu:pod", "true")
        check = user.mesh("check", "tpu:pod")
    finally:
        for host in lab.hosts[:3]:
            lab.end_all(host)
            host.script("ip addr del 169.254.169.254/32 dev lo")
    orders = (
        f"the TPU API has the workers in this order: 0: pod-w0 ({a[0]}), 1: pod-w1 ({a[1]}), 2: pod-w2 ({a[2]}); "
        f"by their own metadata it is 0: pod-w1 ({a[1]}), 1: pod-w0 ({a[0]}), 2: pod-w2 ({a[2]})"
    )
    assert (done.status, orders in done.err) == (125, True), done.err
    assert (check.status, orders in check.out.decode()) == (1, True), check.out


def test_a_key_that_the_project_does_not_know_and_a_tunnel(user: Home, lab: Lab, tpus: Emulator) -> None:
    tpus.tell([node("pod", addresses(lab)[:1])])
    good = user.path / ".ssh/google_compute_engine"
    good.rename(user.path / ".ssh/good")
    make_key(good, "new")
    done = user.mesh("run", "tpu:pod", "true")
    assert done.status == 125
    words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", f"--zone={ZONE}", f"--project={PROJECT}"]
    assert shlex.join([*words, f"--ssh-key-file={good}", "--command=true"]) in done.err, done.err
    assert tpus.calls == ["ListNodes"]  # nothing was put anywhere
    # Its host key is known by the TPU's id: another one may have had its address.
    look = ["ssh-keygen", "-F", f"tpu.{zlib.crc32(b'pod')}-0", "-f", str(user.path / ".ssh/known_hosts")]
    assert subprocess.run(look, capture_output=True).returncode == 0

    tools = user.path / "tools"
    tools.mkdir()
    (tools / "gcloud").write_text(TUNNEL.format(python=shutil.which("python3")))
    (tools / "gcloud").chmod(0o755)
    (tools / "instances").write_text(f"t1v-pod-w-0 {addresses(lab)[0]}\n")
    user.environ["PATH"] = f"{tools}:{user.environ['PATH']}"
    user.clusters("pod:\n  identity_file: ~/.ssh/good\n  host_keys: strict\n  tpu: {name: pod, iap: true}\n")
    done = user.mesh("run", "--output", "all", "pod", PLACE)
    assert (done.status, done.lines) == (0, [f"[0] 0.0 of 1 at {addresses(lab)[0]}"]), done.err
    tunnel = f"compute start-iap-tunnel t1v-pod-w-0 22 --listen-on-stdin --project={PROJECT} --zone={ZONE}"
    assert (tools / "asked").read_text().splitlines() == [f"{tunnel} --verbosity=warning"]


def shell(user: Home, text: str) -> Done:
    """What a user types, in a project like MaxText, with `mesh multihost` in the place of the runner."""
    python = shlex.join(user.argv("multihost"))
    text = text.replace("python3 multihost_runner.py", python)
    done = subprocess.run(["bash", "-c", text], cwd=user.project, env=user.environ, capture_output=True, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr.decode())


def logs(done: Done) -> dict[str, str]:
    """The logs by MaxText's names."""
    (line,) = [line for line in done.err.splitlines() if "logs: " in line]
    return {path.name: path.read_text() for path in Path(line.partition("logs: ")[2]).glob("output_slice_*.txt")}


def test_the_lines_of_maxtext_s_page(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    tpus.tell([node("me-v4-1", a[2:]), node("me-v4-0", a[:2])])
    for name, text in {
        "setup.sh": "echo installing; echo a warning >&2; touch installed",
        "MaxText/train.py": "import os, sys\nprint(sys.argv[1:], os.path.exists('installed'))\n",
        "MaxText/configs/base.yml": "",
        "tmp/big": "not for the hosts",
    }.items():
        (user.project / name).parent.mkdir(parents=True, exist_ok=True)
        (user.project / name).write_text(text)
    user.environ |= {"TPU_PREFIX": "me-v4", "RUN_NAME": "first"}
    names = [f"output_slice_{s:04d}_worker_{w:04d}.txt" for s in (0, 1) for w in (0, 1)]

    setup = shell(user, 'python3 multihost_runner.py --TPU_PREFIX=$TPU_PREFIX --COMMAND="bash setup.sh"')
    assert (setup.status, logs(setup)) == (0, dict.fromkeys(names, "installing\na warning\n")), setup.err
    train = shell(
        user,
        "python3 multihost_runner.py --TPU_PREFIX=$TPU_PREFIX --INTERNAL_IP=true "
        '--COMMAND="python3 MaxText/train.py MaxText/configs/base.yml run_name=$RUN_NAME"',
    )
    said = "['MaxText/configs/base.yml', 'run_name=first'] True\n"
    assert (train.status, logs(train)) == (0, dict.fromkeys(names, said)), train.err


def test_every_flag_of_the_runner_and_its_status(user: Home, lab: Lab, tpus: Emulator) -> None:
    tpus.tell([node("pod", addresses(lab)[:2])])
    script = user.project / "script"
    script.mkdir()
    (script / "runner.sh").write_text('echo "$PWD" on "$WORKER_ID"; exit $((4 * WORKER_ID))')
    for name in ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE"):
        del user.environ[name]
    runner = f"python3 multihost_runner.py --TPU_PREFIX pod --PROJECT {PROJECT} --ZONE={ZONE} --RUN_NAME run1 "
    absent = shell(user, f"{runner} --COMMAND true --USE_EXISTING_FOLDER true")
    assert (absent.status, "there is no /root/.mesh/workspaces/run1" in absent.err) == (125, True), absent.err
    sent = shell(user, f"{runner} --SCRIPT_DIR=script --SCP_TIMEOUT_SECS 60 --COMMAND='touch mark; ls'")
    assert sent.status == 0, sent.err
    assert set(logs(sent).values()) == {"mark\nrunner.sh\n"}
    (script / "runner.sh").unlink()
    used = shell(user, f"{runner} --USE_EXISTING_FOLDER=True --SCRIPT_DIR=script --COMMAND='bash runner.sh'")
    assert used.status == 4
    assert logs(used)["output_slice_0000_worker_0001.txt"] == "/root/.mesh/workspaces/run1 on 1\n"
    # The run is found again by its record, though gcloud knows of no project here.
    stopped = user.mesh("stop", "last")
    assert (stopped.status, stopped.out) == (
        0,
        b"nothing to stop: the last run of this machine has ended already\n",
    ), stopped.err


# gRPC with TLS is the way to Google's own API; a stand-in for that has no certificate.
BOTH = """
import sys, time, grpc
from google.cloud import tpu_v2
from mesh.config.tpu import TpuName
from mesh.hosts.tpu.client import ask, ask_client
from mesh.hosts.tpu.gcloud import Zone
project, zone, place, rest = sys.argv[1:]
tpu = TpuName(name="pod", iap=True)
transport = tpu_v2.TpuClient.get_transport_class("grpc")(channel=grpc.insecure_channel(place))
with tpu_v2.TpuClient(transport=transport) as client:
    found = ask_client(client, tpu, Zone(project=project, zone=zone), time.monotonic() + 20)
print(found == ask(tpu, Zone(project=project, zone=zone, endpoint=rest), {}), *found)
"""


def test_grpc_and_rest_find_the_same_hosts(user: Home, tpus: Emulator) -> None:
    tpus.tell([node("pod", ["10.0.0.1", "10.0.0.2"], networks=2, external=["192.0.2.1", ""])], page=1)
    words = [sys.executable, "-c", BOTH, PROJECT, ZONE, urlsplit(tpus.grpc).netloc, tpus.rest.rstrip("/")]
    environ = {**user.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True TpuNode(name='pod', state='READY', workers=(Worker(internal='10.0.0.1'")


SLOW = """
import sys
from mesh.config.tpu import TpuName
from mesh.hosts.tpu.client import NotAsked, ask
from mesh.hosts.tpu.gcloud import Zone
project, zone, rest = sys.argv[1:]
try:
    ask(TpuName(name="pod"), Zone(project=project, zone=zone, endpoint=rest), {}, deadline=0.5)
except NotAsked as error:
    print(error)
"""


def test_rest_endpoint_that_is_slow(user: Home, tpus: Emulator) -> None:
    tpus.tell([node("pod", ["10.0.0.1"])], hang=10.0)
    words = [sys.executable, "-c", SLOW, PROJECT, ZONE, tpus.rest.rstrip("/")]
    environ = {**user.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the TPU API did not answer within 0.5 s, asked about "), done.stdout


def test_rest_endpoint_that_does_not_answer(user: Home, tpus: Emulator) -> None:
    with socket.socket() as taken:  # nobody listens on its port, and nobody else can have it
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        user.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = f"http://127.0.0.1:{port}/"
        done = user.mesh("exec", "tpu:pod", "true")
    assert done.status == 125
    assert f"the TPU API cannot be reached, asked about zone {ZONE} of project {PROJECT}: " in done.err
    user.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = tpus.rest + "elsewhere"
    done = user.mesh("exec", "tpu:pod", "true")
    assert done.status == 125
    assert "the TPU API has no such place" in done.err


@pytest.mark.skipif(not shutil.which("gcloud"), reason="no gcloud")
def test_gcloud_sees_the_same_hosts(user: Home, lab: Lab, tpus: Emulator) -> None:
    a = addresses(lab)
    tpus.tell([node("pod-1", a[2:]), node("pod-0", a[:2], networks=2)])
    for name in ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE"):  # both read gcloud's own files
        del user.environ[name]
    environ = {
        **user.environ,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": tpus.rest,
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
    }

    def gcloud(*words: str) -> bytes:
        return subprocess.run(["gcloud", *words], env=environ, capture_output=True, timeout=60, check=True).stdout

    gcloud("config", "set", "project", PROJECT)
    with (user.path / ".config/gcloud/configurations/config_default").open("a") as file:
        file.write(f"\n[compute]\nzone = {ZONE}\n")  # gcloud would ask Google whether there is such a zone
    listed = json.loads(gcloud("compute", "tpus", "tpu-vm", "list", "--format=json", f"--zone={ZONE}"))
    theirs = {told["name"].split("/")[-1]: told["networkEndpoints"] for told in listed}
    user.clusters("pod:\n  tpu: {prefix: pod}\n")
    (_, line) = json.loads(user.mesh("clusters", "--json").out)
    assert line["hosts"] == ["pod-0-w0", "pod-0-w1", "pod-1-w0", "pod-1-w1"]
    ours = json.loads(cached(user).read_text())["nodes"]
    assert [worker["internal"] for told in ours for worker in told["workers"]] == [
        *(endpoint["ipAddress"] for endpoint in theirs["pod-0"][::2]),
        *(endpoint["ipAddress"] for endpoint in theirs["pod-1"]),
    ]
