"""Measure the points of the benchmarks that Taper's forerunners had; `--quick` only prints.

They are blocks of six sizes and a wide MLP with one part more in each row, elementwise work beside
a loop in C by hand, microseconds per node at batch 1, attention, softmax, transposed products, and
threads by length. All but the last are on one thread. The tables go to docs/results/originals.md.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import taper_frontend
from models import block, mlp
from taper_frontend.compiler.stages import PIPELINE
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.native._kernels import cpu_count
from tools.peers.ablation import ablate, attention
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.executor.executor import PlanExecutor

    Run = Callable[[], Any]

PAGE = ROOT / "docs" / "results" / "originals.md"

BLOCKS = [(1, 16, 64), (4, 16, 64), (1, 64, 128), (4, 64, 128), (1, 128, 256), (4, 128, 256)]
ATTENTION = [(1, 4, 64), (1, 4, 256), (2, 8, 128), (2, 8, 256)]  # batch, heads, length
HEAD = 64
#: Values of a node at batch 1, and how many nodes follow one another.
WIDTH, DEPTH = 64, 32

BY_HAND = """
void bias_relu(const float *x, const float *bias, float *y, long rows, long cols) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++) {
            float sum = x[i * cols + j] + bias[j];
            y[i * cols + j] = sum > 0 ? sum : 0;
        }
}
"""


class Called(torch.nn.Module):
    """A function of tensors."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return self._function(*args)


def taper_run(
    module: torch.nn.Module,
    args: Sequence[torch.Tensor],
    kind: type[PlanExecutor] = CompiledExecutor,
    passes: Sequence[Any] | None = None,
    threads: int = 1,
) -> Run:
    """Return a run of an exported module."""
    plan = taper_frontend.export(module.eval(), tuple(args), passes=passes, verify=False)
    executor = kind.compile(plan, Settings(threads))
    arrays = [plan.samples[name] for name in plan.inputs]
    return lambda: executor.run(arrays)[0]


def medians(
    runs: Mapping[str, Run], seconds: float, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the median seconds of each run, in turns; by default of the CPU."""
    times = take_turns({name: Timed(run, clock) for name, run in runs.items()}, seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def table(first: str, rows: Mapping[str, Mapping[str, float]], unit: float = 1e3) -> str:
    """Return a table of medians, in milliseconds unless another unit is given."""
    names = list(next(iter(rows.values())))
    lines = [f"| {first} | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for name, values in rows.items():
        cells = [f"{unit * values[each]:.4g}" for each in names]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def layers(seconds: float) -> str:
    """Blocks of six sizes, and an MLP, with one part more in each row."""
    found = ["| model | computed by | median, ms | torch eager's time / this | error |"]
    found.append("| --- " * 5 + "|")
    cases = {f"block {b}x{s}x{w}": ("block", partial(block, b, s, w)) for b, s, w in BLOCKS}
    cases["MLP 128x2048"] = "mlp", partial(mlp, 128, 2048)
    for name, (family, make) in cases.items():
        rows, _ = ablate(family, name, make, seconds)
        found += rows
    return "\n".join(found)


def elementwise(seconds: float) -> str:
    """Bias and ReLU: torch, a tile program, and a loop in C by hand."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "by_hand.c"), Path(folder, "by_hand.so")
        source.write_text(BY_HAND)
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, check=True)
        by_hand = ctypes.CDLL(str(library)).bias_relu
    rows = {}
    for size in ((128, 512), (128, 2048)):
        x, bias = torch.randn(size), torch.randn(size[1])
        array, values, y = x.numpy(), bias.numpy(), np.empty(size, np.float32)
        pointers = [ctypes.c_void_p(each.ctypes.data) for each in (array, values, y)]
        rows["x".join(map(str, size))] = medians(
            {
                "torch": partial(lambda x, b: torch.relu(x + b), x, bias),
                "taper": taper_run(Called(lambda x, b: torch.relu(x + b)), (x, bias)),
                "by hand": partial(by_hand, *pointers, *map(ctypes.c_long, size)),
            },
            seconds,
        )
        np.testing.assert_array_equal(y, torch.relu(x + bias).numpy())
    return table("bias and ReLU, microseconds", rows, 1e6)


def overhead(seconds: float) -> str:
    """Microseconds per node at batch 1, in chains of equal nodes that are not fused."""
    weight = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "add": lambda x: x + 0.5,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer norm": lambda x: torch.nn.functional.layer_norm(x, (WIDTH,)),
        "product with 64 x 64": lambda x: x @ weight,
    }

    def chain(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        for _ in range(DEPTH):
            x = function(x)
        return x

    rows = {}
    for name, function in functions.items():
        module, x = Called(partial(chain, function)), torch.randn(1, WIDTH)
        plan = taper_frontend.export(module.eval(), (x,), passes=(), verify=False)
        nodes = len(plan.nodes)
        found = medians(
            {
                "torch": partial(module, x),
                "interpreted": taper_run(module, (x,), InterpretedExecutor, ()),
                "compiled": taper_run(module, (x,), CompiledExecutor, ()),
            },
            seconds,
        )
        rows[f"{name}, {nodes} nodes"] = {key: value / DEPTH for key, value in found.items()}
    return table("op, microseconds for each", rows, 1e6)


def attentions(seconds: float) -> str:
    """Attention alone: plain, blocked, and torch's."""
    rows = {}
    plain = [p for p in PIPELINE if getattr(p, "__name__", "") != "recognize_attention"]
    for batch, heads, length in ATTENTION:
        module, args = attention(batch, heads, length, HEAD)
        written, _ = attention(batch, heads, length, HEAD, "softmax")
        rows[f"{batch}x{heads}x{length}x{HEAD}"] = medians(
            {
                "torch, plain": partial(written, *args),
                "torch SDPA": partial(module, *args),
                "taper, plain": taper_run(written, args, passes=plain),
                "taper, blocked": taper_run(module, args),
            },
            seconds,
        )
    return table("attention, ms", rows)


def softmaxes(seconds: float) -> str:
    """Softmax over rows."""
    rows = {}
    for size in (256, 512):
        x = torch.randn(size, size)
        module = Called(lambda x: torch.softmax(x, -1))
        runs = {"torch": partial(module, x), "taper": taper_run(module, (x,))}
        rows[f"{size}x{size}"] = medians(runs, seconds)
    return table("softmax, microseconds", rows, 1e6)


def transposed(seconds: float) -> str:
    """Products with a matrix as it lies and transposed; both are inputs."""
    rows = {}
    for size in (64, 256, 512, 1024):
        args = torch.randn(size, size), torch.randn(size, size)
        as_is, turned = Called(torch.matmul), Called(lambda a, b: a @ b.T)
        rows[f"{size}"] = medians(
            {
                "torch, a b": partial(as_is, *args),
                "torch, a b^T": partial(turned, *args),
                "taper, a b": taper_run(as_is, args),
                "taper, a b^T": taper_run(turned, args),
            },
            seconds,
        )
    return table("size of both, ms", rows)


def threads(seconds: float) -> str:
    """Attention of 8 heads on one to all CPUs, by length."""
    rows = {}
    for length in (128, 256, 512):
        module, args = attention(1, 8, length, HEAD)
        runs = {
            f"{n} thread{'' if n == 1 else 's'}": taper_run(module, args, threads=n)
            for n in range(1, min(8, cpu_count()) + 1)
        }
        rows[f"{length}"] = medians(runs, seconds, time.perf_counter)
    return table("length, ms", rows)


SECTIONS: dict[str, tuple[str, Callable[[float], str]]] = {
    "layers": ("Blocks and an MLP", layers),
    "elementwise": ("Elementwise work", elementwise),
    "overhead": ("Overhead for each node", overhead),
    "attention": ("Attention", attentions),
    "softmax": ("Softmax", softmaxes),
    "transposed": ("Transposed products", transposed),
    "threads": ("Threads by length", threads),
}


def main() -> None:
    """Measure every section, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for key in args.only:
        title, measure = SECTIONS[key]
        with torch.no_grad():
            text = measure(0.2 if args.quick else 1.0)
        print(f"{title}\n\n{text}\n", flush=True)
        if not args.quick:
            setting = describe_setting(command_line("originals"))
            write_section(key, title, f"{setting}\n\n{text}", PAGE)


if __name__ == "__main__":
    main()
