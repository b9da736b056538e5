"""OpenInfer's system: model files, programs as text, a simulator that runs them by steps.

>>> model = openinfer.open_model("model.oinf")
>>> simulator = openinfer.Simulator(model, openinfer.load_program("program.oi"), "CpuAvx2")
>>> executor = simulator.make_executor()
>>> executor.insert_dynamic("x", x)
>>> executor.step()
>>> y = executor.fetch("y")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_runtime.openinfer.errors import (
        NoKernelError,
        OinfError,
        OpenInferError,
        ProgramError,
        StepError,
    )
    from taper_runtime.openinfer.graph import Graph
    from taper_runtime.openinfer.graph_json import graph_from_json, graph_to_json
    from taper_runtime.openinfer.oinf.reader import Model, open_model
    from taper_runtime.openinfer.oinf.values import (
        ArrayValue,
        Bitset,
        Quantization,
        ScalarValue,
        SizeVar,
        TensorSpec,
        UninitializedTensor,
    )
    from taper_runtime.openinfer.oinf.writer import write_model
    from taper_runtime.openinfer.simulator.executor import Executor
    from taper_runtime.openinfer.simulator.simulator import Simulator
    from taper_runtime.openinfer.simulator.values import Random, format_truncated
    from taper_runtime.openinfer.text.files import load_program
    from taper_runtime.openinfer.text.parser import parse

#: Where each public name comes from, when it is first used.
_LATER = {
    "ArrayValue": "oinf.values",
    "Bitset": "oinf.values",
    "Executor": "simulator.executor",
    "Graph": "graph",
    "Model": "oinf.reader",
    "NoKernelError": "errors",
    "OinfError": "errors",
    "OpenInferError": "errors",
    "ProgramError": "errors",
    "Quantization": "oinf.values",
    "Random": "simulator.values",
    "ScalarValue": "oinf.values",
    "Simulator": "simulator.simulator",
    "SizeVar": "oinf.values",
    "StepError": "errors",
    "TensorSpec": "oinf.values",
    "UninitializedTensor": "oinf.values",
    "format_truncated": "simulator.values",
    "graph_from_json": "graph_json",
    "graph_to_json": "graph_json",
    "load_program": "text.files",
    "open_model": "oinf.reader",
    "parse": "text.parser",
    "write_model": "oinf.writer",
}

__all__ = [
    "ArrayValue",
    "Bitset",
    "Executor",
    "Graph",
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
    "format_truncated",
    "graph_from_json",
    "graph_to_json",
    "load_program",
    "open_model",
    "parse",
    "write_model",
]


def __getattr__(name: str) -> object:
    """Import what is used for the first time."""
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
