"""Time Taper with one part more in each row; `--quick` only prints.

The same models, computed with one part more in each row, on one thread, by the CPU's time. The
error is the relative L2 difference to torch in float64. The tables go to
docs/results/benchmarks.md; a quick run prints them and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import taper_frontend
from models import BLOCK_SIZES, MLP_SIZES, Attention, block, mlp, seeded
from taper_frontend.compiler.stages import PIPELINE
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.extend.providers import NUMPY, OURS, Dispatch
from tools.peers.page import command_line, describe_setting, write_section
from tools.peers.turns import Timed, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.stages import Pass
    from taper_runtime.executor.executor import PlanExecutor
    from tools.peers.cases import Case
    from tools.peers.engines import Run

#: batch, heads, length, head size
ATTENTION_SIZES = [(1, 4, 16, 16), (4, 4, 64, 32), (4, 4, 128, 64), (1, 12, 512, 64)]
ATTENTION_SIZES += [(1, 12, 1024, 64)]


def attention(
    batch: int, heads: int, length: int, size: int, form: str = "sdpa"
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """Attention alone over random queries, keys and values."""
    module = seeded(lambda: Attention(form))
    return module, tuple(torch.randn(batch, heads, length, size) for _ in range(3))


#: Family -> size -> the model; its attention, if any, is written as `form` says.
FAMILIES: dict[str, dict[str, Callable[..., Any]]] = {
    "mlp": {f"MLP {b}x{w}": partial(mlp, b, w) for b, w in MLP_SIZES},
    "block": {f"block {b}x{s}x{w}": partial(block, b, s, w) for b, s, w in BLOCK_SIZES},
    "attention": {
        f"attention {b}x{h}x{s}x{d}": partial(attention, b, h, s, d)
        for b, h, s, d in ATTENTION_SIZES
    },
}


def without(*names: str) -> list[Pass]:
    """The pipeline without the passes whose names begin so."""
    return [p for p in PIPELINE if not getattr(p, "__name__", "").startswith(names)]


def torch_run(make: Case) -> Run:
    """The module itself."""
    module, args = make()
    return lambda: module(*args).numpy()


def taper_run(
    make: Case,
    executor: type[PlanExecutor],
    passes: list[Pass],
    providers: tuple[str, ...] = OURS,
) -> Run:
    """The exported plan in one of the executors, computed by these providers."""
    module, args = make()
    plan = taper_frontend.export(module, args, passes=passes, verify=False)
    compiled = executor.compile(plan, Settings(dispatch=Dispatch(providers)))
    arrays = [plan.samples[name] for name in plan.inputs]
    return lambda: compiled.run(arrays)[0]


def variants(family: str, make: Callable[..., Any]) -> dict[str, Run]:
    """Name of each row -> a run of it."""
    plain = make if family == "mlp" else partial(make, form="softmax")
    rows = {"torch eager": torch_run(plain)}
    if family != "mlp":
        rows["torch SDPA"] = torch_run(make)
    rows |= {
        "numpy per op": taper_run(make, InterpretedExecutor, [], (NUMPY,)),
        "native per op, interpreted": taper_run(make, InterpretedExecutor, []),
        "compiled without fusion": taper_run(make, CompiledExecutor, without("fuse_")),
    }
    if family == "mlp":
        return rows | {"compiled with fusion": taper_run(make, CompiledExecutor, PIPELINE)}
    scores = without("recognize_attention")  # two products, and a softmax over all scores
    return rows | {
        "compiled with fusion, attention plain": taper_run(plain, CompiledExecutor, scores),
        "compiled with fusion, attention blocked": taper_run(make, CompiledExecutor, PIPELINE),
    }


def exact(make: Case) -> np.ndarray:
    """The result in float64."""
    module, args = make()
    with torch.no_grad():
        return module.double()(*(a.double() for a in args)).numpy()


def ablate(
    family: str, size: str, make: Callable[..., Any], seconds: float
) -> tuple[list[str], dict[str, float]]:
    """The rows of one model, and the median seconds of each variant."""
    want = exact(make)
    with torch.no_grad():
        runs = variants(family, make)
        outputs = {name: run() for name, run in runs.items()}
    timed = {name: Timed(run, time.thread_time) for name, run in runs.items()}
    times = take_turns(timed, seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for name, median in medians.items():
        error = float(np.linalg.norm(outputs[name] - want) / np.linalg.norm(want))
        ratio = medians["torch eager"] / median
        rows.append(f"| {size} | {name} | {1e3 * median:.3f} | {ratio:.2f} | {error:.1e} |")
    return rows, medians


def verdict(medians: dict[str, dict[str, float]]) -> str:
    """Where fusion costs time instead of saving it."""
    slower = []
    for size, times in medians.items():
        fused = next(reversed(times.values()))
        unfused = times["compiled without fusion"]
        if fused > unfused:
            slower.append(f"{size} ({fused / unfused - 1:.0%})")
    return f"Fusion is slower than no fusion at: {', '.join(slower) or 'none of these'}."


def main() -> None:
    """Measure every family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = 0.5 if options.quick else 8.0
    setting = describe_setting(command_line("ablation"))
    print(setting)
    head = "| model | computed by | median, ms | torch eager's time / this | error |\n"
    head += "| --- " * 5 + "|"
    for family in options.models:
        print(f"\n{head}")
        table, medians = [head], {}
        for size in FAMILIES[family]:
            rows, medians[size] = ablate(family, size, FAMILIES[family][size], seconds)
            print(*rows, sep="\n", flush=True)
            table += rows
        print(verdict(medians))
        if not options.quick:
            text = "\n".join([setting, "", *table, "", verdict(medians)])
            write_section(f"ablation {family}", f"ablation, {family}", text)


if __name__ == "__main__":
    main()
