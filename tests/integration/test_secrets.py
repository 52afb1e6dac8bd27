"""Secret values in runs: handed on to every rank, and in nothing that mesh writes or shows."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import Done, Home
from tests.integration.test_attach import left, runs, size
from tests.lab import eventually

# Writes a text with the secret in it, cut at random places: to stdout and stderr in turn, or all to one of them.
CUTS = """
import os, random, time
number = random.Random(int(os.environ["SEED"]) + int(os.environ["RANK"]))
token = os.environ["TOKEN"].encode()
data = b"".join(bytes(number.choices(range(32, 127), k=number.randrange(9))) + token + b"\\n" for _ in range(100))
begin = 0
for end in [*sorted(number.sample(range(len(data)), 250)), len(data)]:
    os.write(1 + int(os.environ["RANK"]) % 2, data[begin:end])
    begin = end
    time.sleep(0.001 * number.randrange(3))
"""

# Writes bytes with the secret in them until a file says that it is enough.
NOISE = """
import os, random, time
number, count = random.Random(int(os.environ["RANK"])), 0
token = os.environ["TOKEN"].encode()
while not os.path.exists(os.environ["ENOUGH"]):
    data = number.randbytes(number.randrange(3000)) + token + number.randbytes(number.randrange(50))
    cut = number.randrange(len(data))
    for part in (data[:cut], data[cut:]):
        while part:
            part = part[os.write(1, part):]
        time.sleep(0.01)
    count += 1
with open("count-" + os.environ["RANK"], "w") as file:
    file.write(str(count))
"""


def new_token() -> str:
    token = "".join(random.SystemRandom().choices("abcdefghijklmnopqrstuvwxyz0123456789_-", k=40))
    print(f"token {token}")
    return token


@pytest.fixture
def token(home: Home) -> str:
    """A secret of 40 characters in a variable that mesh.yaml names."""
    home.files(mesh__yaml="secret: [TOKEN]\n")
    home.environ["TOKEN"] = new_token()
    return home.environ["TOKEN"]


def places_of(token: str, directory: Path) -> list[Path]:
    """Return the files that hold the token."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if token.encode() in path.read_bytes()]


def said(done: Done) -> bytes:
    return done.out + done.err.encode()


def without_beginnings(data: bytes, token: str) -> bytes:
    """Return output without beginnings of the token before masks: one is shown where the rest comes late."""
    beginnings = b"|".join(re.escape(token[:size].encode()) for size in range(len(token) - 1, 0, -1))
    return re.sub(b"(?:" + beginnings + rb")\*\*\*", b"***", data)


@pytest.mark.parametrize("show", [("--output", "all"), ("--output", "fold"), ("--output", "rank0"), ("--json",)])
def test_a_secret_in_a_thousand_random_cuts_is_nowhere(home: Home, token: str, show: tuple[str, ...]) -> None:
    home.environ["SEED"] = str(random.randrange(1 << 32))
    print(f"seed {home.environ['SEED']}")
    home.files(cuts__py=CUTS)
    done = home.mesh("run", *show, "--env", f"SEED={home.environ['SEED']}", "local:4", "python3", "cuts.py", token)
    assert done.status == 0, done.err
    assert places_of(token, home.path) == []
    for words in (("logs",), ("runs",), ("runs", "--json"), ("logs", "--output", "fold")):
        assert token.encode() not in said(home.mesh(*words))
    assert token.encode() not in said(done)
    (directory,) = runs(home).iterdir()
    written = b"".join(path.read_bytes() for path in sorted(directory.glob("logs/rank-*")))
    assert written.count(b"***\n") == 400


def test_prerun_errors_and_the_verdict_have_no_secret(home: Home, token: str) -> None:
    home.files(mesh__yaml="secret: [TOKEN]\nprerun: ['echo prepared with $TOKEN']\n")
    done = home.mesh("run", "local", f"echo {token} >&2; echo 'ValueError: bad key '$TOKEN >&2; exit 3")
    assert done.status == 3
    assert "ValueError: bad key ***" in done.err
    assert "prepared with ***" in done.err
    missing = home.mesh("run", "local", f"./{token}")
    assert missing.status == 127
    assert "***" in missing.err
    for words in (("--dry-run", "local", "echo", token), ("local:x", token), ("local", "--nproc", token)):
        assert token.encode() not in said(home.mesh("run", *words))
    home.files(mesh__yaml=f"secret: [TOKEN]\nprerun: ['false {token}']\n")
    failed = home.mesh("run", "local", "true")
    assert failed.status == 125
    for one in (done, missing, failed):
        assert token.encode() not in said(one)
    assert places_of(token, home.path / ".local") == []


def test_a_secret_goes_to_every_rank_as_pass_does(home: Home, token: str) -> None:
    done = home.mesh("exec", "local", "printf %s $TOKEN | rev")
    assert done.status == 0, done.err
    assert sorted(done.out.splitlines()) == [f"[{rank}] {token[::-1]}".encode() for rank in range(2)]


def test_an_env_file_gives_variables_that_are_masked(home: Home) -> None:
    home.files(keys__env="# keys\nexport FIRST='first secret'\nSECOND=second-secret\n\n")
    done = home.mesh("exec", "--env-file", "keys.env", "--env", "SECOND=another value", "local:1", "env | sort")
    assert done.status == 0, done.err
    assert b"FIRST=***" in done.out
    assert b"SECOND=***" in done.out
    shown = home.mesh("exec", "--env-file", "keys.env", "local:1", "echo $FIRST | wc -c; echo second-secret")
    assert shown.out == b"[0] 13\n[0] ***\n"


def test_an_env_file_that_is_sent_with_the_workspace_is_named(home: Home) -> None:
    home.files(keys__env="FIRST=first-secret\n")
    done = home.mesh("run", "--env-file", "keys.env", "local:1", "true")
    assert "keys.env of --env-file is sent with the workspace; `ignore: [/keys.env]` in mesh.yaml avoids it" in done.err
    home.files(mesh__yaml="ignore: [/keys.env]\n")
    assert "keys.env" not in home.mesh("run", "--env-file", "keys.env", "local:1", "true").err


@pytest.mark.parametrize(
    ("files", "words", "error"),
    [
        ({"mesh__yaml": "secret: [SHORT]\n"}, (), "secret: SHORT: its value has fewer than 8 characters"),
        ({"keys__env": "A=1234567\n"}, ("--env-file", "keys.env"), "--env-file: A: its value has fewer than 8"),
        ({"keys__env": "\nnonsense\n"}, ("--env-file", "keys.env"), "keys.env:2: expected NAME=VALUE"),
        ({"keys__env": "A='open value\n"}, ("--env-file", "keys.env"), "keys.env:1: A: expected a closing '"),
        ({}, ("--env-file", "none.env"), "--env-file: cannot read none.env"),
    ],
)
def test_values_that_cannot_be_masked_are_refused(
    home: Home, files: dict[str, str], words: tuple[str, ...], error: str
) -> None:
    home.files(**files)
    home.environ["SHORT"] = "1234567"
    done = home.mesh("exec", *words, "local:1", "true")
    assert done.status == 2
    assert error in done.err
    assert "1234567" not in done.err
    assert "nonsense" not in done.err


def test_the_beginning_of_a_secret_at_a_prompt_is_shown(home: Home, token: str) -> None:
    script = "printf %.3s $TOKEN; until [ -e enough ]; do sleep 0.05; done; printf '%s\\n' ${TOKEN#???}"
    with home.popen("exec", "--output", "rank0", "local:1", f"cd {home.project}; {script}") as process:
        assert process.stdout is not None
        shown = b""
        while len(shown) < 3:
            shown += os.read(process.stdout.fileno(), 100)
        assert shown == token[:3].encode()
        (home.project / "enough").touch()
        shown += process.stdout.read()
        assert process.wait() == 0
        assert process.stderr is not None
        process.stderr.close()
    assert shown == token[:3].encode() + b"***\n"
    assert places_of(token, home.path) == []


def test_clients_that_are_killed_and_attach_mask_every_byte_once(home: Home, tmp_path: Path, token: str) -> None:
    home.files(noise__py=NOISE)
    enough = tmp_path / "enough"
    home.environ["ENOUGH"] = str(enough)
    run = left(home, "--env", f"ENOUGH={enough}", "local:2", "python3", "noise.py")
    directory = runs(home) / run
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        before = size(directory)
        with home.popen("attach", "--output", "none", run) as process:
            assert eventually(lambda before=before: size(directory) > before + 20_000)
            process.send_signal(number)
            process.communicate()
    enough.touch()
    done = home.mesh("attach", "--output", "none", run)
    assert done.status == 0, done.err
    for rank in range(2):
        counts = list(home.path.glob(f".mesh/local/{rank}/workspaces/*/count-{rank}"))
        number = random.Random(rank)
        expected = bytearray()  # and not bytes, which are copied for each addition: minutes, if the run was long
        for _ in range(int(counts[0].read_text())):
            data = number.randbytes(number.randrange(3000)) + token.encode()
            data += number.randbytes(number.randrange(50))
            number.randrange(len(data))
            expected += data
        log = directory / f"logs/rank-{rank:04d}.out"
        assert without_beginnings(log.read_bytes(), token) == without_beginnings(
            bytes(expected).replace(token.encode(), b"***"), token
        )
    assert places_of(token, home.path / ".local") == []
    again = home.mesh("attach", "--from", "start", "--output", "rank0", run)
    assert token.encode() not in said(again)


def test_a_client_without_the_value_says_that_it_cannot_mask(home: Home, tmp_path: Path, token: str) -> None:
    enough = tmp_path / "enough"
    run = left(home, "local:1", f"until [ -e {enough} ]; do sleep 0.05; done; echo $TOKEN")
    del home.environ["TOKEN"]
    enough.touch()
    done = home.mesh("attach", run)
    assert "TOKEN: not set here" in done.err
    assert token.encode() in done.out


def test_events_of_other_commands_have_no_secret(home: Home, tmp_path: Path, token: str) -> None:
    enough = tmp_path / "enough"
    run = left(home, "local:1", "sh", "-c", f"until [ -e {enough} ]; do sleep 0.05; done", token)
    try:
        listed = home.mesh("ps", "local:1")
        assert run in listed.out.decode()
        for words in (("ps", "--json", "local:1"), ("stacks", run), ("stacks", "--json", run), ("check", "local:1")):
            assert token.encode() not in said(home.mesh(*words)), words
        assert token.encode() not in said(listed)
    finally:
        enough.touch()
    assert home.mesh("attach", "--json", run).status == 0
    events = [json.loads(line) for line in (runs(home) / run / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "finished"
    assert places_of(token, home.path / ".local") == []


def test_mesh_config_shows_no_secret(home: Home, token: str) -> None:
    home.environ["WRITTEN"] = new_token()
    text = f"secret: [TOKEN, WRITTEN]\nenv: {{WRITTEN: {token}}}\nprerun: ['echo {token}']\nnotify: [bell]\n"
    home.files(mesh__yaml=text)
    shown = home.mesh("config", "--json")
    assert shown.status == 0
    assert token.encode() not in said(shown)
    found = {one["name"]: (one["value"], one["place"]) for one in json.loads(shown.out)}
    assert found["env.TOKEN"] == ("(not shown)", "environment, by mesh.yaml:1")
    assert found["env.WRITTEN"] == ("(not shown)", "mesh.yaml:2")
    assert found["prerun"] == ("echo ***", "mesh.yaml:3")
    assert found["notify"] == ("bell", "mesh.yaml:4")


@pytest.mark.parametrize("flag", ["--name", "--tag"])
def test_a_name_with_a_secret_in_it_is_refused(home: Home, token: str, flag: str) -> None:
    refused = home.mesh("run", flag, f"a-{token}", "local:1", "true")
    assert (refused.status, runs(home).exists()) == (2, False)
    assert token.encode() not in said(refused)
    assert f"{flag}: holds the value of a secret variable" in refused.err


def test_the_notice_about_a_shell_has_no_secret(home: Home, token: str) -> None:
    done = home.mesh("exec", "local:1", "echo", token, "&&", "true")
    assert "no shell reads && here; for bash: mesh exec local:1 'echo *** && true'" in done.err
    assert token.encode() not in said(done)


ENGINE = """\
#!/bin/sh
case $1 in
    image) echo sha256:0123 ;;
    *) if [ -z "$MESH_MODULES" ]; then echo 'no daemon' >&2; exit 1; fi ;;
esac
"""


def test_values_of_docker_env_are_not_written_where_the_environment_fails(home: Home) -> None:
    """mesh enters the environment by a text that holds them, which fails where the engine has gone meanwhile."""
    engine = home.path / ".local/bin/docker"
    engine.parent.mkdir(parents=True)
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    home.files(mesh__yaml="docker:\n  image: box:1\n  env: [KEY=never-to-be-seen]\n")
    for options in ([], ["--json"], ["-d"]):
        done = home.mesh("run", *options, "local:2", "true")
        assert done.status == 125
        assert "docker: the environment could not be entered (exit 125)" in done.err
        assert "never-to-be-seen" not in done.err + done.out.decode()
    written = [path for path in (home.path / ".local/state").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if b"never-to-be-seen" in path.read_bytes()]
