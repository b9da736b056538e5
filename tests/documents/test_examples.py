"""Run every example of the documents, page by page, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from marks import some

ROOT = Path(__file__).parents[2]

#: Pages whose blocks have tests of their own.
TESTED_ELSEWHERE = {"docs/adding-a-format-feature.md", "docs/adding-an-op.md", "docs/format.md"}

#: Pages that export whole models, of which other tests export smaller ones.
WHOLE_MODELS = [
    *("docs/how-to/embeddings.md", "docs/how-to/entries.md", "docs/how-to/speech.md"),
    "docs/how-to/transformers.md",
]

#: Pages that need a process of their own: transformers' exporters register caches with torch
#: otherwise than the page's own call, for the rest of a process.
ALONE = ["docs/how-to/transformers.md"]

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


def pages() -> list[str]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in paths if BLOCK.search(path.read_text())]
    return [name for name in names if name not in TESTED_ELSEWHERE]


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)  # run_decompositions
@pytest.mark.parametrize("page", some(pages(), WHOLE_MODELS))
def test_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page run one after the other, in one process and one directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFORMERS_SDPA_FORCE_GQA", raising=False)  # a page sets it
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # a page puts taper_runtime there
    programs = Path(sys.executable).parent  # where the taper command is
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    if page in ALONE:
        program = f"import test_examples; test_examples.run_blocks({page!r})"
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    else:
        run_blocks(page)


def run_blocks(page: str) -> None:
    """Run the blocks of a page one after the other."""
    text = (ROOT / page).read_text()
    main = ModuleType("__main__")  # torch looks there for what a body of control flow refers to
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        for block in BLOCK.finditer(text):
            run_block(page, text.count("\n", 0, block.start(2)), *block.groups(), vars(main))
    finally:
        sys.modules["__main__"] = before


def run_block(page: str, line: int, kind: str, body: str, namespace: dict[str, object]) -> None:
    """Run a block of Python, or the commands of a block of a console."""
    if kind == "python":
        exec(compile("\n" * line + body, page, "exec"), namespace)
        return
    for command in COMMAND.findall(body):
        ended = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, f"{page}:{line}: {command}\n{ended.stderr}"


def test_pages_with_examples_are_found() -> None:
    assert {"docs/tutorial.md", "docs/how-to/state.md"} <= set(pages())
