"""Check the first lines that the modules of the packages have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(ROOT.glob("packages/*/src/taper_*"))
FIRST_LINE = re.compile(r'(?:#[^\n]*\n|\s)*r?"""([^\n]*)')

#: A module's first line says what the module does: it begins with a verb, not with one of these.
NOT_VERBS = {"What", "Where", "How", "Which", "The"}


def first_lines(package: Path) -> dict[str, str]:
    """Return the first line of each module's docstring, by the module's path."""
    lines = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyx")]):
        name = path.relative_to(ROOT).as_posix()
        found = FIRST_LINE.match(path.read_text(encoding="utf-8"))
        assert found, f"{name} has no docstring"
        lines[name] = found[1]
    return lines


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_module_docstrings_begin_with_a_verb(package: Path) -> None:
    lines = first_lines(package)
    assert len(lines) > 20
    wrong = [f"{name}: {line}" for name, line in lines.items() if line.split()[0] in NOT_VERBS]
    assert not wrong, "\n".join(wrong)


def test_both_kinds_of_sources_are_read() -> None:
    runtime = first_lines(ROOT / "packages/runtime/src/taper_runtime")
    assert {path.rpartition(".")[2] for path in runtime} == {"py", "pyx"}
