"""What the guardian makes of the end of its agent."""

from __future__ import annotations

from mesh.core.events import Lost

from .conftest import Run


def test_it_tells_what_its_agent_has_failed_of(agent: Run) -> None:
    agent.prepare()
    agent.session._send(b'{"type":"nonsense"}\n')
    lost = agent.until(Lost)
    assert isinstance(lost, Lost)
    assert "it failed: " in lost.reason
    assert lost.reason.endswith("'do_nonsense'); its processes were ended")
