"""Explain every reason why a model cannot be exported, and what would run slowly if it can."""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator

from taper_frontend.capture.attempts import CapturedProgram, attempt
from taper_frontend.capture.capture import Model, capture
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_frontend.errors import CaptureError, ExportError, UnsupportedNode
from taper_frontend.lowering.lower import survey
from taper_frontend.lowering.source_line import without_module
from taper_frontend.request.arguments import check_model
from taper_frontend.request.dims import of_ranges, settle
from taper_frontend.request.notes import of_plan, stored_bytes
from taper_frontend.request.options import Options
from taper_frontend.request.program_inputs import read_inputs
from taper_frontend.request.request import make_request
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.executor.executor import definition, input_types, output_types
from taper_runtime.executor.sites import sites
from taper_runtime.machine.cost import Locality, cost, shared_ns
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.executor.sites import Site
    from taper_runtime.plan.plan import Plan, PlanNode

#: What a user can do about each category of break.
HINTS = {
    "op": "write it with supported ops, or add a handler (docs/adding-an-op.md)",
    "dtype": "convert to a supported dtype before this line, or keep this part out of the model",
    "dynamic shape": "give the Dim a narrower range, or take it out of dynamic_shapes",
    "mutation": "return the new value instead of writing to the argument",
    "control flow": "compute both branches and choose with torch.where, or export them apart",
    "data-dependent": "keep shapes fixed: a mask or torch.where instead of a selection",
}


class Break(NamedTuple):
    """One reason why a model cannot be exported.

    Attributes
    ----------
    category : str
        One of :data:`taper_frontend.errors.CATEGORIES`.
    op : str
    reason : str
    nodes : int
        How many it holds for.
    sources : list of str
        The lines of the user's model, each once; the first is where it comes first.
    hint : str
        What the user can do.
    """

    category: str
    op: str
    reason: str
    nodes: int
    sources: list[str]
    hint: str


class Fallback(NamedTuple):
    """An op that numpy would compute.

    Attributes
    ----------
    op : str
    nodes : int
    share : float
        Of the time that all nodes are estimated to take, from the work their ops say they do.
    sources : list of str
    """

    op: str
    nodes: int
    share: float
    sources: list[str]


class Explanation(NamedTuple):
    """The reasons why a model cannot be exported or runs slowly; ``str`` gives a report.

    Attributes
    ----------
    nodes : int
        ATen calls in the captured model; 0 where torch could not capture it.
    supported : int
        Those that can be exported.
    breaks : list of Break
        By category, the most frequent first; empty if the model can be exported.
    fallbacks : list of Fallback
        The slowest first.
    warnings : list of str
        What :func:`taper_frontend.export` would warn of beside fallbacks.
    """

    nodes: int
    supported: int
    breaks: list[Break]
    fallbacks: list[Fallback]
    warnings: list[str]

    @property
    def score(self) -> float:
        """Share of the nodes that can be exported, 0 to 1."""
        return self.supported / self.nodes if self.nodes else 0.0

    @property
    def categories(self) -> dict[str, int]:
        """Nodes that break the export, by category."""
        counts: Counter[str] = Counter()
        for each in self.breaks:
            counts[each.category] += each.nodes
        return dict(counts)

    def __str__(self) -> str:
        lines = [f"{self.supported} of {self.nodes} nodes can be exported ({self.score:.1%})"]
        if not self.nodes:
            lines = ["torch cannot capture the model, so its nodes are not known"]
        for category, count in self.categories.items():
            lines += ["", f"{category}: {counted(count, 'node')}"]
            for each in (each for each in self.breaks if each.category == category):
                lines.append(f"  {each.nodes} x {each.op}: {each.reason}")
                lines += [f"      at {source}" for source in each.sources]
                lines.append(f"      hint: {each.hint}")
        if self.fallbacks:
            share = sum(fallback.share for fallback in self.fallbacks)
            lines += ["", f"computed by numpy, about {share:.1%} of the time:"]
            for fallback in self.fallbacks:
                lines.append(f"  {fallback.nodes} x {fallback.op}: {fallback.share:.1%}")
                lines += [f"      at {source}" for source in fallback.sources]
        elif not self.breaks:
            lines.append("every node has a native kernel")
        lines += [line for warning in self.warnings for line in ("", f"warning: {warning}")]
        return "\n".join(lines)


def explain(
    module: Model,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
) -> Explanation:
    """Say what of a model cannot be exported and why, and what would run without a native kernel.

    Nothing is raised for a model that cannot be exported: that is what the result says. Where there
    are breaks, the rest of the model is planned as far as it goes.

    Parameters
    ----------
    module, args, kwargs, dynamic_shapes, dynamic_axes
        As :func:`taper_frontend.export` takes them.

    Returns
    -------
    Explanation

    Raises
    ------
    ExportError
        If the arguments are not those of the model, or the model is none.
    """
    check_model(module)
    request = None
    if isinstance(module, torch.nn.Module):
        options = Options(dynamic_shapes=dynamic_shapes, dynamic_axes=dynamic_axes)
        request = make_request(module, args, kwargs, options)
    try:
        if request is not None:
            return attempt(request, _explain)
        program = capture(module, dynamic_shapes=dynamic_shapes)
        return _explain(CapturedProgram(program, read_inputs(program)))
    except CaptureError as error:
        node = UnsupportedNode("torch.export", error.category, error.reason, error.source)
    except ExportError as error:
        node = UnsupportedNode("torch.export", "dynamic shape", str(error), "")
    return Explanation(0, 0, _breaks([node]), [], [])


def _explain(captured: CapturedProgram) -> Explanation:
    """Explain a captured program."""
    program = captured.program
    dims = settle(captured.inputs, captured.axes, captured.ints)
    surveyed = survey(program, dims.names, ranged=dims.ranged)
    graph = surveyed.graph
    weights = stored_bytes(graph)
    total = sum(_is_call(node) for node in program.graph.nodes)
    calls = {str(node.target) for node in program.graph.nodes if _is_call(node)}
    refused = [node for node in surveyed.refused if node.op in calls]
    nodes = total + len(surveyed.refused) - len(refused)  # inputs and buffers count too
    compile_graph(graph)
    plan = make_plan(graph)
    found = [*captured.notes, *dims.notes]
    if not surveyed.refused:  # else inputs may be missing
        found += of_ranges(surveyed, captured.inputs, captured.axes, dims.names)
    found += of_plan(plan, weights)
    return Explanation(
        nodes,
        nodes - len(surveyed.refused),
        _breaks(surveyed.refused),
        _fallbacks(plan, graph.examples),
        [note.text for note in found if note.kind != "numpy"],
    )


def _is_call(node: torch.fx.Node) -> bool:
    """Whether a node computes something: no result picked, no size, no check."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if isinstance(node.target, HigherOrderOperator):
        return True
    return isinstance(node.meta.get("val"), torch.Tensor | list | tuple)


def _breaks(refused: list[UnsupportedNode]) -> list[Break]:
    """Join what is refused for one reason."""
    groups: dict[tuple[str, str, str], list[UnsupportedNode]] = {}
    for node in refused:
        groups.setdefault((node.category, node.op, node.reason), []).append(node)
    weight = Counter(node.category for node in refused)
    breaks = [
        Break(category, op, reason, len(nodes), _sources(n.source for n in nodes), HINTS[category])
        for (category, op, reason), nodes in groups.items()
    ]
    return sorted(breaks, key=lambda each: (-weight[each.category], each.category, -each.nodes))


def _sources(sources: Any) -> list[str]:
    """Return each line once, whichever modules call it."""
    return list(dict.fromkeys(without_module(source) for source in sources if source))


def _fallbacks(plan: Plan, sizes: Mapping[str, int]) -> list[Fallback]:
    """Nodes without a native kernel, by op, with their share of the estimated time at ``sizes``."""
    without = {fallback["node"] for fallback in plan.metadata["fallbacks"]}
    found = sites(specialize(plan, sizes))
    times = {site.node.output: _estimate(site) for site in found}
    total = sum(times.values()) or 1.0
    by_op: dict[str, list[PlanNode]] = {}
    for site in found:
        if site.node.output in without:
            by_op.setdefault(site.node.op, []).append(site.node)
    fallbacks = [
        Fallback(
            op,
            len(nodes),
            sum(times[node.output] for node in nodes) / total,
            _sources(node.source for node in nodes),
        )
        for op, nodes in by_op.items()
    ]
    return sorted(fallbacks, key=lambda each: -each.share)


def _estimate(site: Site) -> float:
    """Return nanoseconds, roughly: what a native kernel would take, as often as sizes tell."""
    if site.runs_blocks:  # its time is that of what is inside
        return 0.0
    op, attrs = definition(site.node)
    inputs, outputs = input_types(site.plan, site.node), output_types(site.plan, site.node)
    streamed = shared_ns(op.work(inputs, outputs, attrs).bytes)
    return site.trips * cost(op, inputs, outputs, attrs, Locality(streamed=streamed))
