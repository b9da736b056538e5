"""A plugin of pytest: transformers' tests of ``torch.export`` test the format "taper".

They compare what an exported program returns with what the model returns. Here the program is a
plan, and a runner of :mod:`taper_frontend.transformers_backend` runs it.
"""

from __future__ import annotations

import importlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from taper_frontend.transformers_backend import TaperConfig, TaperExporter

if TYPE_CHECKING:
    import pytest

#: How often the plans of an architecture were run, and the tests of it by their outcome.
_RUNS: Counter[str] = Counter()
_TESTS: dict[str, Counter[str]] = {}

_current = ""


class _Exported:
    """An exported model that answers to what releases of transformers call it by."""

    def __init__(self, exported: Any) -> None:
        self._exported = exported

    def module(self) -> _Exported:
        """Return what is called."""
        return self

    runtime = module

    @property
    def runner(self) -> Any:
        """Return what runs the only plan."""
        (runner,) = self._exported.runners.values()
        return runner

    def __call__(self, **inputs: Any) -> Any:
        """Return what the model returns."""
        _RUNS[_current] += 1
        return self._exported(**inputs)


class _Exporter(TaperExporter):  # type: ignore[misc]  # its base class is Any to mypy
    """An exporter whose models are counted when they run."""

    def export(self, *args: Any, **kwargs: Any) -> _Exported:
        """Export a model."""
        return _Exported(super().export(*args, **kwargs))


def pytest_sessionstart() -> None:
    """Replace the exporter; the tests themselves compare, so that exports need not."""
    tests: Any = importlib.import_module("tests.exporters.test_export")
    tests.DynamoExporter = _Exporter
    tests.DynamoConfig = partial(TaperConfig, verify=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note of which architecture the test is."""
    global _current
    _current = item.path.parent.name


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test, or a part of one that failed."""
    name = report.nodeid.split("/")[-2]
    if report.when == "call" or report.outcome != "passed":
        _TESTS.setdefault(name, Counter())[report.outcome] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each architecture."""
    for name, outcomes in _TESTS.items():
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        terminalreporter.write_line(f"{name}: {_RUNS[name]} plans run; {counts}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if the tests of an architecture ran no plan."""
    if session.exitstatus == 0 and not all(_RUNS[name] for name in _TESTS):
        session.exitstatus = 1
