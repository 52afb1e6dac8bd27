"""mesh again and mesh exec --diff, on the built-in cluster."""

from __future__ import annotations

import json

from tests.conftest import Home


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
