"""Run programs written by hand, after OpenInfer: model files, texts, a simulator, a compiler.

>>> model = taper_openinfer.open_model("model.oinf")
>>> program = taper_openinfer.load_program("program.oi")
>>> simulator = taper_openinfer.Simulator(model, program, "CpuAvx2")
>>> executor = simulator.make_executor()
>>> executor.insert_dynamic("x", x)
>>> executor.step()
>>> y = executor.fetch("y")

``compile_program`` makes a plan of a program where taper-frontend is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_openinfer.compiler import compile_program
    from taper_openinfer.errors import (
        MissingCompilerError,
        NoKernelError,
        OinfError,
        OpenInferError,
        ProgramError,
        StepError,
    )
    from taper_openinfer.language.files import load_program
    from taper_openinfer.language.graph import Graph
    from taper_openinfer.language.graph_json import graph_from_json, graph_to_json
    from taper_openinfer.language.parser import parse
    from taper_openinfer.oinf.contents import (
        ArrayValue,
        Bitset,
        Quantization,
        ScalarValue,
        SizeVar,
        TensorSpec,
        UninitializedTensor,
    )
    from taper_openinfer.oinf.reader import Model, open_model
    from taper_openinfer.oinf.writer import write_model
    from taper_openinfer.simulator.executor import Executor
    from taper_openinfer.simulator.simulator import Simulator
    from taper_openinfer.simulator.variables import Random, format_truncated

__version__ = "0.1.0"

#: Where each public name comes from, when it is first used.
_LATER = {
    "ArrayValue": "oinf.contents",
    "Bitset": "oinf.contents",
    "Executor": "simulator.executor",
    "Graph": "language.graph",
    "Model": "oinf.reader",
    "MissingCompilerError": "errors",
    "NoKernelError": "errors",
    "OinfError": "errors",
    "OpenInferError": "errors",
    "ProgramError": "errors",
    "Quantization": "oinf.contents",
    "Random": "simulator.variables",
    "ScalarValue": "oinf.contents",
    "Simulator": "simulator.simulator",
    "SizeVar": "oinf.contents",
    "StepError": "errors",
    "TensorSpec": "oinf.contents",
    "UninitializedTensor": "oinf.contents",
    "compile_program": "compiler",
    "format_truncated": "simulator.variables",
    "graph_from_json": "language.graph_json",
    "graph_to_json": "language.graph_json",
    "load_program": "language.files",
    "open_model": "oinf.reader",
    "parse": "language.parser",
    "write_model": "oinf.writer",
}

__all__ = [
    "ArrayValue",
    "Bitset",
    "Executor",
    "Graph",
    "MissingCompilerError",
    "Model",
    "NoKernelError",
    "OinfError",
    "OpenInferError",
    "ProgramError",
    "Quantization",
    "Random",
    "ScalarValue",
    "Simulator",
    "SizeVar",
    "StepError",
    "TensorSpec",
    "UninitializedTensor",
    "compile_program",
    "format_truncated",
    "graph_from_json",
    "graph_to_json",
    "load_program",
    "open_model",
    "parse",
    "write_model",
]


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first used."""
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
