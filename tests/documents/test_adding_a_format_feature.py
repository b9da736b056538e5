"""Apply the edits in docs/adding-a-format-feature.md to the runtime, and run its program."""

import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import taper_runtime
from plan_files import small_plan
from taper_runtime.base.errors import PlanFormatError

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-format-feature.md"
EDIT = re.compile(r"^```diff\n--- (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: A runtime that is installed in place is found by a hook before it is on the path.
PATH_ONLY = (
    "import sys\n"
    "sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
    "sys.path.insert(0, sys.argv[1])\n"
)


def changed_copy(directory):
    """A copy of the runtime with the page's edits; returns the files that these touch."""
    package = directory / "taper_runtime"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyx", "*.pxi", "*.pxd")
    shutil.copytree(Path(taper_runtime.__file__).parent, package, ignore=ignored)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None) or ""
        if name.startswith("taper_runtime.") and file.endswith(tuple(EXTENSION_SUFFIXES)):
            room = package.joinpath(*name.split(".")[1:-1])
            shutil.copy(file, room)
    touched = set()
    for path, edit in EDIT.findall(PAGE.read_text()):
        lines = edit.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] or "\n" for line in lines)
        text = (package / path).read_text()
        assert text.count(before) == 1, (path, before)
        (package / path).write_text(text.replace(before, after))
        touched.add(path)
    return touched


def test_edits_apply_and_the_program_runs(tmp_path):
    places = changed_copy(tmp_path / "copy")
    assert places == {"plan/plan.py", "file/fields.py", "plan/validate.py"}
    small_plan().save(tmp_path / "model.taper")
    (program,) = PROGRAM.findall(PAGE.read_text())
    check = "assert taper_runtime.__file__.startswith(sys.argv[1]), taper_runtime.__file__\n"
    command = [sys.executable, "-c", PATH_ONLY + program + check, str(tmp_path / "copy")]
    subprocess.run(command, check=True, cwd=tmp_path)
    with pytest.raises(
        PlanFormatError, match=r"expected a feature that this version knows .*, got 'labels'"
    ):
        taper_runtime.load(tmp_path / "labelled.taper")
