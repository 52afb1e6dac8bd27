"""mesh replay: the same output after the directory has changed, and the files that are nowhere any more."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.conftest import Home
from tests.integration.test_attach import runs
from tests.integration.test_run_directory import problems

SCRIPT = 'cat main.py data/*.txt; echo "$LR $TOKEN $MESH_GIT_COMMIT"; ls -l run.sh | cut -c1-10'


def git(home: Home, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "-C", str(home.project), *words], check=True, stdout=subprocess.DEVNULL)


def start(home: Home, settings: str) -> Path:
    """Run it once; return the directory of the run."""
    (home.project / "data").mkdir()
    home.files(main__py="print(1)\n", run__sh="true\n", mesh__yaml=f"env: {{LR: '1e-3'}}\nsecret: [TOKEN]\n{settings}")
    for number in range(20):
        (home.project / f"data/{number:02}.txt").write_text(f"text {number}\n")
    (home.project / "run.sh").chmod(0o750)
    return home.project


def last(home: Home) -> Path:
    return max(runs(home).iterdir())


def test_output_is_the_same_after_the_directory_has_changed_in_git(home: Home) -> None:
    home.environ["TOKEN"] = "first-secret-value"
    start(home, "")
    git(home, "init", "-q")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "first")
    (home.project / "main.py").write_text("print(2)\n")  # not committed
    first = home.mesh("run", "local:2", SCRIPT)
    assert first.status == 0, first.err
    run = last(home).name
    git(home, "commit", "-q", "-a", "-m", "second")
    (home.project / "main.py").write_text("print(3)\n")
    (home.project / "data/07.txt").unlink()
    (home.project / "data/08.txt").write_text("text X\n")
    (home.project / "more.txt").write_text("new\n")
    home.files(mesh__yaml="env: {LR: '5'}\n")
    home.environ["TOKEN"] = "second-secret-value"
    done = home.mesh("replay", run)
    assert done.status == 0, done.err
    assert sorted(done.lines) == sorted(first.lines)  # the secret is masked in both
    assert last(home).name != run
    trees = [events(runs(home) / one) for one in (run, last(home).name)]
    assert trees[0] == trees[1]
    assert (home.project / "main.py").read_text() == "print(3)\n"
    again = home.mesh("replay")  # a replay can be replayed
    assert (again.status, sorted(again.lines)) == (0, sorted(first.lines)), again.err
    about = json.loads((last(home) / "run.json").read_text())
    assert (about["tags"], problems(last(home))) == ([f"replay-{run}"], [])


def test_a_work_tree_that_differed_from_its_commit_still_does(home: Home) -> None:
    home.files(big="", main__py="print(1)\n")
    git(home, "init", "-q")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "first")
    show = 'echo "dirty $MESH_GIT_DIRTY"'
    for change, dirty in (({}, "0"), ({"new": "x"}, "1"), ({"big": "0123456789abcde\n" * 700_000}, "1")):
        home.files(**change)
        first, again = home.mesh("run", "local:1", show), home.mesh("replay")
        assert [first.lines, again.lines] == [[f"[0] dirty {dirty}"]] * 2, again.err
    path = sorted(runs(home).iterdir())[-2] / "run.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "spec": {**about["spec"], "groups": []}}))
    refused = home.mesh("replay", path.parent.name)
    assert (refused.status, "another version of mesh" in refused.err) == (2, True), refused.err


def events(directory: Path) -> set[str]:
    """The tree hashes that the hosts of a run had."""
    found = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return {event["tree"] for event in found if event["event"] == "synced"}


def test_kept_trees_have_everything_and_others_name_what_is_missing(home: Home) -> None:
    home.environ["TOKEN"] = "first-secret-value"
    start(home, "keep_tree: true\n")
    first = home.mesh("run", "--env", "MORE=1", "local:1", SCRIPT)
    assert first.status == 0, first.err
    kept = last(home).name
    home.files(mesh__yaml="env: {LR: '1e-3'}\nsecret: [TOKEN]\n")
    (home.project / "main.py").write_text("print(2)\n")
    assert home.mesh("run", "local:1", SCRIPT).status == 0
    lost = last(home).name
    for number in range(19):
        (home.project / f"data/{number:02}.txt").unlink()
    (home.project / "main.py").write_text("print(3)\n")
    asked = home.mesh("replay", kept)
    assert (asked.status, f"mesh replay {kept} --env MORE=VALUE" in asked.err) == (2, True), asked.err
    done = home.mesh("replay", kept, "--env", "MORE=1")
    assert (done.status, done.lines) == (0, first.lines), done.err
    count = len(list(runs(home).iterdir()))
    missing = home.mesh("replay", lost)  # equal files are in the kept tree
    assert (missing.status, missing.out) == (125, b""), missing.err
    assert "1 files of run" in missing.err or "main.py" in missing.err
    assert "data/07.txt" not in missing.err
    assert "keep_tree: true" in missing.err
    assert len(list(runs(home).iterdir())) == count
    for word, text in (("nothing", "no run 'nothing'"), (lost[:-1] + "zz", "no run")):
        unknown = home.mesh("replay", word)
        assert (unknown.status, text in unknown.err) == (2, True), unknown.err
    home.mesh("exec", "--name", "looks", "local:1", "true")
    kept_trees = home.path / ".local/state/mesh/kept/trees"
    assert len(list(kept_trees.iterdir())) == 1
    for tree in kept_trees.iterdir():
        os.utime(tree, (0, 0))  # trees without a run stay for an hour, as their run may be beginning
    assert home.mesh("runs", "prune", "--keep", "9").status == 0
    assert len(list(kept_trees.iterdir())) == 1
    assert home.mesh("runs", "prune", "--keep", "1").status == 0
    assert list(kept_trees.iterdir()) == []
    executed = home.mesh("replay", "looks")
    assert (executed.status, "was mesh exec" in executed.err) == (2, True), executed.err
