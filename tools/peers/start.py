"""One engine in a process without torch, from its file to the first result.

python -m tools.peers.start ENGINE MODEL INPUTS prints the process's peak of memory in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Feed = Mapping[str, np.ndarray]


def taper(path: str, feed: Feed) -> None:
    """Open a ``.taper`` file and run it once."""
    import taper_runtime

    _run_session(taper_runtime, path, feed)


def onnxruntime(path: str, feed: Feed) -> None:
    """Open an ``.onnx`` file and run it once."""
    import onnxruntime as ort

    _run_session(ort, path, feed)


def _run_session(engine: Any, path: str, feed: Feed) -> None:
    """Open a file and run it once, with the names that both engines have."""
    options = engine.SessionOptions()
    options.intra_op_num_threads = 1
    session = engine.InferenceSession(path, options)
    named = {i.name: a for i, a in zip(session.get_inputs(), feed.values(), strict=True)}
    session.run(None, named)


def openvino(path: str, feed: Feed) -> None:
    """Open an ``.xml`` file, its weights beside it, and run it once."""
    import openvino as ov

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(path, "CPU", options)
    compiled.create_infer_request().infer(list(feed.values()), share_inputs=True)


ENGINES: dict[str, Callable[[str, Feed], None]] = {
    "taper": taper,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}


def peak_bytes() -> int:
    """The most memory that this process has held, by the system's count."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    engine, model, inputs = sys.argv[1:]
    ENGINES[engine](model, dict(np.load(inputs)))
    print(peak_bytes(), flush=True)
