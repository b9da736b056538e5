"""Time resampling beside torch and ONNX Runtime, on one thread: docs/results/resampling.md.

`--only nearest` times some, `--write docs/results/resampling.md` writes the page.
"""

from __future__ import annotations

import argparse
import io
import re
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime
import torch
import torch.nn.functional as F
from onnxruntime.capi import onnxruntime_pybind11_state as engine

import taper_frontend
import taper_runtime
from taper_runtime.base.progress import progress
from tools.peers.ops import Called, least_times
from tools.peers.page import command_line, describe_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAGE = """# Speed of resampling

This page compares the speed of resizing and of `grid_sample` with that of torch and ONNX Runtime.
Times are CPU times on one thread, in microseconds: the least of many turns, of which each begins
with another engine. All read the same arrays. Each call is a model of one op, with channels first
unless it says last. ONNX Runtime runs the file that torch exports. The last column is the time of
the fastest other engine over Taper's: above 1, Taper is faster. A dash says that torch exports no
such file, or that ONNX Runtime refuses it.

{setting}

| call | x | Taper | torch | ONNX Runtime | best of the others over Taper |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


class Case(NamedTuple):
    """A call of torch on an image."""

    call: str
    shape: tuple[int, ...]
    function: Callable[..., Any]
    dtype: torch.dtype = torch.float32
    grid: tuple[int, int] | None = None

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return random pixels, and for a grid a rotation."""
        torch.manual_seed(0)
        if self.dtype == torch.uint8:
            return (torch.randint(0, 256, self.shape, dtype=self.dtype),)
        x = torch.randn(self.shape)
        if self.grid is None:
            return (x,)
        turn = torch.tensor([[[0.9, 0.2, 0.0], [-0.2, 0.9, 0.1]]])
        return x, F.affine_grid(turn, (1, 1, *self.grid), align_corners=False)


def resize(mode: str, **options: Any) -> Callable[..., Any]:
    """Return a call of interpolate."""
    return partial(F.interpolate, mode=mode, **options)


def with_channels_last(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of an image whose channels are last, with its result in the same order."""
    return lambda x: call(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


_SAMPLE = partial(F.grid_sample, align_corners=False)
#: A segmentation's scores, enlarged to the image, as DeepLab does.
_SCORES = resize("bilinear", size=(513, 513), align_corners=True)

CASES = (
    Case("nearest x2", (1, 128, 20, 20), resize("nearest", scale_factor=2)),
    Case("nearest x2", (1, 128, 40, 40), resize("nearest", scale_factor=2)),
    Case("nearest x2", (1, 64, 128, 128), resize("nearest", scale_factor=2)),
    Case("nearest x3", (1, 64, 32, 32), resize("nearest", scale_factor=3)),
    Case("nearest x2, 1 dim", (1, 128, 4096), resize("nearest", scale_factor=2)),
    Case("bilinear x2", (1, 128, 40, 40), resize("bilinear", scale_factor=2)),
    Case("bilinear to 513x513, corners", (1, 21, 65, 65), _SCORES),
    Case("grid_sample 64x64", (1, 64, 64, 64), _SAMPLE, grid=(64, 64)),
    Case("grid_sample 224x224", (1, 3, 224, 224), _SAMPLE, grid=(224, 224)),
    Case("grid_sample 32x32", (1, 256, 32, 32), _SAMPLE, grid=(32, 32)),
    # eight more
    Case("nearest to 77x77", (1, 32, 50, 50), resize("nearest", size=(77, 77))),
    Case("bilinear x4", (1, 32, 56, 56), resize("bilinear", scale_factor=4)),
    Case("bilinear to 224x224", (1, 3, 480, 640), resize("bilinear", size=(224, 224))),
    Case("bicubic x2", (1, 32, 56, 56), resize("bicubic", scale_factor=2)),
    Case(
        "bilinear to 224x224, antialias",
        (1, 3, 480, 640),
        resize("bilinear", size=(224, 224), antialias=True),
    ),
    Case(
        "bicubic to 224x224, antialias",
        (1, 3, 480, 640),
        resize("bicubic", size=(224, 224), antialias=True),
    ),
    Case(
        "uint8, bilinear to 224x224",
        (1, 3, 480, 640),
        resize("bilinear", size=(224, 224)),
        torch.uint8,
    ),
    Case("grid_sample 128x128", (1, 1, 128, 128), _SAMPLE, grid=(128, 128)),
    *(
        Case(
            f"grid_sample 224x224, {mode}",
            (1, channels, 224, 224),
            partial(_SAMPLE, mode=mode),
            grid=(224, 224),
        )
        for mode in ("nearest", "bicubic")
        for channels in (1, 3, 16)
    ),
    # images as they are decoded
    *(
        Case(
            f"uint8, {mode} to 224x224{', antialias' * antialias}, channels last",
            (1, 480, 640, 3),
            with_channels_last(resize(mode, size=(224, 224), antialias=antialias)),
            torch.uint8,
        )
        for mode in ("bilinear", "bicubic")
        for antialias in (False, True)
    ),
    Case(
        "uint8, bilinear x2, channels last",
        (1, 224, 224, 3),
        with_channels_last(resize("bilinear", scale_factor=2)),
        torch.uint8,
    ),
)


def ours(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """Return a run of an export."""
    plan = taper_frontend.export(module, inputs)
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = taper_runtime.InferenceSession(plan, options)
    # The arrays that the others read: a copy would be in cache where they are not, or the reverse.
    feeds = dict(zip(plan.samples, (x.numpy() for x in inputs), strict=True))
    return lambda: session.run(None, feeds)


def theirs(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any] | None:
    """Return a run of ONNX Runtime; None if torch exports no file, or it is refused.

    torch's exporter raises RuntimeError and classes made of it; the engine's errors are of no
    common class.
    """
    file = io.BytesIO()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        torch.onnx.export(module, inputs, file, dynamo=False, opset_version=20)
        session = onnxruntime.InferenceSession(file.getvalue(), options)
        names = [value.name for value in session.get_inputs()]
        feeds = dict(zip(names, (x.numpy() for x in inputs), strict=True))
        session.run(None, feeds)  # which refuses some sizes that the session takes
    except (RuntimeError, engine.Fail, engine.InvalidGraph, engine.NotImplemented):
        return None
    return lambda: session.run(None, feeds)


def row_of(case: Case, seconds: float) -> str:
    """Return a case's row of the page."""
    inputs = case.inputs()
    module = Called(case.function).eval()
    with torch.inference_mode():
        runs: list[Callable[[], Any]] = [ours(module, inputs), lambda: case.function(*inputs)]
        other = theirs(module, inputs)
        times = least_times([*runs, *([other] if other else [])], seconds)
    shown = " | ".join(f"{1e6 * time:.0f}" for time in times) + " | -" * (other is None)
    ratio = min(times[1:]) / times[0]
    return f"| {case.call} | {'x'.join(map(str, case.shape))} | {shown} | {ratio:.2f} |"


def write(page: Path, rows: Sequence[str]) -> None:
    """Write the page."""
    setting = describe_setting(command_line("resampling"), "onnxruntime")
    page.write_text(PAGE.format(setting=setting, rows="\n".join(rows)))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of call and sizes of x")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's own exporter warns of itself
    rows = []
    chosen = [case for case in CASES if re.search(options.only, f"{case.call} {case.shape}")]
    with progress("resampling", len(chosen)) as advance:
        for case in chosen:
            rows.append(row_of(case, options.seconds))
            if not options.write:
                print(rows[-1], flush=True)
            advance()
    if options.write:
        write(options.write, rows)


if __name__ == "__main__":
    main()
