"""Keys by which a command asks the keeper for agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.keeper.keys import keys_of

HOST = Host(name="a", address="10.0.0.1")
POD = Cluster(name="pod", hosts=(HOST, Host(name="b", address="10.0.0.2")))
ARGV = ("python3", "-c", "pass")


def unused() -> Sequence[str]:
    raise AssertionError("Fabric was asked how hosts are reached")


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path / ".ssh"


def key(cluster: Cluster = POD, argv: Sequence[str] = ARGV, user: str = "me") -> str:
    return keys_of(cluster, argv, {"LOGNAME": user}, unused)[0]


def with_host(**fields: object) -> Cluster:
    return msgspec.structs.replace(POD, hosts=(msgspec.structs.replace(HOST, **fields),))


def test_each_host_has_its_key_whatever_it_is_called() -> None:
    assert len(set(keys_of(POD, ARGV, {}, unused).values())) == 2
    assert key(with_host(name="other", hints={"login": "ask"})) == key()


def test_all_that_decides_the_way_changes_the_key(ssh: Path) -> None:
    found = [
        key(),
        key(argv=("python3.12", "-c", "pass")),
        key(user="other"),
        key(msgspec.structs.replace(POD, gateway="gate")),
        key(msgspec.structs.replace(POD, host_keys=HostKeys.STRICT)),
        *(key(with_host(**{name: "x"})) for name in ("address", "user", "identity_file", "key_alias")),
        key(with_host(port=2222)),
    ]
    (ssh / "config").write_text("Include more\n")
    (ssh / "more").write_text("Host 10.0.0.1\n  HostName 10.0.0.3\n")
    found.append(key())
    assert len(set(found)) == len(found)


def test_a_host_behind_a_proxy_command_has_no_key() -> None:
    assert keys_of(with_host(proxy_command="relay %h"), ARGV, {}, unused) == {}


@pytest.mark.parametrize("line", ["Match host 10.* exec vpn-is-up", "CanonicalizeHostname yes"])
def test_programs_and_dns_in_ssh_config_are_asked_each_time(ssh: Path, line: str) -> None:
    (ssh / "config").write_text(f"{line}\n")
    one = keys_of(POD, ARGV, {}, lambda: ["there", "there"])
    other = keys_of(POD, ARGV, {}, lambda: ["elsewhere", ""])
    assert list(one) == [0, 1]
    assert list(other) == [0]
    assert one[0] != other[0]
