"""mesh again and mesh exec --diff, on the built-in cluster."""

from __future__ import annotations

import json
import signal

from tests.conftest import PATIENCE, Home


def test_the_failed_hosts_are_the_world(home: Home) -> None:
    nothing = home.mesh("again")
    assert nothing.status == 2
    assert "no mesh run or mesh exec was started in this directory" in nothing.err
    script = 'echo "$WORLD_SIZE $LR"; test "$WORLD_SIZE" = 1 || test "$RANK" != 1 || exit 3'
    first = home.mesh("exec", "--keep-going", "--env", "LR=hidden-value", "local:3", script)
    assert first.status == 3
    asked = home.mesh("again", "--failed")
    assert asked.status == 2
    assert "mesh again --env LR=VALUE" in asked.err
    done = home.mesh("again", "--failed", "--env", "LR=other-value")
    assert done.status == 0
    assert b"1 other-value" in done.out
    assert "==> mesh exec --env=LR=... --hosts=local-1 --keep-going local:3" in done.err
    runs = sorted((home.path / ".local/state/mesh/runs").glob("2*"))
    assert json.loads((runs[-1] / "run.json").read_text())["hosts"] == ["local-1"]
    assert not any(b"-value" in (run / "command.json").read_bytes() for run in runs)
    assert home.mesh("again", "--failed", "--env", "LR=x").status == 2  # none has failed now


def test_exec_shows_differences_alone(home: Home) -> None:
    done = home.mesh("exec", "--diff", "local:3", "echo same; test $RANK != 1 || echo more")
    assert done.status == 0
    shown = done.out.decode().splitlines()
    assert shown == ["--- ranks 0,2 (local-0, local-2)", "+++ rank 1 (local-1)", "@@ -1 +1,2 @@", " same", "+more"]
    assert "2 different outputs" in done.err
    for option in ("--json", "-d", "--output=all"):
        refused = home.mesh("exec", "--diff", option, "local:3", "true")
        assert refused.status == 2
        assert "--diff shows output once all ranks have ended" in refused.err


def test_each_attempt_is_a_run_of_its_own_and_the_last_one_counts(home: Home) -> None:
    script = 'echo "attempt $MESH_ATTEMPT"; test "$MESH_ATTEMPT" = 2 || exit 7'
    done = home.mesh("run", "--retries", "5", "--retry-on", "7,76", "local:1", script)
    assert done.status == 0, done.err
    assert [line for line in done.lines if "attempt" in line] == [f"[0] attempt {number}" for number in range(3)]
    assert done.err.count("ended with 7: starting attempt") == 2
    runs = sorted((home.path / ".local/state/mesh/runs").glob("2*"))
    assert [json.loads((run / "run.json").read_text())["exit_code"] for run in runs] == [7, 7, 0]
    assert home.mesh("run", "--retries", "5", "local:1", "exit 7").status == 7  # only a lost host is tried again


def test_ctrl_c_ends_all_attempts(home: Home) -> None:
    client = home.popen("run", "--retries", "9", "--retry-on", "130,1,143", "local:1", "echo up; exec sleep 1000")
    assert client.stdout is not None
    assert client.stdout.readline() == b"[0] up\n"
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 130
    assert len(list((home.path / ".local/state/mesh/runs").glob("2*"))) == 1
