"""Check the docstrings of the packages: how they begin, and which functions need one."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(ROOT.glob("packages/*/src/taper_*"))
FIRST_LINE = re.compile(r'(?:#[^\n]*\n|\s)*r?"""([^\n]*)')

#: Words that begin neither a command (the docstrings of modules and functions) nor a noun (those of
#: classes).
QUESTIONS = {"What", "Where", "How", "Which", "Whether", "Who", "Why", "When"}

#: Words that begin no command.
NOT_VERBS = {
    *QUESTIONS,
    *("The", "A", "An", "One", "Some", "All", "Every", "Each", "No", "None", "Not"),
    *("This", "That", "These", "It", "Its", "They"),
    *("As", "At", "By", "From", "If", "In", "Of", "On", "Up", "With"),
}

#: Words that begin no docstring of a file outside of the packages, where nouns may.
REFUSED = {*QUESTIONS, "The"}

#: A function whose body has at least this many lines needs a docstring.
LONG = 14


def first_lines(package: Path) -> dict[str, str]:
    """Return the first line of each module's docstring, by the module's path."""
    lines = {}
    for path in sorted(p for s in ("*.py", "*.pyx", "*.pxi") for p in package.rglob(s)):
        name = path.relative_to(ROOT).as_posix()
        found = FIRST_LINE.match(path.read_text(encoding="utf-8"))
        assert found, f"{name} has no docstring"
        lines[name] = found[1]
    return lines


def definitions(package: Path) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Yield each class and function of a package with its place, methods and inner ones too."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}", node


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_module_docstrings_begin_with_a_verb(package: Path) -> None:
    lines = first_lines(package)
    assert len(lines) > 20
    wrong = [f"{name}: {line}" for name, line in lines.items() if line.split()[0] in NOT_VERBS]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["tests", "tools", "examples", "asv_bench"])
def test_other_files_do_not_begin_with_a_question_or_an_article(folder: str) -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): text.splitlines()[0]
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (text := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert lines
    wrong = [f"{name}: {line}" for name, line in lines.items() if line.split()[0] in REFUSED]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_docstrings_begin_with_a_command_or_a_noun(package: Path) -> None:
    seen, wrong = 0, []
    for place, node in definitions(package):
        text = ast.get_docstring(node)
        if not text:
            continue
        seen += 1
        refused = QUESTIONS if isinstance(node, ast.ClassDef) else NOT_VERBS
        first = text.splitlines()[0]
        is_command = first[0].isupper() or isinstance(node, ast.ClassDef)
        if first.split()[0] in refused or not is_command or first[-1] not in ".?:":
            wrong.append(f"{place}: {first}")
    assert seen > 300
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_long_functions_have_docstrings(package: Path) -> None:
    wrong = []
    for place, node in definitions(package):
        if isinstance(node, ast.FunctionDef) and not ast.get_docstring(node):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            if lines >= LONG:
                wrong.append(f"{place}: {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_both_kinds_of_sources_are_read() -> None:
    runtime = first_lines(ROOT / "packages/runtime/src/taper_runtime")
    assert {path.rpartition(".")[2] for path in runtime} == {"py", "pyx", "pxi"}
