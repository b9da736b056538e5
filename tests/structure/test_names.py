"""Hold that a name of a class or a file stands for one thing in the three packages together."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOTS = sorted(Path(__file__).parents[2].glob("packages/*/src/taper_*"))
PATHS = sorted(path for root in ROOTS for s in ("*.py", "*.pyx", "*.pxi") for path in root.rglob(s))

#: Class names that may stand in two packages, each with the reason.
CLASSES = {
    "Graph": "a public name of OpenInfer's",
    "Node": "OpenInfer's users build the nodes of a program",
    "TensorSpec": "a public name of OpenInfer's",
}

#: File names that may stand in several packages or rooms, each with the reason. An op's module in
#: ``taper_runtime.ops`` and that of its handlers in ``taper_frontend.lowering`` are a pair too.
FILES = {
    "c_delegate": "one compiles the subgraphs, the other runs them",
    "compile": "the compiler, and OpenInfer's verb",
    "delegates": "one registers those that compile subgraphs, the other those that run them",
    "dtypes": "each package with dtypes of its own",
    "errors": "each package with errors of its own",
    "executor": "of plans, and of OpenInfer's programs",
    "fingerprint": "of a plan, and of a graph before it is compiled",
    "graph": "of the compiler, and of OpenInfer's language",
    "kernels": "a verb of the command line, and what registers users' kernels",
    "options": "of sessions and runs, and of exports",
    "profile": "a verb of the command line, and what it shows",
    "reader": "one for each file format",
    "report": "a verb of the command line, and what it shows",
    "writer": "one for each file format",
}


def classes(path: Path) -> Iterator[str]:
    """Yield the names of the classes that a file defines."""
    yield from re.findall(r"^ *(?:cdef )?class (\w+)[(:]", path.read_text(), re.MULTILINE)


def twice(found: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the places of each name that stands in more than one."""
    places = defaultdict(list)
    for name, place in found:
        places[name].append(place)
    return {name: held for name, held in places.items() if len(held) > 1}


def is_op_and_handlers(places: list[str]) -> bool:
    """Whether two files are an op's and that of the handlers that lower to it."""
    return [str(Path(place).parent) for place in places] == [
        "taper_frontend/lowering",
        "taper_runtime/ops",
    ]


def modules() -> Iterator[tuple[str, str]]:
    """Yield the names of all files but ``__init__``, and where they are."""
    for root in ROOTS:
        for path in PATHS:
            if path.is_relative_to(root) and path.stem != "__init__":
                yield path.stem, str(path.relative_to(root.parent))


def test_class_names_stand_once() -> None:
    found = twice((name, str(path)) for path in PATHS for name in classes(path))
    assert found.keys() == CLASSES.keys(), found


def test_file_names_stand_once() -> None:
    found = {k: places for k, places in twice(modules()).items() if not is_op_and_handlers(places)}
    assert found.keys() == FILES.keys(), found


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_public_names_are_known_to_type_checkers(root: Path) -> None:
    """A name that is imported when it is first used stands under TYPE_CHECKING too."""
    tree = ast.parse((root / "__init__.py").read_text())
    known = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert lists
    assert set(ast.literal_eval(lists[0])) <= known
