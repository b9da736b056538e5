"""Hold that no file of the packages is long: a long one has more than one job."""

from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"

SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h", ".inl", ".inc"}

#: The most lines of a file.
MOST = 700

#: Files that may be longer, each with the reason.
LONG: dict[str, str] = {}


def test_no_file_is_long() -> None:
    lines = {
        path.relative_to(PACKAGES).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGES.rglob("*")
        if path.suffix in SUFFIXES
    }
    assert len(lines) > 500
    assert {name: n for name, n in lines.items() if n > MOST}.keys() == LONG.keys()
