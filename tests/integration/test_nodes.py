"""Programs of plain nodes on real hosts: their stop, restarts, news and relay, attached and detached."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.conftest import Home, _default_signals
from tests.integration.test_attach import runs
from tests.integration.test_run_directory import problems
from tests.lab import Lab, eventually

NODE = """
import json, os, signal, socket, sys, time
control = socket.socket(fileno=int(os.environ["MESH_CONTROL_FD"]))
sockets = {name: socket.socket(fileno=number) for name, number in json.loads(os.environ["MESH_NODE_SOCKETS"]).items()}
book = json.load(open(os.environ["MESH_ADDRESS_BOOK"]))
label, attempt = os.environ["MESH_LABEL"], int(os.environ["MESH_ATTEMPT"])
def up(**message): control.send(json.dumps(message).encode())
def down(): return json.loads(control.recv(65536))
def say(*words): print(*words, flush=True)
def wait_for(name, state):
    while True:
        message = down()
        if (message.get("news"), message.get("state")) == (name, state): return message["attempt"]
        if "stop" in message: say("stopped:", message["stop"]); os._exit(9)
def serve():
    while True:
        message = down()
        say(message)
        if "stop" in message: os._exit(9)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
exec(open(os.environ["MESH_PAYLOAD"]).read())
"""
# Launches the program that its last argument describes, as mesh.program does.
LAUNCH = """
import hashlib, json, sys, threading
from mesh.api.programs import Nodes, run_program
from mesh.api.running import Listener
from mesh.config.settings import Options
from mesh.core.nodes import RankReady
from mesh.core.run import Group
about = json.loads(sys.argv[1])
payloads = {hashlib.sha256(text.encode()).hexdigest(): text.encode() for _, _, text, _ in about["groups"]}
groups = []
for label, hosts, text, rules in about["groups"]:
    counts = rules.pop("counts", [1] * len(hosts))
    name = hashlib.sha256(text.encode()).hexdigest()
    groups.append(Group(label=label, hosts=tuple(hosts), counts=tuple(counts), command=("python3", "-c", about["node"]),
                        sockets=1, ready=True, payloads=(name,) * sum(counts), **rules))
relays = []
def event(one):
    if isinstance(one, RankReady) and about.get("relay") and one.attempt == 0:
        threading.Thread(target=talk, daemon=True).start()
def talk():
    with relays[0].connect(about["relay"]) as peer:
        peer.sendall(b"from the client")
        print("answer:", peer.makefile("rb").readline().decode(), file=sys.stderr)
nodes = Nodes(groups=tuple(groups), payloads=payloads, relayed=relays.append, ready_timeout=about["ready_timeout"])
result = run_program(nodes, cluster="pod", options=Options(**about["options"]), listener=Listener(event))
sys.exit(result.exit_code)
"""
Groups = Sequence[tuple[str, list[str], str, dict[str, object]]]


def popen(
    home: Home, groups: Groups, *, relay: str = "", ready_timeout: float = 60.0, **options: object
) -> subprocess.Popen[bytes]:
    about = {"groups": groups, "node": NODE, "options": options, "relay": relay, "ready_timeout": ready_timeout}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, json.dumps(about)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home.project,
        env=home.environ,
        start_new_session=True,
        preexec_fn=_default_signals,
    )


def program(home: Home, groups: Groups, **more: object) -> tuple[int, str, str]:
    """Run a program to its end: status, standard output, standard error."""
    process = popen(home, groups, **more)  # type: ignore[arg-type]
    out, err = process.communicate(timeout=120.0)
    return process.returncode, out.decode(), err.decode()


def wait_until_up(process: subprocess.Popen[bytes], count: int) -> None:
    """Read lines until so many nodes have printed "up"."""
    assert process.stdout is not None
    while count:
        line = process.stdout.readline()
        assert line
        count -= line.rstrip().endswith(b" up")


def names(lab: Lab) -> list[str]:
    return [host.address for host in lab.hosts]


def nothing_is_there(lab: Lab) -> bool:
    """No process, and no file of a program, on any host."""
    return not any(
        host.processes() or host.script("ls -A /tmp/mesh-* 2>/dev/null | grep nodes || true").strip()
        for host in lab.hosts
    )


TALK = """
up(ready=True)
wait_for("echo/0", "ready")
where, port = book["echo/0"]["tcp"]
with socket.create_connection((where, port)) as peer:
    peer.sendall(label.encode())
    say(peer.recv(100).decode())
wait_for("never", "there")
"""
ECHO = """
up(ready=True)
seen = 0
while seen < 3:
    peer, _ = sockets["tcp"].accept()
    peer.sendall(b"hello " + peer.recv(100))
    peer.close()
    seen += 1
up(stop=7, why="enough")
serve()
"""


def test_nodes_on_several_hosts_meet_and_the_stop_of_one_is_the_end_of_all(pod: Home, lab: Lab) -> None:
    first, second, third, _ = names(lab)
    groups: Groups = [
        ("echo", [second], ECHO, {}),
        ("actor", [first, second, third], TALK, {"counts": [1, 1, 1]}),
    ]
    status, out, err = program(pod, groups)
    assert status == 7, err
    assert sorted(line.split("] ")[1].strip() for line in out.splitlines() if "hello" in line) == [
        "hello actor/0",
        "hello actor/1",
        "hello actor/2",
    ]
    assert out.count("stopped: stop") == 3
    (directory,) = runs(pod).iterdir()
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert (about["cause"], about["exit_code"]) == ("program", 7)
    assert [(rank["label"], rank["host"]) for rank in about["ranks"]] == [
        ("actor", first),
        ("echo", second),
        ("actor", second),
        ("actor", third),
    ]
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert len([event for event in events if event["event"] == "rank-ready"]) == 4
    assert [event["why"] for event in events if event["event"] == "program-stopped"] == ["enough"]
    assert eventually(lambda: nothing_is_there(lab))


def test_a_node_is_started_again_and_one_failure_too_many_ends_the_program(pod: Home, lab: Lab) -> None:
    first, second, *_ = names(lab)
    dies = "up(ready=True)\nwait_for('actor/0', 'ready') if not attempt else None\nos._exit(3)"
    watch = "up(ready=True)\nsay('again', wait_for('echo/0', 'restarting'))\nwait_for('never', 'there')"
    status, out, err = program(pod, [("echo", [first], dies, {"restarts": 1}), ("actor", [second], watch, {})])
    assert status == 3, err
    assert "again 1" in out
    assert "stopped: failure" in out
    assert "mesh: echo/0: started again after exit 3, attempt 1" in err
    assert eventually(lambda: nothing_is_there(lab))


def test_a_node_that_may_fail_ends_nothing_and_those_that_serve_end_with_the_last_other(pod: Home, lab: Lab) -> None:
    first, second, third, _ = names(lab)
    groups: Groups = [
        ("bad", [first], "up(ready=True)\nwait_for('server/0', 'ready')\nos._exit(4)", {"may_fail": True}),
        ("worker", [second], "up(ready=True)\nwait_for('bad/0', 'failed')\nsys.exit(0)", {}),
        ("server", [third], "up(ready=True)\nserve()", {"serves": True}),
    ]
    status, out, err = program(pod, groups)
    assert status == 0, err
    assert "'stop': 'stop'" in out
    assert eventually(lambda: nothing_is_there(lab))


def test_a_node_that_is_never_ready_is_named(pod: Home, lab: Lab) -> None:
    first, second, *_ = names(lab)
    groups: Groups = [("fast", [first], "up(ready=True)\nserve()", {}), ("slow", [second], "serve()", {})]
    status, _, err = program(pod, groups, ready_timeout=12.0)  # in which the other one is ready on any machine
    assert status == 125
    assert "slow/0: not ready after 12 s" in err
    assert "fast/0: not ready" not in err
    assert eventually(lambda: nothing_is_there(lab))


def test_a_client_talks_to_a_node_through_its_agent(pod: Home, lab: Lab) -> None:
    first, *_ = names(lab)
    once = """
up(ready=True)
peer, _ = sockets["unix"].accept()
peer.sendall(b"a node has " + peer.recv(100) + b"\\n")
peer.recv(100)
up(stop=0)
serve()
"""
    status, _, err = program(pod, [("echo", [first], once, {})], relay="echo/0")
    assert status == 0, err
    assert "answer: a node has from the client" in err


def test_a_killed_client_leaves_nothing(pod: Home, lab: Lab) -> None:
    first, second, *_ = names(lab)
    groups: Groups = [("echo", [first, second], "up(ready=True)\nsay('up')\nwhile True: down()", {"counts": [2, 1]})]
    process = popen(pod, groups, grace=1.0)  # the nodes ignore SIGTERM, and the stop
    wait_until_up(process, 3)
    process.kill()
    process.communicate()
    assert eventually(lambda: nothing_is_there(lab), 60.0)


@pytest.mark.parametrize("how", ["stop", "serves", "restart"])
def test_a_detached_program_ends_by_itself_on_all_hosts(pod: Home, lab: Lab, how: str) -> None:
    first, second, third, _ = names(lab)
    go = "while not os.path.exists(os.path.expanduser('~/enough')): time.sleep(0.05)\n"
    groups: Groups
    if how == "stop":
        groups = [
            ("a", [first, second], "up(ready=True)\nwait_for('never', 'there')", {}),
            ("b", [third], f"up(ready=True)\n{go}up(stop=5, why='enough')\nserve()", {}),
        ]
    elif how == "serves":
        groups = [
            ("a", [first, second], "up(ready=True)\nwait_for('never', 'there')", {"serves": True}),
            ("b", [third], f"up(ready=True)\n{go}sys.exit(0)", {}),
        ]
    else:
        watch = "say('again', wait_for('b/0', 'restarting'))\nup(stop=5)\nserve()"
        groups = [
            ("a", [first, second], f"up(ready=True)\n{watch}", {}),
            ("b", [third], f"up(ready=True)\n{go}os._exit(3)", {"restarts": 3}),
        ]
    status, _, err = program(pod, groups, detach=True)
    assert status == 0, err
    (run,) = [directory.name for directory in runs(pod).iterdir()]
    lab.hosts[2].script("touch enough")
    assert eventually(lambda: nothing_is_there(lab), 60.0)
    done = pod.mesh("attach", run, "--from", "start")
    assert done.status == (0 if how == "serves" else 5), done.err
    assert how != "restart" or b"again 1" in done.out
    assert problems(runs(pod) / run) == []


def test_a_lost_host_ends_a_program(pod: Home, lab: Lab) -> None:
    first, second, *_ = names(lab)
    process = popen(
        pod, [("a", [first, second], "up(ready=True)\nsay('up')\nwait_for('never', 'there')", {})], host_grace=12.0
    )
    wait_until_up(process, 2)
    lab.hosts[1].cut()
    try:
        out, err = process.communicate(timeout=120.0)
    finally:
        lab.hosts[1].mend()
    assert process.returncode == 76, err
    assert b"stopped: failure" in out
    assert eventually(lambda: nothing_is_there(lab), 120.0)  # its agent sends again after as long as it was cut off
