"""known_hosts, beside what OpenSSH makes of the same lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest
from msgspec.structs import replace

from mesh.backends.ssh.hostkeys import Checker
from mesh.config.tpu import TpuName
from mesh.core.cluster import Host, place_ranks
from mesh.core.errors import HostUnreachable
from mesh.core.events import PrepareFailed
from mesh.core.outcome import Cause, Outcome
from mesh.screen.summary import run_summary
from tests.unit.test_tpus import OUTSIDE, hosts_of, node

OLD, NEW = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
OTHER_KIND = paramiko.RSAKey.generate(1024)


def line(names: str, key: paramiko.PKey = OLD, marker: str = "") -> str:
    return f"{marker}{names} {key.get_name()} {key.get_base64()}\n"


def checker(path: Path, host: str = "tpu-1", port: int = 22, **more: bool) -> Checker:
    return Checker(host=host, port=port, files=(path,), **more)


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / ".ssh/known_hosts"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("names", "host", "port"),
    [
        ("tpu-1", "tpu-1", 22),
        ("tpu-0,tpu-1,10.0.0.1", "tpu-1", 22),
        ("tpu-*", "tpu-1", 22),
        ("tpu-?", "TPU-1", 22),
        ("[tpu-1]:2222", "tpu-1", 2222),
        ("[tpu-*]:2222", "tpu-1", 2222),
        ("tpu-1", "tpu-1", 2222),  # as OpenSSH: the same key of the same host
        ("fe80::1", "fe80::1", 22),
    ],
)
def test_a_known_key_is_accepted_and_nothing_is_written(known: Path, names: str, host: str, port: int) -> None:
    write(known, line(names))
    checker(known, host, port, strict=True).check(OLD)
    assert known.read_text() == line(names)


@pytest.mark.parametrize("names", ["tpu-2", "tpu-*,!tpu-1", "[tpu-1]:23", "# tpu-1", "tpu-1x"])
def test_other_hosts_do_not_count(known: Path, names: str) -> None:
    write(known, line(names))
    with pytest.raises(HostUnreachable, match="is not recorded"):
        checker(known, strict=True).check(OLD)


def test_hashed_names_are_those_of_ssh_keygen(known: Path) -> None:
    write(known, line("tpu-1") + line("[tpu-2]:23"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "tpu" not in known.read_text()
    checker(known, strict=True).check(OLD)
    checker(known, "tpu-2", 23, strict=True).check(OLD)


@pytest.mark.parametrize(("port", "hashed"), [(22, False), (2222, False), (22, True), (2222, True)])
def test_a_new_key_is_written_so_that_openssh_finds_it(known: Path, port: int, hashed: bool) -> None:
    checker(known, port=port, hashed=hashed).check(OLD)
    checker(known, port=port, hashed=hashed).check(OLD)
    assert len(known.read_text().splitlines()) == 1
    assert known.stat().st_mode & 0o777 == 0o600
    name = "tpu-1" if port == 22 else f"[tpu-1]:{port}"
    found = subprocess.run(["ssh-keygen", "-F", name, "-f", str(known)], capture_output=True, check=False)
    assert found.returncode == 0
    assert OLD.get_base64().encode() in found.stdout
    assert (b"tpu-1" in known.read_bytes()) != hashed


def test_a_file_without_a_newline_at_its_end(known: Path) -> None:
    write(known, line("other").rstrip("\n"))
    checker(known).check(NEW)
    assert len(known.read_text().splitlines()) == 2


def test_a_changed_key_is_refused_with_both_fingerprints(known: Path) -> None:
    write(known, "\n" + line("tpu-1"))
    with pytest.raises(HostUnreachable) as raised:
        checker(known).check(NEW)
    keygen = [
        subprocess.run(["ssh-keygen", "-lf", "-"], input=line("x", key).encode(), capture_output=True, check=True)
        for key in (OLD, NEW)
    ]
    for printed in keygen:
        assert printed.stdout.split()[1].decode() in str(raised.value)
    assert f"{known}:2" in str(raised.value)
    assert raised.value.hint.endswith(f"ssh-keygen -R 'tpu-1' -f {known}")


@pytest.mark.parametrize("port", [22, 2222])
def test_changed_keys_of_many_hosts_are_one_report_whose_hint_forgets_them(known: Path, port: int) -> None:
    count = 12
    hosts = [Host(name=f"h{number}", address=f"tpu-{number}") for number in range(count)]
    names = [checker(known, host.address, port).name for host in hosts]
    write(known, "".join(map(line, names)))
    failures = []
    for number, host in enumerate(hosts):
        with pytest.raises(HostUnreachable) as raised:
            checker(known, host.address, port).check(NEW)
        error = raised.value
        failures.append(PrepareFailed(time=1, node=number, step=error.step, message=str(error), hint=error.hint))
    ended = Outcome(run="r", exit_code=125, cause=Cause.PREPARE, started=0.0, ended=1.0, failures=tuple(failures))
    lines = run_summary(ended, place_ranks(hosts), None, lambda number: [], Path("/logs"))
    assert len(lines) == 5
    assert lines[1].startswith("12 hosts (h0, h1, ")
    assert f": the host key has changed; on h0: {known}:1 has " in lines[1]
    subprocess.run(["bash", "-c", lines[3]], check=True, capture_output=True)
    assert known.read_text() == ""


def test_another_tpu_at_the_same_address_has_a_key_of_its_own(known: Path) -> None:
    """Keys are recorded by the ids of TPUs: the new one has its own, and that is no key of the old one."""
    old, new = (
        hosts_of(TpuName(name="pod"), replace(node("pod", OUTSIDE), id=number)).hosts[0] for number in ("7", "8")
    )
    assert old.address == new.address
    checker(known, old.key_alias).check(OLD)
    checker(known, new.key_alias).check(NEW)
    for host, key, other in ((old, OLD, NEW), (new, NEW, OLD)):
        checker(known, host.key_alias).check(key)
        with pytest.raises(HostUnreachable, match="the host key has changed"):
            checker(known, host.key_alias).check(other)
    assert len(known.read_text().splitlines()) == 2


def test_a_key_of_another_kind_is_a_change_too(known: Path) -> None:
    write(known, line("tpu-1"))
    assert checker(known).known_kinds() == [OLD.get_name()]
    with pytest.raises(HostUnreachable, match="has changed"):
        checker(known).check(OTHER_KIND)


def test_a_revoked_key(known: Path) -> None:
    write(known, line("tpu-1", marker="@revoked ") + line("tpu-1"))
    with pytest.raises(HostUnreachable, match="is revoked"):
        checker(known).check(OLD)


def test_lines_that_are_none_do_no_harm(known: Path) -> None:
    write(known, "tpu-1\ntpu-1 ssh-rsa\ntpu-1 ssh-rsa !!!\n|1|x tpu\n|1|a|b ssh-rsa AAAA\n\xff\n" + line("tpu-1"))
    checker(known, strict=True).check(OLD)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostUnreachable, match="cannot be written"):
        checker(tmp_path / "file/known_hosts").check(OLD)
