"""Define the engines: each is a function from a module to a run of it.

An engine is imported by the function that makes its run, so that a process loads only what it
times.
"""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import taper_runtime

Run = Callable[[], np.ndarray]

CONVERSION_SECONDS = 60  # that an engine may take to convert a module


class _Overtime(BaseException):
    """Raised by the clock; no Exception, because exporters try another way after those."""


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError where the block takes longer; in the main thread only."""
    expired = False

    def interrupt(*_: object) -> None:
        nonlocal expired
        expired = True
        raise _Overtime

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException:  # C++ between here and there raises an error of its own
        if not expired:
            raise
        raise TimeoutError(f"{what} takes more than {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def first(results: Any) -> torch.Tensor:
    """The result that is compared, of a module with several."""
    return results if isinstance(results, torch.Tensor) else results[0]


def open_plan(plan: Path, threads: int) -> Run:
    """Taper's session over the exported file; 0 threads leaves the choice to it."""
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = taper_runtime.InferenceSession(plan, options)
    feed = dict(session.plan.samples)
    return lambda: session.run(None, feed)[0]


def taper(module: torch.nn.Module, args: tuple[Any, ...], plan: Path, threads: int) -> Run:
    """Taper's session over the exported file."""
    return open_plan(plan, threads)


def torch_eager(module: torch.nn.Module, args: tuple[Any, ...], plan: Path, threads: int) -> Run:
    """The module itself."""
    return lambda: first(module(*args)).numpy()


def torch_compile(module: torch.nn.Module, args: tuple[Any, ...], plan: Path, threads: int) -> Run:
    """Inductor with weights as constants."""
    torch._dynamo.reset()  # it stops compiling after some modules of one class
    compiled = torch.compile(module, options={"freezing": True})
    return lambda: first(compiled(*args)).numpy()


def save_onnx(module: torch.nn.Module, args: tuple[Any, ...], path: Path) -> None:
    """By torch's own exporter; the older one where the newer takes step by step."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision aloud
    with at_most(CONVERSION_SECONDS, "torch.onnx.export"):
        if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
            torch.onnx.export(module, args, path, dynamo=False, verbose=False)
        else:
            program = torch.onnx.export(module, args, dynamo=True, verbose=False)
            program.save(path, external_data=True)


def open_onnx(path: Path, args: tuple[np.ndarray, ...], threads: int) -> Run:
    """ONNX Runtime over a file of torch's exporter; 0 threads leaves the choice to it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options)
    feed = {i.name: a for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)[0]


def onnxruntime(module: torch.nn.Module, args: tuple[Any, ...], plan: Path, threads: int) -> Run:
    """ONNX Runtime over torch's own exporter."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.onnx")
        save_onnx(module, args, path)
        return open_onnx(path, tuple(a.numpy() for a in args), threads)


def openvino(module: torch.nn.Module, args: tuple[Any, ...], plan: Path, threads: int) -> Run:
    """OpenVINO over torch.export, in float32 (it would take bfloat16 where the CPU has it)."""
    compiled = compile_openvino(module, args, {"INFERENCE_NUM_THREADS": threads})
    request = compiled.create_infer_request()
    feed = [a.numpy() for a in args]
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)[0]


def compile_openvino(
    module: torch.nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """OpenVINO's compiled model, with these options and those that all have."""
    import openvino as ov

    with at_most(CONVERSION_SECONDS, "openvino.convert_model"):
        model = ov.convert_model(torch.export.export(module, args))
    common = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    return ov.Core().compile_model(model, "CPU", common | options)


def open_openvino(path: Path, args: tuple[np.ndarray, ...], threads: int) -> Run:
    """OpenVINO over a file of ONNX."""
    import openvino as ov

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    core = ov.Core()
    request = core.compile_model(core.read_model(path), "CPU", options).create_infer_request()
    feed = list(args)
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)[0]


#: In the order of the tables' columns. Taper comes first; the others are its peers.
ENGINES: dict[str, Callable[..., Run]] = {
    "taper": taper,
    "torch eager": torch_eager,
    "torch.compile": torch_compile,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}
