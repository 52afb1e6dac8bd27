"""What an agent finds out for its ranks before they start: ports, the interface towards rank 0, and meshrun."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mesh.core.events import HostNotice, Locked, PrepareFailed, Ready, Started
from mesh.protocol.requests import RankStart
from mesh.remote.blob import library
from tests.agent.conftest import Open, Run
from tests.firsts import finds, prepare_request

SHOW = 'echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME"'
NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def printed(agent: Run, *argv: str) -> str:
    agent.session.start(argv, [RankStart(rank=0, env={}, stdin=False)])
    agent.until(Started)
    agent.result()
    return agent.printed().decode()


def test_a_port_is_the_runs_until_its_ranks_start(opener: Open, any_python: str) -> None:
    agent = opener(any_python, ports=(0,))
    agent.session.lock()
    locked = agent.until(Locked)
    assert isinstance(locked, Locked)
    (number,) = locked.ports
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", number))
    agent.session.prepare(prepare_request())
    agent.until(Ready)
    listen = f"import socket; socket.create_server(('127.0.0.1', {number})); print('mine')"
    assert printed(agent, any_python, "-c", listen) == "mine\n"


def test_what_the_ranks_find_may_come_with_their_start(opener: Open, python: str) -> None:
    agent = opener(python, prepare_request(), library(), lock=True)
    agent.until(Ready)
    env = {"RANK": "0", "TOKEN": "s p", "MESH_RUN_ID": "r"}
    show = f'{SHOW}; echo "$RANK $TOKEN"; [ -e "$PYTHONPATH/meshrun.py" ] && echo found; pwd'
    given = finds(env=env, targets=["127.0.0.1"])
    agent.session.start(["sh", "-c", show], [RankStart(rank=0, env={}, stdin=False)], finds=given)
    agent.result()
    interfaces, token, found, place = agent.printed().decode().splitlines()
    assert (interfaces, token, found, Path(place).name) == ("lo lo", "0 s p", "found", "p")


def test_the_interface_of_a_name_is_looked_for_with_the_start(opener: Open, any_python: str) -> None:
    agent = opener(any_python, prepare_request(), lock=True)
    agent.until(Ready)
    given = finds(env={"RANK": "0"}, targets=["localhost"])
    agent.session.start(["sh", "-c", SHOW], [RankStart(rank=0, env={}, stdin=False)], finds=given)
    agent.result()
    assert agent.printed() == b"lo lo\n"


def test_a_named_interface_that_is_not_there_is_told_before_the_start(opener: Open, any_python: str) -> None:
    agent = opener(any_python, prepare_request(given=finds(interface="ens14np0")), lock=True)
    failed = agent.until(PrepareFailed, Ready)
    assert isinstance(failed, PrepareFailed)
    assert failed.step == "interface"
    agent.finish()


def test_nobody_looks_for_an_interface_where_the_user_has_said_more(opener: Open, any_python: str) -> None:
    found = finds(env=dict.fromkeys(NAMES, "their own"), interface="ens14np0")
    agent = opener(any_python, prepare_request(given=found), lock=True)
    assert isinstance(agent.until(PrepareFailed, Ready), Ready)
    agent.finish()


def test_a_named_port_that_is_taken(opener: Open, any_python: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        agent = opener(any_python, ports=(number,))
        agent.session.lock()
        failed = agent.until(PrepareFailed)
        agent.finish()
    assert isinstance(failed, PrepareFailed)
    assert failed.step == "port"
    assert f"port {number} for the ranks cannot be had: Address already in use" in failed.message


@pytest.mark.parametrize(
    ("given", "exported", "expected"),
    [
        ({"targets": ["127.0.0.1"]}, {}, "lo lo"),
        ({"targets": ["localhost"]}, {}, "lo lo"),  # somebody must be asked
        ({"targets": ["127.0.0.1"]}, {"NCCL_SOCKET_IFNAME": "ib0"}, "ib0 lo"),  # the host knows better
        ({"targets": ["127.0.0.1"], "interface": "lo"}, {"NCCL_SOCKET_IFNAME": "ib0"}, "lo lo"),
        ({"targets": ["127.0.0.1"], "interface": "^lo,eth"}, {}, "^lo,eth ^lo,eth"),  # NCCL's own language
        ({"targets": ["127.0.0.1"], "env": {"GLOO_SOCKET_IFNAME": "mine"}}, {}, "lo mine"),
        ({"targets": []}, {}, " "),
    ],
)
def test_the_interface_of_nccl_and_gloo(
    opener: Open,
    any_python: str,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, object],
    exported: dict[str, str],
    expected: str,
) -> None:
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    agent = opener(any_python)
    assert isinstance(agent.prepare(**given), Ready)
    assert printed(agent, "sh", "-c", SHOW) == expected + "\n"


def test_an_interface_that_the_host_has_not(agent: Run) -> None:
    failed = agent.prepare(targets=["127.0.0.1"], interface="ens14np0")
    assert isinstance(failed, PrepareFailed)
    assert (failed.step, failed.message[:26]) == ("interface", "no interface ens14np0 here")
    agent.finish()


@pytest.mark.parametrize("target", ["no-such-host.invalid", "not a name", "ff::ff%nowhere"])
def test_no_way_to_rank_0_is_told_and_starts_all_the_same(agent: Run, target: str) -> None:
    assert isinstance(agent.prepare(targets=[target]), Ready)
    assert printed(agent, "sh", "-c", SHOW) == " \n"
    (notice,) = [event for event in agent.events if isinstance(event, HostNotice)]
    assert target in notice.text


def test_meshrun_can_be_imported_whatever_prerun_does_to_the_path(opener: Open, python: str, tmp_path: Path) -> None:
    agent = opener(python)
    prepared = agent.prepare(["export PYTHONPATH=/one:/two"], targets=["127.0.0.1"], library=library())
    assert isinstance(prepared, Ready)
    shown = "import meshrun, sys; print(meshrun.initialize_jax.__name__, *sys.path[1:4], sep=chr(10))"
    name, *path = printed(agent, python, "-c", shown).splitlines()
    assert (name, path[:2]) == ("initialize_jax", ["/one", "/two"])
    assert path[2].startswith(str(tmp_path / "dot mesh/machines"))


def test_the_users_own_module_of_that_name_comes_first(agent: Run, any_python: str) -> None:
    own = "echo 'print(1)' > meshrun.py; echo 'import meshrun' > main.py"
    assert isinstance(agent.prepare([own], library=library()), Ready)
    assert printed(agent, any_python, "main.py") == "1\n"
