"""mesh bisect: a planted file among many, a planted host of four, and runs that do not end as they did."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Home
from tests.integration.test_attach import runs
from tests.lab import Lab


def run_of(home: Home, *words: str, status: int) -> str:
    """Start a run that ends with this status; return its id."""
    done = home.mesh("run", *words)
    assert done.status == status, done.err
    return max(path.name for path in runs(home).iterdir())


def test_a_planted_file_among_many_is_found_and_the_directory_stays_as_it_is(home: Home) -> None:
    """With MESH_TEST_FULL=1 there are 500."""
    count = 500
    home.files(mesh__yaml="keep_tree: true\n")
    files = [home.project / f"data-{number:03}.txt" for number in range(count)]
    for file in files:
        file.write_text(file.name)
    script = "! grep -q broken data-*.txt || exit 3"
    good = run_of(home, "--name", "good", "local:1", script, status=0)
    for file in files:
        file.write_text(f"changed {file.name}")
    files[3].write_text("broken")
    bad = run_of(home, "--name", "bad", "local:1", script, status=3)
    for file in files:
        file.write_text("of today")
    found = home.mesh("bisect", "good", "bad")
    assert (found.status, found.out) == (0, b"data-003.txt\n"), found.err
    assert f"{count // 2} of {count} changes" in found.err
    assert {file.read_text() for file in files} == {"of today"}
    records = [json.loads((path / "run.json").read_text()) for path in runs(home).iterdir()]
    trials = [about for about in records if about["run"] not in (good, bad)]
    assert {tuple(about["tags"])[-1] for about in trials} == {f"bisect-{good}"}
    assert 4 < len(trials) <= 30
    assert all(about["spec"]["share"] for about in trials)


@pytest.mark.root
@pytest.mark.sshd
def test_a_planted_host_of_four_is_found_and_runs_that_end_otherwise_end_it(pod: Home, lab: Lab) -> None:
    for host in lab.hosts[:3:2]:
        host.script("touch /tmp/planted")
    script = "test ! -e /tmp/planted || test $WORLD_SIZE = 1"
    good = run_of(pod, "--hosts", lab.hosts[0].address, "pod", script, status=0)
    bad = run_of(pod, "pod", script, status=1)
    lab.hosts[0].script("rm /tmp/planted")
    found = pod.mesh("bisect", good, bad)
    assert (found.status, found.out.decode()) == (0, f"host added: {lab.hosts[2].address}\n"), found.err
    lab.hosts[2].script("rm /tmp/planted")
    other = pod.mesh("bisect", good, bad)
    assert (other.status, other.out) == (1, b""), other.err
    assert f"run {bad} ended with 1, and ends with 0 now" in other.err


def test_runs_that_cannot_be_compared_are_refused(home: Home) -> None:
    good = run_of(home, "local:1", "exit 0 # same", status=0)
    same = run_of(home, "local:1", "exit 0 # same", status=0)
    other = run_of(home, "local:1", "exit 3", status=3)
    for words, text in (
        ((good, good), "both the good and the bad run"),
        ((good, same), "both runs ended with 0"),
        ((good, other), "the commands of the two runs differ"),
        ((good, "nothing"), "no run 'nothing'"),
        ((good,), "expected a good run and a bad one"),
        (("--max-runs", "1", good, other), "--max-runs: expected at least 2"),
        (("--max-runs", "x", good, other), "--max-runs: expected a number"),
    ):
        refused = home.mesh("bisect", *words)
        assert (refused.status, text in refused.err) == (2, True), refused.err
    assert len(list(runs(home).iterdir())) == 3


@pytest.mark.sshd
def test_ranks_have_the_order_of_the_two_runs(plain_pod: Home) -> None:
    script = 'test "$RANK" != 0 || case $HOME in */h1/*) exit 3;; esac'  # fails where rank 0 is on the second host
    good = run_of(plain_pod, "pod:0", script, status=0)
    bad = run_of(plain_pod, "pod:1,pod:0", script, status=3)
    found = plain_pod.mesh("bisect", good, bad)
    assert (found.status, found.out.decode()) == (0, "host added: 127.0.0.3\n"), found.err
    other = run_of(plain_pod, "pod:0,1", script, status=0)
    refused = plain_pod.mesh("bisect", other, bad)
    assert (refused.status, "different orders" in refused.err) == (2, True), refused.err
