"""Hold the layers of each package, its floors: a module imports its own layer and those below it.

Every import counts: at the top of a file, inside a function, and for type checkers alone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"

#: Layers of each package from the lowest to the highest: all folders, and the files beside them. A
#: module belongs to the longest name that it begins with; the package itself, its ``__init__``,
#: stands above its folders.
FLOORS = {
    "taper_runtime": (
        "base",
        "formats",
        "ops",
        "native",
        "machine",
        "plan",
        "file",
        "pt2",
        "extend",
        "executor",
        "reports",
        "session",
        "generation",
        "text",
        "speech",
        "serving",
        "capi",
        "",
        "cli",
    ),
    "taper_frontend": (
        "errors",
        "export_progress",
        "checkpoint",
        "compiler.graph",
        "compiler.analysis",
        "compiler.rules",
        "compiler.trace",
        "compiler.pipeline",
        "compiler.stages",
        "compiler.planning",
        "compiler.quantization",
        "compiler",
        "passes",
        "delegates",
        "quantized_checkpoint",
        "quantizing",
        "lowering",
        "pt2",
        "request",
        "capture",
        "verify",
        "quantized_plan",
        "tuned_plan",
        "lowered_to_plan",
        "plan_cache",
        "program_to_plan",
        "archive_exporter",
        "exporter",
        "explainer",
        "aoti",
        "transformers_backend",
        "decoders",
        "encoders",
        "compiler.module",  # an entry, like cli
        "",
        "cli",
    ),
    "taper_openinfer": (
        "errors",
        "dtypes",
        "language",
        "oinf",
        "ops",
        "check",
        "link",
        "native",
        "simulator",
        "compiler",
        "",
        "cli",
    ),
}


def sources(package: str) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    root = next(PACKAGES.glob(f"*/src/{package}"))
    found = {}
    for path in sorted(p for s in ("*.py", "*.pyx", "*.pxi") for p in root.rglob(s)):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, package: str, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the package's modules that a file imports."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(rf"^\s*from {package}\.([\w.]+) c?import", text, re.MULTILINE)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [
                name if name.removeprefix(f"{package}.") in modules else node.module
                for name in whole
            ]
        else:
            continue
        yield from (
            name.removeprefix(package).lstrip(".")
            for name in names
            if name == package or name.startswith(f"{package}.")
        )


def floor(module: str, package: str) -> int:
    """Return the floor of a module."""
    floors = FLOORS[package]
    layers = [layer for layer in floors if f"{module}.".startswith(f"{layer}.") or not layer]
    return floors.index(max(layers, key=len))


@pytest.mark.parametrize("package", FLOORS)
def test_no_import_goes_up(package: str) -> None:
    modules = sources(package)
    up = [
        f"{module or package} imports {target}"
        for module, path in modules.items()
        for target in imported(path, package, modules)
        if floor(target, package) > floor(module, package)
    ]
    assert not up


@pytest.mark.parametrize("package", FLOORS)
def test_no_package_names_one_above_it(package: str) -> None:
    """Not even for type checkers; the packages stand here from the lowest to the highest."""
    above = list(FLOORS)[list(FLOORS).index(package) + 1 :]
    pattern = re.compile(rf"^\s*(from|import) ({'|'.join(above) or '(?!)'})\b", re.MULTILINE)
    assert not [path for path in sources(package).values() if pattern.search(path.read_text())]


@pytest.mark.parametrize("package", FLOORS)
def test_every_layer_exists_and_holds_something(package: str) -> None:
    modules = sources(package)
    used = {floor(module, package) for module in modules}
    assert used == set(range(len(FLOORS[package])))


@pytest.mark.parametrize("package", FLOORS)
def test_every_folder_and_file_is_listed(package: str) -> None:
    """No module is in the layer of the package itself, from where it could import any other."""
    whole = FLOORS[package].index("")
    assert [m for m in sources(package) if m and floor(m, package) == whole] == []
