"""The package: what it needs, and how it refuses wrong arguments."""

import subprocess
import sys
from pathlib import Path

import pytest

import taper_openinfer
from taper_runtime.base.errors import InputError
from wrong_arguments import undocumented_errors

#: Makes imports fail as where neither torch nor the frontend is installed.
_HIDE = """
import sys
from pathlib import Path

import pytest

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "taper_frontend"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def _run(code):
    done = subprocess.run(
        [sys.executable, "-c", _HIDE + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_but_the_compiler_imports_without_the_frontend():
    code = """
import pkgutil
from importlib import import_module
import taper_openinfer
for module in pkgutil.walk_packages(taper_openinfer.__path__, "taper_openinfer."):
    if not module.name.startswith("taper_openinfer.compiler"):
        print(import_module(module.name).__name__)
"""
    names = _run(code).split()
    assert "taper_openinfer.cli.compile" in names
    assert "taper_openinfer.simulator.executor" in names
    assert len(names) > 40


def test_the_compiler_says_what_to_install():
    code = """
import taper_openinfer
from taper_runtime.base.errors import InputError
from taper_runtime.cli import main
try:
    taper_openinfer.compile_program
except ImportError as error:
    print(error.name, error)
sys.stderr = sys.stdout
print(main(["compile", "p.oi", "m.oinf", "-o", "m.taper"]))
"""
    first, second, status = _run(code).splitlines()
    assert first.startswith("taper_frontend programs are compiled by taper-frontend, which is not")
    assert first.endswith("`pip install 'taper-openinfer[compile]'`")
    assert second == f"taper: {first.removeprefix('taper_frontend ')}"
    assert status == "1"


def test_every_public_name_is_there_when_it_is_asked_for():
    for name in taper_openinfer.__all__:
        if name != "compile_program":
            assert getattr(taper_openinfer, name).__module__.startswith("taper_openinfer.")
    assert not hasattr(taper_openinfer, "simulate")


def test_wrong_arguments_are_refused_by_documented_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some texts are names of files
    size = {"N": taper_openinfer.SizeVar(2)}
    taper_openinfer.write_model("m.oinf", size)
    Path("p.oi").write_text("block entry {}")
    doors = {
        "parse": (taper_openinfer.parse, {"text": "entry { x = 1; }", "name": "n"}),
        "graph_from_json": (taper_openinfer.graph_from_json, {"text": "{}", "name": "n"}),
        "load_program": (taper_openinfer.load_program, {"path": "p.oi"}),
        "open_model": (taper_openinfer.open_model, {"path": "m.oinf"}),
        "Model.of": (taper_openinfer.Model.of, {"source": size}),
        "write_model": (taper_openinfer.write_model, {"path": "w.oinf", "source": size}),
        "format_truncated": (taper_openinfer.format_truncated, {"array": [1.0]}),
    }
    assert not undocumented_errors(doors)


def test_a_number_is_no_path(tmp_path):
    """It would be the descriptor of a file that someone else has open."""
    path = tmp_path / "m.oinf"
    taper_openinfer.write_model(path, {"N": taper_openinfer.SizeVar(2)})
    with path.open("rb") as file:
        for function in (taper_openinfer.open_model, taper_openinfer.load_program):
            with pytest.raises(InputError, match="expected a path, got int"):
                function(file.fileno())
        assert file.read(4) == b"OINF"
