"""Requests, streams and made pods, over the stand-in with no machine: its pods wait for ever. No lab is needed."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mesh.backends.pods import channel as channels
from mesh.backends.pods.api import Api, ApiAway, ApiFailed, only
from mesh.backends.pods.backend import PodsBackend
from mesh.backends.pods.channel import ExecChannel
from mesh.backends.pods.objects import Things
from mesh.config.podspec import MadePods, PodTemplate
from mesh.core.cluster import Host, PodPlace
from mesh.core.errors import HostUnreachable, MeshError, UsageError
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.clearing import remove_ended
from mesh.hosts.kubernetes.holder import agents
from mesh.hosts.kubernetes.making import Maker, NotOurs
from mesh.hosts.kubernetes.records import PodsRecords
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.waiters import Waiters
from tests.kubecluster.stand_in import Refused, StandIn
from tests.lab import Lab, eventually

GENEROUS_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(cast("Lab", SimpleNamespace(hosts=[]))) as stand_in:
        stand_in.write_kubeconfig(tmp_path)
        yield stand_in


@pytest.fixture
def api(cluster: StandIn, tmp_path: Path) -> Iterator[Api]:
    found = Api(PodPlace(), {"HOME": str(tmp_path)})
    yield found
    found.close()


@pytest.fixture
def records(tmp_path: Path) -> PodsRecords:
    return PodsRecords({"XDG_STATE_HOME": str(tmp_path / "state")})


def maker(api: Api, records: PodsRecords, *, image: str = "x", nodes: int = 3, start: float = 0.0) -> Maker:
    source = MadePods(template=PodTemplate(image=image), nodes=nodes, start_timeout=start)
    return Maker(api, Made(cluster="gpus", user="ana", source=source), records)


def everything(cluster: StandIn) -> dict[str, set[str]]:
    return {kind: set(listed) for kind, listed in cluster.objects.items()}


NOTHING: dict[str, set[str]] = {"pods": set(), "configmaps": set()}


def add_root(cluster: StandIn, made: Made) -> str:
    """Make a root that nothing is recorded of; return its UID."""
    return str(cluster.add("configmaps", cast("dict[str, Any]", render.root_object(made)))["metadata"]["uid"])


def described(mark: str = "", nodes: int = 3) -> Made:
    source = MadePods(template=PodTemplate(image="x"), nodes=nodes, start_timeout=0.0)
    return Made(cluster="gpus", user="ana", source=source, mark=mark)


def test_pods_that_do_not_start_are_deleted_with_their_root(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    with pytest.raises(MeshError, match="0 of 3 pods run; 3 wait: 0/1 nodes are available"):
        maker(api, records).ensure()
    assert everything(cluster) == NOTHING
    assert records.read() == []


def test_a_refused_creation_leaves_nothing(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    cluster.refused["create pods"] = Refused(403, "exceeded quota: team, used: cpu=8, limited: cpu=8", "Forbidden")
    with pytest.raises(ApiFailed, match="exceeded quota"):
        maker(api, records).ensure()
    assert everything(cluster) == NOTHING
    cluster.refused["create configmaps"] = Refused(403, "configmaps is forbidden", "Forbidden")
    with pytest.raises(ApiFailed, match="configmaps is forbidden"):
        maker(api, records).ensure()
    assert everything(cluster) == NOTHING


def test_a_root_whose_maker_was_killed_before_it_was_recorded_is_ours(
    cluster: StandIn, api: Api, records: PodsRecords
) -> None:
    mine = maker(api, records)
    mine._record(render_thing("the-mark"), is_expected=True)
    uid = add_root(cluster, described("the-mark"))
    assert records.read() == []
    root = mine.root()
    assert root is not None
    assert root.metadata.uid == uid
    assert [one.uid for one in records.read()] == [uid]
    mine.delete(root)
    assert everything(cluster) == NOTHING


def test_the_root_of_another_state_directory_is_not_ours(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    add_root(cluster, described("another-mark"))
    with pytest.raises(NotOurs, match="were made elsewhere"):
        maker(api, records).ensure()
    assert everything(cluster)["configmaps"] == {"mesh-gpus-ana"}


def test_pods_that_are_missing_are_made_and_only_those_are_deleted_on_failure(
    cluster: StandIn, api: Api, records: PodsRecords
) -> None:
    made = described()
    uid = add_root(cluster, made)
    mine = maker(api, records)
    mine.adopt()
    first = cast("dict[str, Any]", render.pod_object(made, 1, uid))
    cluster.add("pods", first)
    with pytest.raises(MeshError, match="0 of 3 pods run"):
        mine.ensure()
    assert everything(cluster) == {"pods": {first["metadata"]["name"]}, "configmaps": {"mesh-gpus-ana"}}
    assert cluster.requests.count("create pods") == 2


def test_a_pod_with_our_label_alone_is_neither_used_nor_deleted(
    cluster: StandIn, api: Api, records: PodsRecords
) -> None:
    uid = add_root(cluster, described())
    cluster.make_pod("copy", {render.ROOT: uid, render.INDEX: "0"})
    mine = maker(api, records)
    mine.adopt()
    assert mine.pods(uid) == []
    root = mine.root()
    assert root is not None
    mine.delete(root)
    assert everything(cluster)["pods"] == {"copy"}


def test_a_pod_that_another_command_made_first_is_used(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    mine = maker(api, records, nodes=1)
    root = render_thing("u")
    cluster.add("pods", cast("dict[str, Any]", render.pod_object(described(nodes=1), 0, "u")))
    created: list[Any] = []
    mine._create(root, [0], created)
    assert created == []
    cluster.refused["create pods"] = Refused(422, "is invalid", "Invalid")
    with pytest.raises(ApiFailed):
        mine._create(root, [0], created)


def render_thing(uid: str) -> Any:
    from mesh.backends.pods.objects import Meta, Thing

    return Thing(metadata=Meta(uid=uid))


def test_only_roots_of_which_all_pods_have_ended_are_removed(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    made = described(nodes=1)
    uid = add_root(cluster, made)
    pod = cluster.add("pods", cast("dict[str, Any]", render.pod_object(made, 0, uid)))
    assert remove_ended(api, "ana", records) == []  # made elsewhere
    maker(api, records, nodes=1).adopt()
    assert remove_ended(api, "ana", records) == []  # its pod waits
    cluster.change_status(pod["metadata"]["name"], phase="Succeeded")
    assert remove_ended(api, "ana", records) == ["mesh-gpus-ana"]
    assert everything(cluster) == NOTHING


def test_the_last_of_two_commands_that_wait_for_pods_deletes_them(
    cluster: StandIn, api: Api, tmp_path: Path, records: PodsRecords
) -> None:
    first, second = maker(api, records), maker(Api(PodPlace(), {"HOME": str(tmp_path)}), records, start=GENEROUS_S)
    lines, ends = list[str](), list[BaseException]()
    first._notify = StatusLine(lines.append)

    def wait() -> None:
        with pytest.raises(MeshError, match="2 of 3 pods are there") as caught:
            second.ensure()
        ends.append(caught.value)

    with Waiters(records, first._place):  # so that the first one is not alone
        with pytest.raises(MeshError, match="not all pods run after 0 s"):
            first.ensure()
        assert "another command waits for the same pods" in lines[-1]
        assert len(cluster.objects["pods"]) == 3
        waits = threading.Thread(target=wait, daemon=True)
        waits.start()
        uid = records.read()[0].uid
        path = records.lock_path(first._place)
        assert eventually(lambda: path.read_text().split().count(uid) == 2, GENEROUS_S)
    cluster.remove("pods", min(cluster.objects["pods"]))
    waits.join(GENEROUS_S)
    assert len(ends) == 1
    assert everything(cluster) == NOTHING
    second._api.close()


def test_a_command_that_gives_up_leaves_pods_that_another_one_uses(
    cluster: StandIn, api: Api, records: PodsRecords
) -> None:
    mine = maker(api, records, nodes=1)
    uid = add_root(cluster, described(nodes=1))
    pod = cluster.add("pods", cast("dict[str, Any]", render.pod_object(described(nodes=1), 0, uid)))
    with Waiters(records, mine._place) as waiters:
        waiters.note(uid)
        waiters.note(uid)  # of the other one, which has its pods already
        running = {"name": render.CONTAINER, "state": {"running": {}}}
        cluster.change_status(pod["metadata"]["name"], phase="Running", containerStatuses=[running])
        mine._give_up(uid, [], waiters, is_new=True)
        mine._give_up(uid, mine._api.get(mine._api.pods, Things).items or (), waiters, is_new=False)
    assert everything(cluster) == {"pods": {pod["metadata"]["name"]}, "configmaps": {"mesh-gpus-ana"}}
    with Waiters(records, mine._place) as waiters:
        waiters.note(uid)
        mine._give_up(uid, [], waiters, is_new=True)
    assert everything(cluster) == NOTHING


@pytest.mark.parametrize("pods", [0, 1])
def test_what_a_killed_command_has_begun_to_make_is_removed(
    cluster: StandIn, api: Api, records: PodsRecords, pods: int
) -> None:
    mine = maker(api, records)
    with Waiters(records, mine._place):
        mine._record(render_thing("the-mark"), is_expected=True)
        uid = add_root(cluster, described("the-mark"))
        for index in range(pods):
            cluster.add("pods", cast("dict[str, Any]", render.pod_object(described(), index, uid)))
        assert remove_ended(api, "ana", records) == []  # the command may still live
    assert remove_ended(api, "ana", records) == ["mesh-gpus-ana"]
    assert everything(cluster) == NOTHING
    assert records.get("the-mark") is None


def test_a_pod_whose_container_has_ended_beside_another_one_is_over(
    cluster: StandIn, api: Api, records: PodsRecords
) -> None:
    uid = add_root(cluster, described(nodes=1))
    pod = cluster.add("pods", cast("dict[str, Any]", render.pod_object(described(nodes=1), 0, uid)))
    mine = maker(api, records, nodes=1)
    mine.adopt()
    ended = {"name": render.CONTAINER, "state": {"terminated": {"exitCode": 0}}}
    sidecar = {"name": "a-sidecar", "state": {"running": {}}}
    cluster.change_status(pod["metadata"]["name"], phase="Running", containerStatuses=[sidecar, ended])
    assert mine._missing(render_thing(uid)) is None
    assert remove_ended(api, "ana", records) == ["mesh-gpus-ana"]


def test_an_object_of_another_uid_is_gone_for_a_deletion(cluster: StandIn, api: Api) -> None:
    words = "Operation cannot be fulfilled: Precondition failed: UID in precondition: a, UID in object meta: b"
    cluster.refused["delete pods"] = Refused(409, words, "Conflict")
    api.delete(api.path("pods", "w"), only("a"))
    cluster.refused["delete pods"] = Refused(409, "the object is being modified", "Conflict")
    with pytest.raises(ApiFailed):
        api.delete(api.path("pods", "w"), only("a"))


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refused(401, "Unauthorized", "Unauthorized"), "the credentials of context stand-in are refused"),
        (Refused(403, 'pods is forbidden: User "u" cannot list resource "pods"'), 'User "u" cannot list'),
    ],
)
def test_refusals_of_the_cluster(cluster: StandIn, api: Api, refusal: Refused, expected: str) -> None:
    cluster.refused["list pods"] = refusal
    with pytest.raises(ApiFailed, match=expected) as caught:
        api.get(api.pods, dict)
    assert caught.value.exit_code == 125


def test_an_image_that_cannot_be_had_ends_the_start_at_once(cluster: StandIn, api: Api, records: PodsRecords) -> None:
    cluster.lab.hosts.extend(cast("list[Any]", [SimpleNamespace(name=name, address="") for name in "abc"]))
    cluster.dead_images["x"] = "ErrImagePull: manifest unknown"
    with pytest.raises(MeshError, match=r"cannot pull x: ErrImagePull \(manifest unknown\)") as caught:
        maker(api, records, start=GENEROUS_S).ensure()
    assert caught.value.exit_code == 125
    assert everything(cluster) == NOTHING


BAD_FILES = {"malformed": "a: [b", "a list": "- a\n", "a number": "3\n", "empty": ""}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_kubeconfig_is_one_message(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config"
    file.write_text(BAD_FILES[name])
    with pytest.raises(UsageError, match="is no kubeconfig"):
        Api(PodPlace(), {"KUBECONFIG": str(file)})
    with pytest.raises(UsageError, match="is no kubeconfig"):
        Api(PodPlace(), {"KUBECONFIG": str(tmp_path)})


def test_a_refused_exec_shows_no_token(cluster: StandIn, api: Api) -> None:
    cluster.refused["get pods/exec"] = Refused(403, "pods/exec is forbidden", "Forbidden")
    with pytest.raises(ApiFailed, match="pods/exec is forbidden") as caught:
        api.exec("w", ["true"])
    assert "Bearer" not in f"{caught.value}{caught.value.hint}"
    cluster.refused["get pods/exec"] = Refused(302, "elsewhere")
    with pytest.raises(ApiAway):
        api.exec("w", ["true"])


def test_a_pod_whose_labels_change_is_not_lost_and_the_end_does_not_wait(
    cluster: StandIn, api: Api, tmp_path: Path
) -> None:
    cluster.make_pod("w", {"app": "x"})
    backend = PodsBackend(PodPlace(selector="app=x"), {"HOME": str(tmp_path)})
    (opened,) = backend.open([Host(name="w", address="")], ["true"])
    assert isinstance(opened.result, HostUnreachable)  # it waits for a machine
    assert backend._watch is not None
    with cluster.changed:
        cluster.objects["pods"]["w"]["metadata"]["labels"] = {"app": "y"}
    backend._look()
    assert backend.why(0) == ""
    cluster.remove("pods", "w")
    backend._look()
    assert "was deleted" in backend.why(0)
    backend.close()
    backend._watch.join(GENEROUS_S)
    assert not backend._watch.is_alive()


def test_a_watch_ends_though_nothing_changes(cluster: StandIn, api: Api) -> None:
    is_over = threading.Event()

    def watch() -> None:
        try:
            list(api.watch(api.pods, {}, is_over))
        except ApiAway:
            pass

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    deadline = time.monotonic() + GENEROUS_S
    while api._watched is None and time.monotonic() < deadline:
        time.sleep(0.01)
    is_over.set()
    api.end_watch()
    thread.join(GENEROUS_S)
    assert not thread.is_alive()


# ---- the streams of an exec


@pytest.fixture
def pair() -> Iterator[tuple[ExecChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(GENEROUS_S)
    channel = ExecChannel(ours, "v5.channel.k8s.io")
    yield channel, theirs
    channel.dispose()
    theirs.close()


def framed(data: bytes, opcode: int = 2) -> bytes:
    head = bytes((0x80 | opcode,))
    size = bytes((len(data),)) if len(data) < 126 else b"\x7f" + len(data).to_bytes(8, "big")
    return head + size + data


def unmasked(theirs: socket.socket) -> tuple[int, bytes]:
    head = theirs.recv(2, socket.MSG_WAITALL)
    mask = theirs.recv(4, socket.MSG_WAITALL)
    data = theirs.recv(head[1] & 0x7F, socket.MSG_WAITALL) if head[1] & 0x7F else b""
    return head[0] & 0x0F, bytes(one ^ mask[place % 4] for place, one in enumerate(data))


def test_a_call_returns_no_more_than_a_channel_may(pair: tuple[ExecChannel, socket.socket]) -> None:
    channel, theirs = pair
    data = b"a" * (channels.RECEIVED_BYTES + 7)
    sender = threading.Thread(target=theirs.sendall, args=(framed(b"\x01" + data),), daemon=True)
    sender.start()
    parts = [channel.receive(), channel.receive()]
    sender.join(GENEROUS_S)
    assert b"".join(parts) == data
    assert max(map(len, parts)) <= channels.RECEIVED_BYTES


def test_a_ping_is_answered_and_holds_up_no_reader(pair: tuple[ExecChannel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(framed(b"1", 9) + framed(b"\x01out"))
    assert channel.receive() == b"out"
    assert unmasked(theirs) == (10, b"1")
    with channel._sending:  # a message is being sent, to an end that does not read
        theirs.sendall(framed(b"2", 9) + framed(b"\x01more"))
        assert channel.receive() == b"more"
    channel.send(b"in")
    assert [unmasked(theirs), unmasked(theirs)] == [(10, b"2"), (2, b"\x00in")]


def test_the_input_is_ended_from_the_fifth_version_on(pair: tuple[ExecChannel, socket.socket]) -> None:
    channel, theirs = pair
    channel.end_input()
    assert unmasked(theirs) == (2, b"\xff\x00")


def test_a_stream_that_ends_without_a_status_has_none(pair: tuple[ExecChannel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(framed(b"\x02words") + framed(b"\x03\xe8", 8))
    assert channel.receive() == b""
    assert channel.farewell().status is None
    assert channel.farewell().stderr == b"words"


def test_a_status_before_the_close_is_kept(pair: tuple[ExecChannel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(framed(b'\x03{"status": "Success"}') + framed(b"\x03\xe8", 8) + framed(b"\x01late"))
    assert channel.receive() == b"late"
    assert channel.receive() == b""
    assert channel.farewell().status == 0


def test_the_holder_reads_names_that_are_cut_within_a_character() -> None:
    import ctypes

    before = Path("/proc/self/comm").read_bytes().strip()
    libc = ctypes.CDLL(None)
    try:
        libc.prctl(15, base64.b64decode(b"w7zDvMM="), 0, 0, 0)  # PR_SET_NAME, with half a character
        assert isinstance(agents(), list)
    finally:
        libc.prctl(15, before, 0, 0, 0)


@pytest.mark.root
def test_the_holder_counts_the_agents_of_its_own_container_alone() -> None:
    words = [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for argv in (words, ["unshare", "-m", *words])
        ]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        mine, other = (process.pid for process in started)
        found = agents()
        assert mine in found
        assert other not in found
