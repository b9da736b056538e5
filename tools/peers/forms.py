"""Measure the forms of 3x3 convolutions, and how well the cost model tells the fastest.

Each convolution of stride 1 of some vision models is computed as direct sums, F(2x2) and F(4x4), on
each ISA level of this machine, on one thread, in turns; each form's time is the least of its runs.
`--quick` measures briefly and only prints.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

import classifiers
import taper_frontend
import taper_runtime
from taper_runtime.executor.executor import definition, input_types, output_types
from taper_runtime.formats.winograd import tile_of
from taper_runtime.machine.cost import weight_cost
from taper_runtime.machine.limits import typical
from taper_runtime.native import _kernels
from tools.peers.cases import VISION
from tools.peers.packing import Detector
from tools.peers.page import ROOT, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_runtime import InferenceSession
    from taper_runtime.plan.plan import Plan, PlanNode

PAGE = ROOT / "docs" / "results" / "convolution.md"

#: The kernel of each form, by the side of its tile; 0 for direct sums.
KERNELS = {0: "f32_conv", 2: "f32_conv_winograd_2x2", 4: "f32_conv_winograd_4x4"}

#: The bytes of plain weights of the layers that are timed together: more than caches keep from one
#: run to the next, as in a model. And the bounds of their number.
WEIGHTS, FEWEST, MOST = 16 << 20, 2, 16


class Size(NamedTuple):
    """A convolution of one image."""

    side: int  # of x
    padding: int
    channels: int
    out: int

    def __str__(self) -> str:
        """Return the sizes of x, and the channels of the output."""
        return f"{self.side}x{self.side}, {self.channels} to {self.out}"


class Layers(nn.Module):
    """Some convolutions of one size, each of an input of its own."""

    def __init__(self, size: Size, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(size.channels, size.out, 3, padding=size.padding) for _ in range(count)
        )

    def forward(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        """Return the results of all."""
        return [torch.relu(layer(x)) for layer, x in zip(self.layers, xs, strict=True)]


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models whose convolutions are measured."""
    named: dict[str, Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
        **VISION,
        "ResNet-18": classifiers.resnet18,
    }
    made = {name: make(1) for name, make in named.items()}
    return {**made, "CRAFT's form": (Detector(), (torch.zeros(1, 3, 320, 320),))}


def convolutions(plan: Plan) -> list[PlanNode]:
    """The nodes that may take Winograd's form."""
    return [
        node
        for node in plan.nodes
        if node.op == "CONV"
        and (node.attrs["kernel"], node.attrs["stride"], node.attrs["dilation"])
        == ((3, 3), (1, 1), (1, 1))
        and node.attrs.get("groups", 1) == 1
    ]


def sizes() -> dict[Size, int]:
    """The sizes of all convolutions, with their number."""
    found: dict[Size, int] = {}
    for module, args in models().values():
        plan = taper_frontend.export(module.eval(), args, verify=False)
        for node in convolutions(plan):
            x, weight = (plan.tensors[name] for name in node.inputs[:2])
            if x.shape[1] == x.shape[2] and len(set(node.attrs["padding"])) == 1:
                size = Size(x.shape[1], node.attrs["padding"][0], x.shape[3], weight.shape[3])
                found[size] = found.get(size, 0) + 1
    return found


class Measured(NamedTuple):
    """The forms of one size on one ISA level."""

    ns: dict[int, float]  # of one convolution, by tile
    estimated: dict[int, float]
    chosen: int  # by the export

    @property
    def loss(self) -> float:
        """How much slower the chosen form is than the fastest."""
        return self.ns[self.chosen] / min(self.ns.values()) - 1


def measure(size: Size, isa: str, seconds: float) -> Measured:
    """Time the forms in turns."""
    weight = 4 * 9 * size.channels * size.out
    count = max(FEWEST, min(MOST, WEIGHTS // weight))
    image = torch.randn(1, size.channels, size.side, size.side)
    plan = taper_frontend.export(
        Layers(size, count).eval(), (image,) * count, verify=False, packing="at_open"
    )
    feed = dict(plan.samples)
    sessions = {tile: _session(plan, isa, kernel) for tile, kernel in KERNELS.items()}
    ns = dict.fromkeys(sessions, float("inf"))
    end = time.monotonic() + seconds
    turns = 0
    while turns < 3 or time.monotonic() < end:
        turns += 1
        for tile in random.sample(list(sessions), len(sessions)):
            begin = time.thread_time_ns()
            sessions[tile].run(None, feed)
            ns[tile] = min(ns[tile], (time.thread_time_ns() - begin) / count)
    node = convolutions(plan)[0]
    chosen = tile_of(plan.tensors[node.inputs[1]].format) or 0
    return Measured(ns, {tile: _estimate(plan, node, tile, isa) for tile in KERNELS}, chosen)


def _session(plan: Plan, isa: str, kernel: str) -> InferenceSession:
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads, options.isa = 1, isa
    options.packing, options.kernel_choice = "at_open", "cost"
    options.kernels = {"CONV": kernel}
    return taper_runtime.InferenceSession(plan, options)


def _estimate(plan: Plan, node: PlanNode, tile: int, isa: str) -> float:
    op, attrs = definition(node)
    types = input_types(plan, node)
    assert types[1] is not None
    types[1] = types[1]._replace(format=f"winograd.{tile}" if tile else "plain")
    return weight_cost(op, types, output_types(plan, node), attrs, 1, typical(isa))


def table(isa: str, counts: dict[Size, int], seconds: float) -> str:
    """Measure all sizes on one ISA level."""
    lines = [
        f"**{isa}**",
        "",
        "| convolution | nodes | direct, us | F(2x2) | F(4x4) | chosen | loss | estimate / time |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    found = {size: measure(size, isa, seconds) for size in counts}
    names = {0: "direct", 2: "F(2x2)", 4: "F(4x4)"}
    for size, one in found.items():
        times = " | ".join(f"{ns / 1e3:.0f}" for ns in one.ns.values())
        ratios = ", ".join(f"{one.estimated[t] / one.ns[t]:.2f}" for t in one.ns)
        lines.append(
            f"| {size} | {counts[size]} | {times} | {names[one.chosen]} | {one.loss:.0%} "
            f"| {ratios} |"
        )
    near = sum(counts[size] for size, one in found.items() if one.loss <= 0.05)
    errors = [one.estimated[t] / one.ns[t] for one in found.values() for t in one.ns]
    nodes = f"{near} of {sum(counts.values())} nodes within 5% of the best form"
    median, least, most = statistics.median(errors), min(errors), max(errors)
    error = f"estimate over time: median {median:.2f}, from {least:.2f} to {most:.2f}"
    return "\n".join([*lines, "", f"{nodes}; {error}."])


def main() -> None:
    """Measure all forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="0.2 s a size, printed only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    counts = dict(sorted(sizes().items(), reverse=True))
    tables = [table(isa, counts, 0.2 if quick else 3.0) for isa in _kernels.available_isas()]
    print(text := "\n\n".join(tables))
    if not quick:
        setting = describe_setting(command_line("forms"))
        write_section("forms", "Forms of 3x3 convolutions", f"{setting}\n\n{text}", PAGE)


if __name__ == "__main__":
    main()
