"""Explain every reason why a model cannot be exported, and which nodes would be slow."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.capture.attempts import CapturedProgram, attempt
from taper_frontend.capture.capture import Model, capture, read_model
from taper_frontend.capture.read_exported import read_program
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_frontend.errors import CaptureError, ExportError, UnsupportedNode
from taper_frontend.lowering.aten_program import TensorValue
from taper_frontend.lowering.lower import survey
from taper_frontend.lowering.needed_calls import GETITEM
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

    from taper_frontend.lowering.aten_program import Node
    from taper_runtime.executor.sites import Site
    from taper_runtime.plan.plan import Plan, PlanNode

#: What a user can do about each category of break.
HINTS = {
    "op": "write it with supported ops, or add a handler (docs/adding-an-op.md)",
    "dtype": "convert to a supported dtype before this line, or keep this part out of the model",
    "dynamic shape": "give the Dim a narrower range, or take it out of dynamic_shapes",
    "mutation": "write to a clone instead of the parameter, or make it a buffer",
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
        The number of nodes to which it applies.
    sources : list of str
        The lines of the user's model, without duplicates, in order.
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
        Its share of the estimated time of all nodes.
    sources : list of str
    """

    op: str
    nodes: int
    share: float
    sources: list[str]


class Explanation(NamedTuple):
    """The reasons why a model cannot be exported or runs slowly; ``str`` returns a report.

    Attributes
    ----------
    nodes : int
        The number of ATen calls in the captured model; 0 if torch could not capture it.
    supported : int
        The number of calls that can be exported.
    breaks : list of Break
        The reasons by category, the most frequent first; empty if the model can be exported.
    fallbacks : list of Fallback
        Ops that numpy would compute, the slowest first.
    warnings : list of str
        The warnings of :func:`taper_frontend.export`, without fallbacks.
    """

    nodes: int
    supported: int
    breaks: list[Break]
    fallbacks: list[Fallback]
    warnings: list[str]

    @property
    def score(self) -> float:
        """Return the fraction of the nodes that can be exported, 0 to 1."""
        return self.supported / self.nodes if self.nodes else 0.0

    @property
    def categories(self) -> dict[str, int]:
        """Return the number of nodes that cannot be exported, by category."""
        counts: Counter[str] = Counter()
        for each in self.breaks:
            counts[each.category] += each.nodes
        return dict(counts)

    def __str__(self) -> str:
        """Return the report as text."""
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
    model: str | None = None,
) -> Explanation:
    """Explain which nodes of a model cannot be exported and why, and which lack native kernels.

    No error is raised for a model that cannot be exported; the result says why. In that case the
    rest of the model is planned as far as possible.

    Parameters
    ----------
    module, args, kwargs, dynamic_shapes, dynamic_axes, model
        See :func:`taper_frontend.export`.

    Returns
    -------
    Explanation

    Raises
    ------
    ExportError
        If the arguments do not fit the model, or it is not a model.
    """
    check_model(module)
    request = None
    if isinstance(module, torch.nn.Module):
        options = Options(dynamic_shapes=dynamic_shapes, dynamic_axes=dynamic_axes)
        request = make_request(module, args, kwargs, options)
    try:
        if request is not None:
            return attempt(request, _explain)
        program = capture(read_model(module, model), dynamic_shapes=dynamic_shapes)
        return _explain(CapturedProgram(program, read_inputs(program)))
    except CaptureError as error:
        node = UnsupportedNode("torch.export", error.category, error.reason, error.source)
    except ExportError as error:
        node = UnsupportedNode("torch.export", "dynamic shape", str(error), "")
    return Explanation(0, 0, _breaks([node]), [], [])


def _explain(captured: CapturedProgram) -> Explanation:
    """Explain a captured program."""
    program = read_program(captured.program)
    dims = settle(captured.inputs, captured.axes, captured.ints)
    surveyed = survey(program, dims.names, ranged=dims.ranged)
    graph = surveyed.graph
    weights = stored_bytes(graph)
    total = sum(_is_call(node) for node in program.nodes)
    calls = {node.target for node in program.nodes if _is_call(node)}
    refused = [node for node in surveyed.refused if node.op in calls]
    nodes = total + len(surveyed.refused) - len(refused)  # inputs and buffers count, too
    compile_graph(graph)
    plan = make_plan(graph)
    found = [*captured.notes, *dims.notes]
    if not surveyed.refused:  # otherwise inputs may be missing
        found += of_ranges(surveyed, captured.inputs, captured.axes, dims.names)
    found += of_plan(plan, weights)
    return Explanation(
        nodes,
        nodes - len(surveyed.refused),
        _breaks(surveyed.refused),
        _fallbacks(plan, graph.examples),
        [note.text for note in found if note.kind != "numpy"],
    )


def _is_call(node: Node) -> bool:
    """Return whether a node computes something, unlike picking a result or checking a size."""
    if node.op != "call_function" or node.target == GETITEM:
        return False
    return node.is_higher_order or isinstance(node.value, TensorValue | list)


def _breaks(refused: list[UnsupportedNode]) -> list[Break]:
    """Join refusals with the same reason."""
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
    """Return the lines without duplicates, whichever modules they are called in."""
    return list(dict.fromkeys(without_module(source) for source in sources if source))


def _fallbacks(plan: Plan, sizes: Mapping[str, int]) -> list[Fallback]:
    """Return nodes without a native kernel, by op, with their share of the estimated time."""
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
    """Return the approximate nanoseconds of a native kernel, times the number of runs."""
    if site.runs_blocks:  # its time is that of the nodes inside
        return 0.0
    op, attrs = definition(site.node)
    inputs, outputs = input_types(site.plan, site.node), output_types(site.plan, site.node)
    streamed = shared_ns(op.work(inputs, outputs, attrs).bytes)
    return site.trips * cost(op, inputs, outputs, attrs, Locality(streamed=streamed))
