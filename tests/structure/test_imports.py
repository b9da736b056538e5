"""Hold that what measuring programs and examples import from this repository is there.

Most of these run by hand alone.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The folders in which modules are looked up.
FOLDERS = [ROOT, *ROOT.glob("packages/*/src"), ROOT / "examples", ROOT / "tests/support"]
PROGRAMS = sorted(
    path for folder in ("tools", "examples") for path in ROOT.glob(f"{folder}/**/*.py")
)


def file_of(module: str) -> Path | None:
    """Return the file of a module; None if it is from elsewhere."""
    places = (str(folder / module.replace(".", "/")) for folder in FOLDERS)
    files = (Path(place + end) for place in places for end in (".py", "/__init__.py", ".pyx"))
    return next((file for file in files if file.is_file()), None)


@cache
def names_in(file: Path) -> frozenset[str] | None:
    """Return the names that a module may have; None if they are not in its text."""
    if file.suffix == ".pyx":
        return None
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return None if found & {"__getattr__", "*"} else frozenset(found)


def missing(program: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(program.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        file = file_of(node.module)
        known = None if file is None else names_in(file)
        for alias in node.names if known is not None else ():
            name = f"{node.module}.{alias.name}"
            if alias.name not in known and file_of(name) is None:
                yield name


def test_imported_names_are_there():
    assert {path.name: names for path in PROGRAMS if (names := [*missing(path)])} == {}


def test_a_name_that_is_gone_is_found(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from export_minilm import SENTENCES, LENGTH")
    assert [*missing(program)] == ["export_minilm.LENGTH"]
