"""The module docker: the words for the engine, the variables of a container, and the comparison of images."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.core.cluster import Host
from mesh.core.errors import UsageError
from mesh.core.module import Docker, ModuleError
from mesh.modules.docker import DockerEnvironment
from tests.container_words import GOLDEN, IMAGE, RUN, Desk, recorded

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=8)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


def docker(**keys: object) -> Docker:
    return Docker(**{"image": IMAGE, **keys})  # type: ignore[arg-type]


def test_the_words_of_all_configurations(tmp_path: Path) -> None:
    """After a change: ``python -m tests.container_words --write``"""
    assert recorded(tmp_path) == GOLDEN.read_text()
    assert GOLDEN.read_text().count("# ") >= 40


def words_after_image(words: Sequence[str]) -> list[str]:
    return list(words[words.index(IMAGE) + 1 :])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS)
def test_any_words_arrive_as_they_are(desk: Desk, words: list[str]) -> None:
    assert words_after_image(desk.call(docker(), words).words) == words


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, flag=VALUES.map(lambda text: f"--label=a={text}"), inside=VALUES.map(lambda text: f"/{text}"))
def test_any_value_flag_and_place_arrive_as_they_are(desk: Desk, value: str, flag: str, inside: str) -> None:
    inside = inside.replace(":", "") + "/x"
    made = docker(env=(f"MODE={value}",), flags=(flag,), mounts=(f"/usr:{inside}",), workdir=inside)
    call = desk.call(made, given={"TEXT": value})
    assert (call.environ["MODE"], call.environ["TEXT"]) == (value, value)
    assert call.words[call.words.index(IMAGE) - 1] == flag
    assert {"MODE", "TEXT"} < set(call.words)
    shown = call.words[call.words.index("-w") + 1]
    assert f"/usr:{shown}" in call.words
    assert os.path.normpath(shown) == os.path.normpath(inside)


def test_no_value_is_in_an_argv(tmp_path: Path) -> None:
    """Every process that the wrapped command starts is seen with its argv: /proc of this machine shows it to all."""
    made = docker(env=("TOKEN=hidden-1", "PATH=hidden-2:/bin"))
    module = DockerEnvironment(made)
    argv = module.wrap(("train",), ("KEY",), RUN)
    assert not [word for word in argv if "hidden" in word]
    call = Desk(tmp_path).call(made, given={"KEY": "hidden-3"})
    assert not [word for word in call.words if "hidden" in word]
    assert call.environ["TOKEN"] == "hidden-1"
    assert call.variables == "PATH=hidden-2:/bin\n"
    assert call.environ["PATH"] != "hidden-2:/bin"


def test_a_value_of_the_run_wins_but_not_over_what_stays_outside(desk: Desk) -> None:
    made = docker(env=("MODE=2", "HOME=/root"))
    call = desk.call(made, given={"MODE": "1", "HOME": str(desk.home)})
    assert call.environ["MODE"] == "1"
    assert call.variables == "HOME=/root\n"
    assert call.words.count("MODE") == 1


def test_a_rank_without_a_number_is_named_by_its_host(desk: Desk) -> None:
    call = desk.call(docker(), given={"RANK": "", "NODE_RANK": "5"})
    assert f"mesh-{RUN}-5" in call.words


def test_docker_is_preferred_to_podman(tmp_path: Path) -> None:
    enter = DockerEnvironment(docker()).enter
    for engines in ("docker podman", "podman"):
        desk = Desk(tmp_path / engines, engines)
        environ = {"PATH": f"{desk.place}/bin:/usr/bin:/bin"}
        shown = subprocess.run(
            ["bash", "-c", f"{enter}\necho $MESH_ENGINE; declare -F"], env=environ, capture_output=True, check=True
        ).stdout
        assert shown.decode() == engines.split()[0] + "\n"


@pytest.mark.parametrize(("engine", "told"), {"": "no docker and no podman", "podman": "no podman"}.items())
def test_a_host_without_an_engine(tmp_path: Path, engine: str, told: str) -> None:
    module = DockerEnvironment(docker(engine=engine))
    (step,) = module.steps((Host(name="h0", address="h0"),), 0)
    for name in ("bash", "id", "env", "sort", "cat"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    for text, status in ((step.check, 1), (step.apply, 125), (module.enter, 125)):
        done = subprocess.run(["/bin/bash", "-c", text], env={"PATH": str(tmp_path)}, capture_output=True, check=False)
        assert done.returncode == status
        last = done.stderr.decode().splitlines()[-1]
        assert last.removeprefix("docker: ").startswith(f"this host has {told}: sudo apt-get install ")


def test_a_mount_that_is_not_there_is_named(desk: Desk) -> None:
    call = desk.call(docker(mounts=("/no where:/data",)))
    assert call.status == 125
    assert call.err == "mesh: docker: no /no where on this host to mount: mkdir -p '/no where'\n"


def test_a_workspace_with_a_colon_or_quotes(tmp_path: Path) -> None:
    desk = Desk(tmp_path, workspace='a:b,"c')
    words = desk.call(docker()).words
    doubled = str(desk.workspace).replace('"', '""')
    assert words[words.index("--mount") + 1] == f'type=bind,"source={doubled}","target={doubled}"'


@pytest.mark.parametrize("flag", ["-d", "--detach", "-it", "--tty"])
def test_a_flag_that_would_end_the_rank_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=f"flags: {flag} cannot be used"):
        DockerEnvironment(docker(flags=(flag,)))


@pytest.mark.parametrize("text", ["", ":", "a:", ":/data", "/data:"])
def test_a_mount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no mount"):
        DockerEnvironment(docker(mounts=(text,)))


def test_lines_in_a_value_that_goes_by_the_file_are_refused() -> None:
    DockerEnvironment(docker(env=("TEXT=a\nb",)))
    with pytest.raises(UsageError, match="PATH cannot have several lines"):
        DockerEnvironment(docker(env=("PATH=a\nb",)))


def test_a_word_that_is_no_text_is_refused() -> None:
    with pytest.raises(ModuleError, match=r"'\\udcff' is no UTF-8"):
        DockerEnvironment(docker()).wrap(("echo", "\udcff"), (), RUN)


# ---- images


def joined(*facts: str) -> None:
    hosts = [Host(name=f"h{number}", address="x") for number in range(len(facts))]
    assert DockerEnvironment(docker()).join(hosts, [[fact] for fact in facts]) == ()


@pytest.mark.parametrize(
    "facts",
    [
        [A],
        [A, A + "\n"],
        [A, A.removeprefix("sha256:")],
        [f"{A} box@{B}", f"{'sha256:' + 'c' * 64} box@{B}"],  # two ways of storing one image
        [A, f"{A} box@{B}", B],
    ],
)
def test_the_same_image(facts: list[str]) -> None:
    joined(*facts)


def test_another_image_of_the_same_name_is_refused() -> None:
    with pytest.raises(ModuleError) as caught:
        joined(A, B, A)
    assert str(caught.value) == (
        "the image box:1 is not the same on all hosts: aaaaaaaaaaaa on h0, h2; bbbbbbbbbbbb on h1"
    )
    assert caught.value.hint == ("`docker pull box:1` on h1, or name the image by its digest: image: NAME@sha256:...")
    assert caught.value.exit_code == 125


def test_many_hosts_are_counted() -> None:
    with pytest.raises(ModuleError, match=r"aaaaaaaaaaaa on h0, h1, h2, h3, h4, h5, h6, h7 and 22 more; bb"):
        joined(*[A] * 30, B)


def test_a_host_that_reported_nothing_is_refused() -> None:
    with pytest.raises(ModuleError, match="h1 reported no image"):
        joined(A, "")


def test_texts_are_free_of_syntax_errors_and_of_the_image(tmp_path: Path) -> None:
    image = "$(touch made)`touch made`';touch made;'"
    module = DockerEnvironment(docker(image=image))
    (step,) = module.steps((Host(name="h0", address="h0"),), 0)
    assert (step.undo, step.files, step.sudo) == ("", (), False)
    for text in (step.check, step.apply, module.enter):
        subprocess.run(["bash", "-n", "-c", text], check=True)
    assert desk_words(tmp_path, image)[-2:] == [image, "true"]
    assert not list(tmp_path.rglob("made"))


def desk_words(place: Path, image: str) -> list[str]:
    return Desk(place).call(Docker(image=image), ["true"]).words


def test_shell_text_is_quoted_once(desk: Desk) -> None:
    text = "echo \"a b\" '$x' | cat"
    assert words_after_image(desk.call(docker(), ["bash", "-c", text]).words) == shlex.split(
        shlex.join(["bash", "-c", text])
    )
