"""Test the package: its dependencies, and errors for wrong arguments."""

import subprocess
import sys

import numpy as np
import pytest

import taper_openinfer
from taper_openinfer.language.graph import Return
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


def doors(folder):
    """Return functions by name, each with arguments that are right, and an open model."""
    oi = taper_openinfer
    contents = {"N": oi.SizeVar(2), "w": oi.TensorSpec(np.zeros(2, np.float32))}
    oi.write_model(folder / "m.oinf", contents)
    (folder / "p.oi").write_text("block entry {}")
    graph, model = oi.load_program(folder / "p.oi"), oi.open_model(folder / "m.oinf")
    text = "dynamic { x: f32[N]; } volatile { y: f32[N]; } block entry { op relu(x) >> y; return; }"
    simulator = oi.Simulator(model, oi.parse(text))
    executor = simulator.make_executor()
    array = np.ones(2, np.float32)
    executor.insert_dynamic("x", array)
    executor.step()
    return {
        "parse": (oi.parse, {"text": "block entry {}", "name": "n"}),
        "graph_from_json": (oi.graph_from_json, {"text": oi.graph_to_json(graph), "name": "n"}),
        "graph_to_json": (oi.graph_to_json, {"graph": graph, "era": "later"}),
        "load_program": (oi.load_program, {"path": "p.oi"}),
        "open_model": (
            lambda **given: oi.open_model(**given).close(), {"path": "m.oinf", "limits": None},
        ),
        "Model.of": (oi.Model.of, {"source": contents, "version": None}),
        "Model.from_bytes": (
            oi.Model.from_bytes, {"data": (folder / "m.oinf").read_bytes(), "limits": None},
        ),
        "model.var_info": (model.var_info, {"name": "w"}),
        "model.read": (model.read, {"name": "w"}),
        "model.size_of": (model.size_of, {"name": "N"}),
        "model.resolve_dim_value": (model.resolve_dim_value, {"dim": "2*N"}),
        "model.resolve_shape": (model.resolve_shape, {"dims": ["N", "2"]}),
        "model.resolve_len": (model.resolve_len, {"dims": ["N", "2"]}),
        "write_model": (
            oi.write_model, {"path": "w.oinf", "source": contents, "version": None},
        ),
        "Bitset.of": (oi.Bitset.of, {"bits": [True, False]}),
        "Simulator": (
            oi.Simulator, {"model": model, "graph": graph, "device": "Cpu", "link": "lenient"},
        ),
        "executor.insert_dynamic": (executor.insert_dynamic, {"name": "x", "value": array}),
        "executor.fetch": (executor.fetch, {"name": "y"}),
        "executor.state": (executor.state, {"name": "y"}),
        "Random.generate_with_seed": (
            oi.Random.generate_with_seed,
            {"seed": 1, "bounds": (0.0, 1.0), "count": 2, "dtype": "f32"},
        ),
        "format_truncated": (oi.format_truncated, {"array": [1.0], "dtype": None}),
        "graph.add_var": (
            lambda **given: oi.Graph().add_var(**given),
            {"name": "v", "kind": "volatile", "dtype": "f32", "dims": ["N"], "init": None,
             "ref_name": None, "pattern": None, "table_indices": (), "table": False,
             "auto_dim": (), "fixed": None},
        ),
        "graph.add_block": (lambda name: oi.Graph().add_block(name), {"name": "b"}),
        "graph.add_node": (graph.add_node, {"block": "entry", "kind": Return()}),
        "compile_program": (
            oi.compile_program,
            {"program": graph, "model": model, "outputs": None, "strict": False, "passes": None},
        ),
    }, model  # fmt: skip


def test_wrong_arguments_are_refused_by_documented_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some texts are names of files
    given, model = doors(tmp_path)
    with model:
        assert not undocumented_errors(given)


def test_a_number_is_no_path(tmp_path):
    """It would be the descriptor of a file that someone else has open."""
    path = tmp_path / "m.oinf"
    taper_openinfer.write_model(path, {"N": taper_openinfer.SizeVar(2)})
    with path.open("rb") as file:
        for function in (taper_openinfer.open_model, taper_openinfer.load_program):
            with pytest.raises(InputError, match="expected a path, got int"):
                function(file.fileno())
        assert file.read(4) == b"OINF"
