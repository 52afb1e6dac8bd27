"""Set-up of the tests' cluster of Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubecluster import build

NEWER = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main\n"
OLDER = "# a comment\ndeb [arch=amd64] http://deb.debian.org/debian bookworm main\ndeb-src http://x y main\n"


@pytest.mark.parametrize(("name", "text"), [("debian.sources", NEWER), ("sources.list", OLDER)])
def test_source_entries_are_made_of_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(build, "APT_SOURCES", (tmp_path / "nothing.sources", tmp_path / name))
    with pytest.raises(build.BuildFailed, match="there is no such file"):
        build._AptSources(tmp_path / "apt", tmp_path / "log")
    (tmp_path / name).write_text(text)
    build._AptSources(tmp_path / "apt", tmp_path / "log")
    made = (tmp_path / "apt" / f"source{Path(name).suffix}").read_text()
    assert made == text.replace("Types: deb", "Types: deb-src").replace("deb [", "deb-src [")
