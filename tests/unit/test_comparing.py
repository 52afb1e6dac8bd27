"""What must be the same on all hosts, and is not; and what the table of a check shows."""

from __future__ import annotations

from typing import Any

import pytest

from mesh.api import HostReport
from mesh.check import comparing
from mesh.cli.reports import table
from mesh.core.findings import Finding, failed, ok, unknown, warning
from tests.facts import facts

JAX = {"program": "/usr/bin/python3", "python": "3.11.2", "jax": "0.4.30"}


def lines(found: Any) -> dict[int, list[tuple[str, str]]]:
    return {node: [(one.verdict.value, one.told) for one in findings] for node, findings in found.items()}


def versions(*each: dict[str, Any] | None, drivers: tuple[str, ...] = ("", "", "")) -> dict[int, Any]:
    pairs = enumerate(zip(each, drivers, strict=False))
    return lines(comparing.versions({node: facts(versions=one, driver=driver) for node, (one, driver) in pairs}))


def test_versions() -> None:
    same = ("ok", "3.11.2, jax 0.4.30 (/usr/bin/python3)")
    assert versions(JAX, JAX, JAX) == {0: [same], 1: [same], 2: [same]}
    assert versions(JAX, {**JAX, "python": "3.11.9"}, JAX)[1][0][0] == "ok"
    assert versions(JAX, {**JAX, "jax": "0.5.0"}, JAX) == {
        0: [same],
        1: [("failed", "jax 0.5.0, others have 0.4.30")],
        2: [same],
    }
    without = {name: value for name, value in JAX.items() if name != "jax"}
    assert versions(JAX, without)[1] == [("failed", "no jax, others have 0.4.30")]
    assert versions(without, without, JAX)[2] == [("failed", "jax 0.4.30, others have none")]
    assert versions(JAX, {**JAX, "python": "3.12.1"})[1] == [("warning", "python 3.12, others have 3.11")]
    assert versions(JAX, {"missing": ".venv"}, JAX)[1] == [("ok", ".venv is not there yet")]
    assert versions(JAX, {"error": "none", "hint": "x"}, JAX)[1] == [("warning", "none")]
    assert versions(None, None) == {}
    told = versions(JAX, JAX, JAX, drivers=("535.1", "550.2", "535.1"))
    assert told[1] == [("warning", "NVIDIA driver 550.2, others have 535.1")]


NFS = {"there": True, "kind": "directory", "type": "nfs4", "source": "server:/a", "reads": True, "writes": True}
NFS["holds"] = "3 entries, 0a0b0c0d"
DISK = {**NFS, "type": "ext4", "source": "/dev/sda1"}


@pytest.mark.parametrize(
    ("each", "bad"),
    [
        ([NFS, NFS, NFS], {}),
        ([DISK, {**DISK, "source": "/dev/sdb1"}, DISK], {}),
        ([NFS, {"there": False}, NFS], {1: ("failed", "/d is not there")}),
        ([NFS, DISK, NFS], {1: ("failed", "/d is on the host's own disk (ext4 /dev/sda1): nothing is mounted there")}),
        ([NFS, {**NFS, "source": "other:/a"}, NFS], {1: ("warning", "/d is another file system (nfs4 other:/a)")}),
        ([DISK, {**DISK, "holds": ""}, DISK], {1: ("warning", "/d holds something else than on h0")}),
        ([NFS, {**NFS, "reads": False}, NFS], {1: ("failed", "/d cannot be read by this user")}),
        ([NFS, {**NFS, "writes": False}, NFS], {1: ("warning", "/d cannot be written here, but on other hosts")}),
        (
            [NFS, {"error": "no answer within 2.5 s", "hint": "", "late": True}, NFS],
            {1: ("failed", "/d: no answer within 2.5 s")},
        ),
        ([{"there": False}] * 3, dict.fromkeys(range(3), ("failed", "/d is not there"))),
    ],
)
def test_paths(each: list[dict[str, Any]], bad: dict[int, tuple[str, str]]) -> None:
    found = comparing.paths({node: facts(paths={"/d": one}) for node, one in enumerate(each)}, ["h0", "h1", "h2"])
    told = lines(found)
    assert {node: findings[0] for node, findings in told.items() if findings[0][0] != "ok"} == bad
    assert all(one.hint for node in bad for one in found[node])
    assert all(len(findings) == 1 for findings in told.values())


def test_where_a_path_should_be_mounted_from() -> None:
    found = comparing.paths({0: facts(paths={"/d": NFS}), 1: facts(paths={"/d": {"there": False}})}, ["h0", "h1"])
    assert found[1][0].hint == "mount server:/a (nfs4) there, as it is on h0"


def report(host: str, *findings: Finding) -> HostReport:
    return HostReport(host=host, findings=findings)


def test_a_table_shows_what_is_worth_seeing() -> None:
    """Columns that are all ok are only named; of many hosts, those that are not are listed."""
    many = [report(f"h{number}", ok("bash"), ok("disk", f"{number} GB free"), ok("lock")) for number in range(30)]
    assert list(table(many)) == ["30 hosts all ok", "ok everywhere: bash, lock"]
    many[3] = report("h3", ok("bash"), failed("disk", "h3 is full", "free some"), warning("lock", "busy", "wait"))
    many[7] = report("h7", ok("bash"), failed("disk", "h7 is full", "free some"), unknown("lock"))
    assert list(table(many)) == [
        "host  disk                lock",
        "h3    FAILED: h3 is full  warn: busy",
        "h7    FAILED: h7 is full  -",
        "and 28 hosts all ok",
        "ok elsewhere: bash",
        "",
        "FAILED: h3, h7: disk: HOST is full",
        "    free some",
        "",
        "warning: h3: lock: busy",
        "    wait",
    ]
