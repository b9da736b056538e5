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


def test_paths_of_the_readme_s_tree_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text.partition("## Where things are")[2].partition("\n## ")[0]
    folders = [ROOT]  # of the lines above, by their indentation
    named = 0
    for line in re.findall(r"^ {4}(.+)$", tree, flags=re.MULTILINE):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.findall(r"[\w./-]*(?:/|\.(?:pyx?|c|toml|build)\b)", line)
        assert names, line
        parent = folders[depth]
        folders[depth + 1 :] = [parent / names[0]]
        # those at the head of the line are in its parent, the others below the head
        head = {name for name in names if re.match(rf"\s*(?:[\w./-]+, )*{re.escape(name)}", line)}
        places = [parent] + [parent / name for name in head]
        for name in names:
            found = [parent] if name in head else places
            assert any((place / name).exists() for place in found), (line, name)
            named += 1
    assert named > 30
