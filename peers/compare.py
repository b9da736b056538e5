"""Taper beside torch eager and ONNX Runtime: one thread, one process, engines taking turns.

Interleaving run by run makes the ratios hold where the machine's speed drifts. Every engine's
result is compared with torch's before anything is timed. Prints a Markdown table: median
microseconds, and how many times longer the others take.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch
from transformers import AutoModel

import taper_frontend
import taper_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "asv_bench"))

from benchmarks.common import block, mlp  # noqa: E402  # found through the path above

Run = Callable[[], np.ndarray]
SECONDS = 3.0  # timed per model, all engines together


def cases() -> Iterator[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...]]]:
    """Name, module and arguments of every model."""
    for batch, width in ((1, 512), (32, 512), (128, 512)):
        yield f"MLP {batch}x{width}", *mlp(batch, width)
    for batch, length, width in ((1, 16, 64), (4, 64, 128), (4, 128, 256)):
        yield f"block {batch}x{length}x{width}", *block(batch, length, width)
    spec = importlib.util.spec_from_file_location("minilm", ROOT / "examples/export_minilm.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    encoder = AutoModel.from_pretrained(example.get_model_path())
    module = example.SentenceEmbedder(encoder).eval()
    for batch, length in ((1, 16), (1, 128), (8, 128)):
        ids = torch.randint(1000, 20000, (batch, length))
        yield f"MiniLM {batch}x{length}", module, (ids, torch.ones_like(ids))


def engines(module: torch.nn.Module, args: tuple[Any, ...], directory: Path) -> dict[str, Run]:
    """A function per engine that computes the model's one output."""
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    plan = taper_frontend.export(module, args, verify=False)
    session = taper_runtime.InferenceSession(plan, options)
    feed = dict(plan.samples)

    path = directory / "model.onnx"
    torch.onnx.export(module, args, dynamo=True, verbose=False).save(path)
    onnx_options = onnxruntime.SessionOptions()
    onnx_options.intra_op_num_threads = 1
    onnx = onnxruntime.InferenceSession(path, onnx_options)
    onnx_feed = {i.name: a.numpy() for i, a in zip(onnx.get_inputs(), args, strict=True)}
    return {
        "taper": lambda: session.run(None, feed)[0],
        "torch": lambda: module(*args).numpy(),
        "onnxruntime": lambda: onnx.run(None, onnx_feed)[0],
    }


def compare(runs: dict[str, Run]) -> dict[str, float]:
    """Median seconds per engine, run in turn."""
    want = runs["torch"]()
    for name, run in runs.items():
        error = float(np.linalg.norm(run() - want) / np.linalg.norm(want))
        assert error < 1e-4, f"{name}: relative error {error:.1e}"
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"taper {taper_runtime.__version__}, {versions}; one thread, float32\n")
    print("| model | taper, us | torch eager | ONNX Runtime |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        for name, module, args in cases():
            medians = compare(engines(module, args, Path(directory)))
            ours = medians["taper"]
            others = [f"{medians[peer] / ours:.2f}x" for peer in ("torch", "onnxruntime")]
            print(f"| {name} | {ours * 1e6:.0f} | {' | '.join(others)} |", flush=True)


if __name__ == "__main__":
    main()
