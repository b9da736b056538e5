"""Compile a lowered graph: all that stands between lowering and planning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.pass_registry import find_passes
from taper_frontend.compiler.pipeline import name_of, run_pipeline
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.partition import Partition
    from taper_frontend.compiler.pipeline import Pass, PassRecord


#: The stage, and its first step, in which nodes are fused.
_FUSES = ("schedule", "fuse_elementwise")


def compile_graph(
    graph: Graph,
    passes: Sequence[Pass | str] | None = None,
    *,
    partition: Partition | None = None,
    output_names: Sequence[str] | None = None,
    before_fusion: Callable[[Graph], None] = lambda graph: None,
    verify: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> list[PassRecord]:
    """Optimize ``graph`` and give each output a node of its own, which the planner needs.

    The graphs inside its nodes are compiled after it, each like it. The graph can be changed until
    a plan is made of it (:func:`.make_plan`).

    Parameters
    ----------
    graph : Graph
        Changed in place.
    passes : sequence of passes or str, optional
        Stages, groups and passes, in order, themselves or by name; if not given
        :data:`taper_frontend.compiler.stages.STAGES`, with the registered passes that have a place
        among them (:func:`.registry.register_pass`). With ``()`` the graph stays as lowered.
    partition : Partition, optional
        Gives regions to a delegate, before the stage "weights" if that is among the passes, else
        behind them all. What is inside a region stays as it is then.
    output_names : sequence of str, optional
        What to call the outputs. A tensor that has such a name gets another.
    before_fusion : callable
        Gets the graph before its nodes are fused, where they are; it changes nothing.
    verify : bool
        Check the graph after every pass, and its form after every stage.
    step : callable
        Gets the stage, if the pass is part of one, and the name of each pass before it runs.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    ExportError
        On the name of a pass that does not exist, listing those that do.
    InternalError
        If passes undo each other's work forever, or a rule breaks the graph; with ``verify`` also
        if a pass does, or a stage leaves what its form says is gone.
    """
    found = find_passes(passes)
    names = [name_of(pass_) for pass_ in found]
    place = next((i for i, name in enumerate(names) if name in _FUSES), None)

    def keep_unfused(each: Graph) -> bool:
        if each is graph:  # no block
            before_fusion(graph)
        return False

    runs = [*found] if place is None else [*found[:place], keep_unfused, *found[place:]]
    records = _compile(graph, runs, verify, step, partition)
    if output_names is not None:
        graph.name_outputs(output_names)
        graph.listener.fired("name_outputs", "")
    return records


def _compile(
    graph: Graph,
    passes: Sequence[Pass],
    verify: bool,
    step: Callable[[str], None],
    partition: Partition | None = None,
) -> list[PassRecord]:
    """Compile a graph, then those inside its nodes."""
    runs = list(passes)
    if partition is not None:
        names = [name_of(pass_) for pass_ in runs]
        runs.insert(names.index("weights") if "weights" in names else len(runs), partition)
    records = run_pipeline(graph, [*runs, materialize_outputs], verify=verify, step=step)
    for node in graph.order():
        for block in node.blocks:
            inside = () if node.op == "CALL_DELEGATE" else passes
            records += _compile(block, inside, verify, step)
    return records
