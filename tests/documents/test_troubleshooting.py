"""Check that the code has the messages which the page on troubleshooting quotes."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text()
ROW = re.compile(r"^\| `(.+?)`( \(.+?\))? \|", re.MULTILINE)

#: Of other programs: Python, meson, torchvision.
FOREIGN = {"No module named", "Unknown compiler", "operator torchvision", "missing 1 required"}


def words_of_the_code():
    """All texts in the code, a line each; what is computed stands as a space. Cython as it is."""
    for kind in ("*.pyx", "*.pxi"):
        for path in (ROOT / "packages").rglob(kind):
            yield path.read_text()
    for path in (ROOT / "packages").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value) if isinstance(part, ast.Constant) else " "
                    for part in node.values
                ]
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


CODE = "\n".join(words_of_the_code())
MESSAGES = [text for text, _ in ROW.findall(PAGE) if not text.startswith(tuple(FOREIGN))]


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_so(message):
    for part in filter(str.strip, message.split("...")):
        assert part.strip() in CODE


def test_there_are_messages():
    assert len(MESSAGES) > 20
