"""Test the compiler and the package around it without torch."""

import subprocess
import sys

#: Makes `import torch` fail as where it is not installed, in case it is.
_HIDE = "import sys; sys.modules['torch'] = None\n"


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _HIDE + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_compiler_imports():
    code = """
import pkgutil
import taper_frontend.compiler as compiler
from importlib import import_module
for module in pkgutil.walk_packages(compiler.__path__, compiler.__name__ + "."):
    print(import_module(module.name).__name__)
"""
    names = _run(code).split()
    assert "taper_frontend.compiler.planning.planner" in names
    assert len(names) > 40


def test_a_graph_becomes_a_plan():
    code = """
import numpy as np
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.pipeline import run_pipeline
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.stages import PIPELINE
from taper_runtime import InferenceSession
graph = Graph()
x = graph.add_input("x", "float32", (2, 3))
w = graph.add_constant("w", np.ones((3, 4), np.float32))
graph.set_outputs([graph.add_node("RELU", [graph.add_node("MATMUL", [x, w])])])
run_pipeline(graph, PIPELINE)
session = InferenceSession(make_plan(graph))
print(session.run(None, {"x": np.ones((2, 3), np.float32)})[0].sum())
"""
    assert _run(code) == "24.0\n"


def test_export_and_explain_say_what_to_install():
    code = """
import taper_frontend
try:
    taper_frontend.explain
except ImportError as error:
    print(error)
for options in ({"module": print}, {"module": "m.pt2", "verify": "deep"}):
    try:
        taper_frontend.export(**options)
    except taper_frontend.ExportError as error:
        print(error)

del taper_frontend.archive_exporter, sys.modules["taper_frontend.archive_exporter"]
sys.modules["sympy"] = None
for name in [name for name in sys.modules if name.startswith("taper_frontend.lowering")]:
    del sys.modules[name]
try:
    taper_frontend.export
except ImportError as error:
    print(error)
"""
    lines = _run(code).splitlines()
    assert len(lines) == 4
    assert "expected the path of a PT2 archive" in lines[1]
    assert "verify='deep' needs torch" in lines[2]
    assert "pip install 'taper-frontend[pt2]'" in lines[3]
    assert all("pip install 'taper-frontend[torch]'" in line for line in lines)


def test_an_unknown_name_is_refused_as_python_does():
    code = "import taper_frontend\nprint(hasattr(taper_frontend, 'exprot'))"
    assert _run(code) == "False\n"
