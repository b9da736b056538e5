"""Promotion gates: their sessions and files exist, and none passes by not running."""

import ast
import json
from pathlib import Path

import pytest

from tools import gates

ROOT = Path(__file__).parents[2]
PASSED = [(gate.text, "passed") for gate in gates.GATES]


def test_there_are_five_with_sessions_that_exist():
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    sessions = [each for gate in gates.GATES for each in gate.sessions]
    assert len(gates.GATES) == 5
    for name, *files in sessions:
        assert name in names
        assert all((ROOT / file).is_file() for file in files)


def run_all(changed=("packages/runtime/src/a.py", "tests/a.py"), **outcomes):
    """The results where each session succeeds but those named."""
    return [*gates.results(changed, lambda each: outcomes.get(each[0], "success"))]


def test_all_pass():
    assert run_all() == PASSED


@pytest.mark.parametrize(("outcome", "result"), [("failed", "failed"), ("skipped", "open")])
def test_a_session_that_does_not_succeed_is_named(outcome, result):
    found = run_all(cross=outcome)
    assert found[0][1].startswith(f"{result}; kernels: success")
    assert f"cross: {outcome}" in found[0][1]
    assert found[1:] == PASSED[1:]


@pytest.mark.parametrize(
    ("files", "result"),
    [
        (["packages/kernels/src/a.c", "packages/kernels/tests/a.c"], "success"),
        (["packages/runtime/src/a.py"], "failed"),
        (["docs/a.md"], "success"),
        ([], "success"),
    ],
)
def test_code_needs_tests(files, result):
    assert gates.judge_change(files) == result


def test_a_session_that_nox_does_not_know_has_failed():
    assert gates.run_session(["no_such_session"]) == "failed"


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        (["success", "success"], "success"),
        (["success", "skipped"], "skipped"),
        (["skipped", "failed"], "failed"),
        (["aborted"], "failed"),
        ([], "failed"),
    ],
)
def test_what_nox_reports_decides(outcomes, result, monkeypatch):
    def run(command, **_):
        report = Path(command[command.index("--report") + 1])
        report.write_text(json.dumps({"sessions": [{"result": each} for each in outcomes]}))

    monkeypatch.setattr(gates.subprocess, "run", run)
    assert gates.run_session(["lint"]) == result


def test_a_session_without_its_tools_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(gates.shutil, "which", lambda name: None)
    assert gates.run_session(["aarch64"]) == "skipped"
    assert "aarch64: skipped, because aarch64-linux-gnu-gcc, qemu" in capsys.readouterr().out
    sessions = {name for gate in gates.GATES for name, *_ in gate.sessions}
    assert gates.NEEDS.keys() <= sessions
    assert gates.NEEDS["cross"][0] in (ROOT / "packages/kernels/cross/windows.ini").read_text()


def test_an_unknown_revision_is_told_before_sessions_run(capsys):
    with pytest.raises(SystemExit):
        gates.main(["--since", "no-such-revision"])
    assert "--since: expected a revision, got 'no-such-revision'" in capsys.readouterr().err


def test_the_exit_code_tells_whether_all_pass(monkeypatch, capsys):
    for told, code in ((PASSED, 0), ([("1. a", "open; b: skipped")], 1)):
        monkeypatch.setattr(gates, "results", lambda files, told=told: told)
        assert gates.main(["--since", "HEAD"]) == code
        assert capsys.readouterr().out == "".join(f"{a}: {b}\n" for a, b in told)
