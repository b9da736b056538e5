"""Make a plan of a captured program: lower it, optimize its graph, plan that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.capture.buffer_values import READ
from taper_frontend.capture.told import describe_program
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.partition import Partition
from taper_frontend.compiler.planning import make_plan, make_schedule, plan_unfused
from taper_frontend.compiler.trace import tracing
from taper_frontend.errors import ExportError
from taper_frontend.export_progress import QUIET
from taper_frontend.lowering import lower
from taper_frontend.lowering.context import stored
from taper_frontend.lowering.keep import Keep
from taper_frontend.lowering.lower import written_name
from taper_frontend.request.dims import of_ranges, settle
from taper_frontend.request.names import output_names
from taper_frontend.request.notes import of_partition, of_plan, of_written, stored_bytes
from taper_frontend.request.options import DEFAULTS
from taper_frontend.verify import InspectedPlan
from taper_runtime.base.buffers import aligned_copy
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.replaceable import without_packed
from taper_runtime.plan.trees import TENSORS, with_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_frontend.capture.attempts import CapturedProgram
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.export_progress import ExportProgress
    from taper_frontend.lowering.lower import Lowered
    from taper_frontend.request.dims import Dims
    from taper_frontend.request.options import Options
    from taper_runtime.plan.plan import Plan


class Compiled(NamedTuple):
    """Plan of a program, with the graphs that it was made from.

    Attributes
    ----------
    plan : Plan
    graph : Graph
        The compiled graph that the plan was made from.
    unfused : Graph or None
        The graph before its nodes were fused; None if none were.
    """

    plan: Plan
    graph: Graph
    unfused: Graph | None

    def views(self) -> list[InspectedPlan]:
        """Return the plan, preceded by one of the graph before fusion if there is one."""
        views = [InspectedPlan(self.plan, self.graph.stands_for)]
        if self.unfused is not None:
            graph = self.unfused
            compile_graph(graph, ())
            views.insert(
                0,
                InspectedPlan(
                    plan_unfused(graph, self.plan, self.graph.constants), graph.stands_for
                ),
            )
        return views


class LoweredProgram(NamedTuple):
    """Program that has been lowered, and can be compiled.

    Equal fingerprints of its graph (:func:`.fingerprint`) and of the options
    (:meth:`.Options.fingerprint`) lead to equal plans.

    Attributes
    ----------
    source : CapturedProgram
    lowered : Lowered
    dims : Dims
        The dimensions that vary, and their ranges.
    """

    source: CapturedProgram
    lowered: Lowered
    dims: Dims


def compile_program(
    captured: CapturedProgram,
    options: Options = DEFAULTS,
    *,
    trusting: bool = False,
    title: str = "model",
    step: ExportProgress = QUIET,
) -> Compiled:
    """Make a plan of a captured program: :func:`lower_program`, then :func:`compile_lowered`."""
    lowered = lower_program(captured, options, trusting=trusting, step=step)
    return compile_lowered(lowered, options, title=title, step=step)


def lower_program(
    captured: CapturedProgram,
    options: Options = DEFAULTS,
    *,
    trusting: bool = False,
    step: ExportProgress = QUIET,
) -> LoweredProgram:
    """Lower a captured program.

    Parameters
    ----------
    captured : CapturedProgram
    options : Options
    trusting : bool
        Whether to take the least sizes from torch's ranges, without trying smaller ones.
    step : ExportProgress
        Gets the name of each step before it runs.

    Raises
    ------
    UnsupportedNodesError
        If nodes cannot be lowered; it lists all of them.
    ExportError
        If a dimension that has to vary does not, or the module decides by buffers which a session
        is to replace.
    """
    read = captured.program.graph_module.meta.get(READ)
    if options.replaceable and read:
        raise ExportError(
            "weights='replaceable': expected a module that computes the same for any values, got "
            f"one that decides by its buffers {', '.join(read)}; make them plain Python numbers"
        )
    dims = settle(captured.inputs, captured.axes, captured.ints)
    step("lower")
    lowered = lower(
        captured.program,
        dims.names,
        ranged=dims.ranged,
        trusting=trusting,
        inputs=captured.inputs.names,
        keep=Keep(options.keep),
        replaceable=options.replaceable,
    )
    return LoweredProgram(captured, lowered, dims)


def compile_lowered(
    program: LoweredProgram,
    options: Options = DEFAULTS,
    *,
    title: str = "model",
    step: ExportProgress = QUIET,
) -> Compiled:
    """Optimize the graph of a lowered program in place, and make a plan of it.

    Parameters
    ----------
    program : LoweredProgram
    options : Options
        The same that it was lowered with.
    title : str
        The model's name in a trace.
    step : ExportProgress
        Gets the name of each step before it runs.

    Raises
    ------
    ExportError
        If the plan is not valid for all sizes, or the names of outputs do not fit.
    """
    captured, lowered, dims = program
    graph, inputs = lowered.graph, captured.inputs
    weights = stored_bytes(graph)
    step("optimize")
    nodes_lowered = len(graph.nodes)
    delegate = options.delegate or ""
    partition = Partition(options.partition, delegate) if options.partition else None
    unfused: list[Graph] = []
    with tracing(graph, options.trace, title, lambda: describe_program(captured.program)):
        spec = captured.program.call_spec.out_spec
        records = compile_graph(
            graph,
            options.passes,
            partition=partition,
            output_names=output_names(
                spec,
                lowered.output_tree,
                graph.reads,
                options.output_names,
                list(map(written_name, lowered.written)),
            ),
            before_fusion=lambda graph: unfused.append(graph.copy()),
            step=step.inside("optimize"),
        )
    step("plan")
    schedule = make_schedule(graph)
    report = {
        "producer": f"taper_frontend {_version()}, torch {torch.__version__}",
        "nodes_lowered": nodes_lowered,
        "passes": [
            {"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed
        ],
    }
    samples = zip(graph.inputs, inputs.example, strict=False)
    try:
        plan = make_plan(
            graph,
            schedule,
            samples={name: aligned_copy(stored(tensor)) for name, tensor in samples},
            input_tree=lowered.input_tree,
            output_tree=_renamed(lowered.output_tree, iter(graph.outputs)),
            metadata=report,
            complex_ends=lowered.complex_reads
            | {graph.outputs[i] for i in lowered.complex_outputs},
            weights=lowered.weights,
            packed_at_open=options.packs_at_open,
        )
    except PlanFormatError as error:
        if not graph.sizes:
            raise
        raise ExportError(
            f"expected a plan that is valid for all sizes, but that could not be proved ({error}); "
            "narrower ranges of the dims may help"
        ) from error
    found = [
        *captured.notes,
        *dims.notes,
        *of_ranges(lowered, inputs, captured.axes, dims.names),
        *of_written(lowered.written, plan.outputs),
        *of_plan(without_packed(plan) if options.packs_at_open else plan, weights),
        *of_partition(delegate, [] if partition is None else partition.left),
    ]
    plan = plan._replace(metadata={**plan.metadata, "warnings": [n._asdict() for n in found]})
    return Compiled(plan, graph, unfused[0] if unfused else None)


def _renamed(tree: Any, names: Iterator[str]) -> Any:
    """Return the output tree with its tensors' final names, which passes may have changed."""
    return with_leaves(tree, lambda leaf: [leaf[0], next(names)] if leaf[0] in TENSORS else leaf)


def _version() -> str:
    from taper_frontend import __version__

    return __version__
