"""Make a plan of a lowered program, without torch: optimize its graph, then plan it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.quantized import rounded_weights, unserved_weights
from taper_frontend.compiler.compile import compile_graph, fuse_again
from taper_frontend.compiler.memory_budget import within_budget
from taper_frontend.compiler.partition import Partition
from taper_frontend.compiler.pass_registry import find_passes, with_room
from taper_frontend.compiler.planning import (
    make_plan,
    make_schedule,
    plan_unfused,
)
from taper_frontend.compiler.planning.spool import ConstantValues
from taper_frontend.compiler.trace import tracing, write_trace
from taper_frontend.errors import ExportError
from taper_frontend.export_progress import QUIET
from taper_frontend.lowering.lower import written_name
from taper_frontend.quantized_plan import quantize_plan
from taper_frontend.request.names import output_names
from taper_frontend.request.notes import (
    of_memory,
    of_partition,
    of_plan,
    of_quantized,
    of_written,
    stored_bytes,
)
from taper_frontend.request.options import DEFAULTS, machine_of_export
from taper_runtime.base import VERSION  # one for all packages
from taper_runtime.base.buffers import aligned_copy
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.replaceable import without_decoded, without_packed
from taper_runtime.plan.trees import TENSORS, with_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.export_progress import ExportProgress
    from taper_frontend.lowering.lower import Lowered
    from taper_frontend.lowering.pytrees import TreeStructure
    from taper_frontend.request.notes import Note
    from taper_frontend.request.options import Options
    from taper_frontend.verify.inside import InspectedPlan
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
        from taper_frontend.verify.inside import InspectedPlan

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
    lowered : Lowered
    output_structure : TreeStructure
        Of the module's result.
    samples : sequence of numpy.ndarray
        An example of each input; empty if there is none.
    captured_by : str
        What captured the program, as in ``"torch 2.13.0"``.
    describe : callable
        Tells for a trace what was captured; see
        :func:`taper_frontend.capture.captured_calls.describe_program`.
    notes : callable
        Returns notes for the user on the capture and the sizes.
    """

    lowered: Lowered
    output_structure: TreeStructure
    samples: Sequence[np.ndarray]
    captured_by: str
    describe: Callable[[], list[dict[str, Any]]]
    notes: Callable[[], list[Note]]


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
        If the plan is not valid for all sizes, or the names of outputs do not fit, or there is a
        memory budget and nodes compute sizes.
    """
    lowered = program.lowered
    graph = lowered.graph
    weights = stored_bytes(graph)
    rounded = rounded_weights(graph)
    step("optimize")
    nodes_lowered = len(graph.nodes)
    delegate = options.delegate or ""
    partition = Partition(options.partition, delegate) if options.partition else None
    unfused: list[Graph] = []
    passes, splits = options.passes, None
    if options.tuned is not None:
        from taper_frontend.tuned_plan import tuned_splits

        splits = tuned_splits(options)
        passes = with_room(find_passes(passes), splits)
    with tracing(graph, options.trace, title, program.describe) as trace:
        records = compile_graph(
            graph,
            passes,
            partition=partition,
            output_names=output_names(
                program.output_structure,
                lowered.output_tree,
                graph.reads,
                options.output_names,
                list(map(written_name, lowered.written)),
            ),
            before_fusion=lambda graph: unfused.append(graph.copy()),
            step=step.inside("optimize"),
        )
        for decision in () if splits is None else splits.decisions:
            graph.listener.considered(decision)
    step("plan")
    schedule = make_schedule(graph)
    metadata: dict[str, Any] = {
        "producer": f"taper_frontend {VERSION}, {program.captured_by}",
        "nodes_lowered": nodes_lowered,
        "passes": [
            {"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed
        ],
    }
    if splits is not None:
        metadata["tuned"] = {"splits": splits.chosen, "missing": splits.missing}
    samples = dict(zip(graph.inputs, program.samples, strict=False))
    values = ConstantValues()
    if options.memory_budget is not None and not options.quantizes_weights:
        step("budget")

        def form(room: int) -> Graph:
            return fuse_again(unfused[0], options.passes, room, graph.outputs)

        again = form if unfused and options.partition is None else None
        graph, schedule, metadata["memory"] = within_budget(
            graph, schedule, options.memory_budget, again, samples, values
        )
    try:
        plan = make_plan(
            graph,
            schedule,
            samples={name: aligned_copy(array) for name, array in samples.items()},
            input_tree=lowered.input_tree,
            output_tree=_renamed(lowered.output_tree, iter(graph.outputs)),
            metadata=metadata,
            complex_ends=lowered.complex_reads
            | {graph.outputs[i] for i in lowered.complex_outputs},
            weights=lowered.weights,
            packed_at_open=options.keeps_plain,
            values=values,
        )
    except PlanFormatError as error:
        if not graph.sizes:
            raise
        raise ExportError(
            f"expected a plan that is valid for all sizes, but that could not be proved ({error}); "
            "narrower ranges of the dims may help"
        ) from error
    if trace:
        _trace_nodes(trace, plan, graph.examples, options)
    unserved = unserved_weights(graph)
    kept = {name: to for name, to in rounded.items() if name not in unserved}
    quantized = of_quantized(unserved, kept)
    if options.strict and quantized:
        raise ExportError("strict: " + "\n".join(note.text for note in quantized))
    found = [
        *program.notes(),
        *of_written(lowered.written, plan.outputs),
        *of_plan(without_decoded(without_packed(plan) if options.keeps_plain else plan), weights),
        *quantized,
        *of_memory(metadata.get("memory")),
        *of_partition(delegate, [] if partition is None else partition.left),
    ]
    plan = plan._replace(metadata={**plan.metadata, "warnings": [n._asdict() for n in found]})
    return Compiled(plan, graph, unfused[0] if unfused else None)


def _trace_nodes(
    trace: dict[str, Any], plan: Plan, sizes: Mapping[str, int], options: Options
) -> None:
    """Write a trace again, with the ways to compute the plan's nodes."""
    from taper_frontend.compiler.trace.node_ways import node_ways
    from taper_frontend.tuned_plan import measurements_of

    assert options.trace is not None
    measured = None if options.tuned is None else measurements_of(options)
    trace["nodes"] = node_ways(plan, sizes, machine_of_export(), measured)
    write_trace(trace, options.trace)


def finish_plan(plan: Plan, options: Options) -> Plan:
    """Quantize or tune a plan as the options say, and drop the constants that sessions compute."""
    if options.quantizes_weights:
        assert options.quantize is not None
        plan = quantize_plan(
            plan,
            options.quantize,
            packing=options.packing,
            verify=options.verify is not False,
            memory_budget=options.memory_budget,
        )
    elif options.tuned is not None:
        from taper_frontend.tuned_plan import with_tuned_weights

        plan = with_tuned_weights(plan, options)
    elif options.packs_at_open:
        plan = without_packed(plan)
    plan = without_decoded(plan)
    if options.metadata:
        plan = plan._replace(metadata={**plan.metadata, "user": dict(options.metadata)})
    return plan.read_only()


def _renamed(tree: Any, names: Iterator[str]) -> Any:
    """Return the output tree with its tensors' final names, which passes may have changed."""
    return with_leaves(tree, lambda leaf: [leaf[0], next(names)] if leaf[0] in TENSORS else leaf)
