"""Run the example that switches between two sessions."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "switch_sessions.py"


def test_no_request_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *switches, answered = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in switches] == ["'memory_first'", "'balanced'"]
    count, _, sent, *_ = answered.split()
    assert count == sent
    assert int(sent) >= 40
