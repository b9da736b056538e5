"""Check that the files which the documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("packages", "tests", "tools", "docs", "examples", "asv_bench")

#: A file in code font by a path, whole or the end of it; or a folder of a package or of the root.
NAMED = re.compile(
    r"`((?:[\w.-]+/)+[\w-]+\.(?:pyx?|c|h|inl|inc|md|json)"
    rf"|(?:{'|'.join(FOLDERS)}|taper_\w+)(?:/[\w.-]+)+/?)`"
)


@pytest.fixture(scope="module")
def paths() -> list[str]:
    """All paths of the repository, each with a slash at both ends."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [f"/{path.relative_to(ROOT).as_posix()}/" for path in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_pages_name_exist(page: Path, paths: list[str]) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))
    lacking = [
        name for name in named if not any(path.endswith(f"/{name.strip('/')}/") for path in paths)
    ]
    assert sorted(lacking) == []


def test_paths_are_found() -> None:
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(design)) > 30
