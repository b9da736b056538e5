"""Time every way to compute convolutions and products, and judge the choice of the cost model.

The ways are those that `taper tune` measures: kernels, their variants, and formats of the weight.
Each distinct node of some vision models is computed in each way, on each ISA level of this machine,
on one thread, in turns; its time is the least of its runs, in the thread's CPU time. A node is run
several times in a row, with weights of its own each time, so that these come from where a model's
come from. `--minutes` bounds the measurement after the exports: convolutions of which Winograd's
form is possible come first, then other convolutions, then products; what is left is counted.
`--quick` takes half a minute and only prints. `--narrow` takes the networks and layers of
:mod:`tools.peers.costs` whose weights are int8 or int4 into tables of their own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import classifiers
import taper_frontend
from taper_runtime.executor.node_trials import HOPELESS, TRIED, runner, tunable_nodes
from taper_runtime.executor.tuned_choice import machine_setting
from taper_runtime.formats.winograd import tile_of
from taper_runtime.machine.choices import least_estimate
from taper_runtime.native import _kernels
from taper_runtime.plan.replaceable import completed
from tools.peers.cases import VISION
from tools.peers.costs import narrow_plans
from tools.peers.packing import Detector
from tools.peers.page import ROOT, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from taper_runtime.executor.node_trials import Candidate, TunableNode
    from taper_runtime.plan.plan import Plan

PAGE = ROOT / "docs" / "results" / "convolution.md"

#: How much slower than the fastest way a choice may be.
NEAR = 0.05

#: The bytes of plain weights that are read in a row: more than caches keep from one run to the
#: next. And the fewest runs in a row.
WEIGHTS, FEWEST = 16 << 20, 2

#: About how many nanoseconds the runs in a row take, next to which calling a session is nothing.
TURN_NS = 2_000_000

#: Nodes that are estimated to take less are left out: clocks decide their times.
LEAST_NS = 5000.0

#: The turns of a node in a pass, and the nanoseconds after which no further one begins.
TURNS, NODE_NS = 7, 200_000_000

#: How often nodes are timed at most, if a choice seems to lose.
PASSES = 4

#: The groups of nodes, by their rank.
RANKS = ("3x3 convolutions of stride 1", "other convolutions", "products, attention")


def plans() -> Iterator[Plan]:
    """Export the models whose nodes are timed, with weights that may be packed in another form."""
    named: dict[str, Callable[[], Any]] = {
        "ResNet-18": partial(classifiers.resnet18, 1),
        **{name: partial(make, 1) for name, make in VISION.items() if name != "Swin-T"},
        "CRAFT's form": lambda: (Detector(), (torch.zeros(1, 3, 128, 128),)),
        **{
            each: partial(classifiers.other, each, 1) for each in ("HGNetV2", "RegNet", "MobileViT")
        },
    }
    for make in named.values():
        torch.manual_seed(0)
        module, args = make()
        yield taper_frontend.export(module.eval(), args, verify=False, packing="at_open")


class Node(NamedTuple):
    """Nodes of one op and one set of sizes; they may differ in what their epilogues do.

    Attributes
    ----------
    text : str
        The sizes, as the page shows them.
    count : int
    candidates : list of Candidate
        Of one of them; the one that the exported plan has comes first.
    """

    text: str
    count: int
    candidates: list[Candidate]

    @property
    def rank(self) -> int:
        """Return 0 if Winograd's form is possible, 1 for other convolutions, 2 for other ops."""
        if not any(form(each).startswith("F(") for each in self.candidates):
            return 1 if self.candidates[0].key.op == "CONV" else 2
        return 0

    @property
    def cheapest(self) -> int:
        """Return which candidate the cost model takes."""
        return least_estimate([each.ns for each in self.candidates])


def form(candidate: Candidate) -> str:
    """Return a short name of a way: the form, and the variant of a kernel with several."""
    assert candidate.way is not None
    formats = [s.format for s in candidate.plan.tensors.values() if s.role == "constant"]
    tile = next((tile_of(each) for each in formats if tile_of(each)), None)
    if tile:
        return f"F({tile}x{tile})"
    kernel = candidate.way.kernel
    packed = any("panels" in each or "dots" in each for each in formats)
    words = [
        kernel.variant or kernel.name,
        "packed" if packed and kernel.variant != "panels" else "",
    ]
    return " ".join(filter(None, words))


def sizes(candidate: Candidate) -> str:
    """Return the sizes of a node: those of x, channels of the output, window, groups."""
    (node,), tensors = candidate.plan.nodes, candidate.plan.tensors
    x, y = tensors[node.inputs[0]].shape, tensors[node.outputs[0]].shape
    by = "x".join
    if node.op != "CONV":
        other = tensors[node.inputs[1]].shape
        return f"{node.op} {by(map(str, x))} by {by(map(str, other))}"
    words = [f"{by(map(str, x[1:-1]))}, {x[-1]} to {y[-1]}", by(map(str, node.attrs["kernel"]))]
    for name in ("stride", "dilation", "groups"):
        value = node.attrs.get(name, 1)
        if value != 1 and set(np.atleast_1d(value)) != {1}:
            words.append(f"{name} {by(map(str, np.atleast_1d(value)))}")
    if any(node.attrs["padding"]):
        words.append(f"padding {by(map(str, node.attrs['padding']))}")
    return ", ".join(words)


def differs(candidate: Candidate) -> bool:
    """Return whether a way differs from another one: without padding there is nothing to clip."""
    (node,) = candidate.plan.nodes
    clips = candidate.way is not None and candidate.way.kernel.variant == "clipped"
    return not clips or any(node.attrs["padding"])


def repeated(candidate: Candidate, count: int) -> Candidate:
    """Return a plan of the node, several times, each with constants of its own."""
    plan = candidate.plan
    (node,) = plan.nodes
    tensors, placements, constants = dict(plan.tensors), dict(plan.placements), {}
    made, recoded = [], []
    for i in range(count):
        names = {
            name: f"{name} {i}"
            for name, place in plan.placements.items()
            if place.root in plan.constants
        }
        for name, new in names.items():
            tensors[new] = plan.tensors[name]._replace(name=new)
            place = plan.placements[name]
            placements[new] = place._replace(root=names[place.root])
        for name, value in plan.constants.items():
            constants[names[name]] = value.copy()
        recoded += [each._replace(name=names[each.name]) for each in candidate.recoded]
        made.append(node._replace(inputs=tuple(names.get(each, each) for each in node.inputs)))
    plan = plan._replace(
        nodes=tuple(made), tensors=tensors, placements=placements, constants=constants
    )
    return candidate._replace(plan=plan, recoded=tuple(recoded))


class Trial(NamedTuple):
    """A node on one ISA level.

    Attributes
    ----------
    isa : str
    node : Node
    ns : list of float
        The least time of one run of each candidate so far; infinity if there is none.
    """

    isa: str
    node: Node
    ns: list[float]

    @property
    def stored(self) -> float:
        """Return the loss of the candidate that the exported plan has."""
        return self.ns[0] / min(self.ns) - 1

    @property
    def chosen(self) -> float:
        """Return the loss of the cost model's choice for the level."""
        return self.ns[self.node.cheapest] / min(self.ns) - 1

    def measure(self) -> None:
        """Run the candidates in turns."""
        candidates = self.node.candidates
        constants = candidates[0].plan.constants.values()
        largest = max((each.nbytes for each in constants), default=WEIGHTS)
        most = min(round(TURN_NS / candidates[0].ns), WEIGHTS // max(1, largest))
        count = max(FEWEST, most)
        machine = machine_setting(self.isa, 1)
        runs = {
            i: runner(repeated(each, count), machine)
            for i, each in enumerate(candidates)
            if self.ns[i] <= HOPELESS * min(self.ns)
        }
        begin = time.thread_time_ns()
        for turn in range(TURNS):
            order = list(runs)
            at = turn % len(order)  # each begins a turn as often as the others
            for i in order[at:] + order[:at]:
                start = time.thread_time_ns()
                runs[i]()
                self.ns[i] = min(self.ns[i], (time.thread_time_ns() - start) / count)
            if turn + 1 < TRIED:
                continue
            if time.thread_time_ns() - begin > NODE_NS:
                break
            runs = {i: run for i, run in runs.items() if self.ns[i] <= HOPELESS * min(self.ns)}


#: How much slower than the best way the two choices are.
LOSSES = (attrgetter("stored"), attrgetter("chosen"))


def trials(made: Iterable[Plan]) -> list[Trial]:
    """Find the distinct nodes of plans on each ISA level, in the order of their trials."""
    found: dict[tuple[str, str], list[TunableNode]] = {}
    for plan in map(completed, made):
        for isa in _kernels.available_isas():
            for node in tunable_nodes(plan, isa, other_bits=True):
                ways = list(filter(differs, node.candidates))
                if len(ways) > 1 and ways[0].ns >= LEAST_NS:
                    known = node._replace(candidates=ways)
                    found.setdefault((isa, sizes(ways[0])), []).append(known)
    listed = []
    for (isa, text), group in found.items():
        candidates = group[0].candidates
        node = Node(text, sum(len(each.labels) for each in group), candidates)
        listed.append(Trial(isa, node, [float("inf")] * len(candidates)))
    return sorted(listed, key=lambda each: (each.node.rank, each.node.candidates[0].ns))


def run(found: list[Trial], seconds: float) -> None:
    """Run all trials, then again those in which a choice seems to lose, while there is time."""
    end = time.monotonic() + seconds
    for again in range(PASSES):
        for trial in found:
            if time.monotonic() > end:
                return
            if not again or max(trial.stored, trial.chosen) > NEAR:
                trial.measure()


def table(isa: str, found: list[Trial]) -> str:
    """Return the results of one ISA level."""
    ours = [trial for trial in found if trial.isa == isa]
    done = [trial for trial in ours if min(trial.ns) < float("inf")]
    lines = [
        "| nodes | number | within 5% as stored | within 5% by `cost` | estimate over time |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for rank, title in enumerate(RANKS):
        group = [trial for trial in done if trial.node.rank == rank]
        if group:
            total = sum(trial.node.count for trial in group)
            shares = (
                sum(t.node.count for t in group if loss(t) <= NEAR) / total for loss in LOSSES
            )
            cells = " | ".join(f"{share:.1%}" for share in shares)
            ratio = statistics.median(
                t.node.candidates[t.node.cheapest].ns / t.ns[t.node.cheapest] for t in group
            )
            lines.append(f"| {title} | {total} ({len(group)} distinct) | {cells} | {ratio:.2f} |")
    left = sum(trial.node.count for trial in ours) - sum(trial.node.count for trial in done)
    if left:
        lines += ["", f"{left} nodes were left out, because the time was over."]
    lines += [
        "",
        "| node | number | best | us | stored | loss | by `cost` | loss | estimates over times |",
        "| --- | ---: | --- | ---: | --- | ---: | --- | ---: | --- |",
    ]
    for trial in done:
        if trial.node.rank < 2 or max(trial.stored, trial.chosen) > NEAR:
            lines.append(row(trial))
    return "\n".join(lines)


def row(trial: Trial) -> str:
    """Return the row of a node."""
    node, ns = trial.node, trial.ns
    names = [form(each) for each in node.candidates]
    best = min(range(len(ns)), key=ns.__getitem__)
    ratios = ", ".join(
        f"{name} {each.ns / taken:.2f}"
        for name, each, taken in zip(names, node.candidates, ns, strict=True)
        if taken <= HOPELESS * ns[best]
    )
    return (
        f"| {node.text} | {node.count} | {names[best]} | {ns[best] / 1e3:.0f} | {names[0]} "
        f"| {trial.stored:.0%} | {names[node.cheapest]} | {trial.chosen:.0%} | {ratios} |"
    )


def main() -> None:
    """Measure all forms on all levels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, printed only")
    parser.add_argument("--narrow", action="store_true", help="weights of int8 and int4")
    parser.add_argument("--minutes", type=float, default=2.5, help="how long to measure")
    args = parser.parse_args()
    found = trials(narrow_plans(packing="at_open") if args.narrow else plans())
    run(found, 30.0 if args.quick else 60 * args.minutes)
    for isa in _kernels.available_isas():
        print(f"**{isa}**\n\n{(text := table(isa, found))}\n")
        if not args.quick:
            setting = describe_setting(command_line("forms"))
            narrow = "narrow " * args.narrow
            title = f"{narrow}on {isa}".capitalize()
            write_section(f"forms {narrow}{isa}", title, f"{setting}\n\n{text}", PAGE)


if __name__ == "__main__":
    main()
