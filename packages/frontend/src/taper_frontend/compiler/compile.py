"""Compile a lowered graph: run the stages, and give every output a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.pass_registry import find_passes, with_room
from taper_frontend.compiler.pipeline import name_of, run_pipeline
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.partition import Partition
    from taper_frontend.compiler.pipeline import Pass, PassRecord


#: The stage that fuses nodes, and its first step.
_FUSES = ("schedule", "fuse_elementwise")


def compile_graph(
    graph: Graph,
    passes: Sequence[Pass | str] | None = None,
    *,
    partition: Partition | None = None,
    output_names: Sequence[str] | None = None,
    before_fusion: Callable[[Graph], None] = lambda graph: None,
    verify: bool = False,
    step: Callable[[str], None] | None = None,
) -> list[PassRecord]:
    """Optimize ``graph`` and give each output its own node, as the planner requires.

    The graphs inside its nodes are compiled afterwards in the same way. The graph can still be
    changed until a plan is made of it (:func:`.make_plan`).

    Parameters
    ----------
    graph : Graph
        Changed in place.
    passes : sequence of passes or str, optional
        Stages, groups and passes, or their names, in order. By default
        :data:`taper_frontend.compiler.stages.STAGES`, with the registered passes that have a place
        among them (:func:`.registry.register_pass`). ``()`` leaves the graph as lowered.
    partition : Partition, optional
        Moves subgraphs to a delegate, before the stage "weights" if that is among the passes, else
        after all passes. Nodes in a subgraph are not changed afterwards.
    output_names : sequence of str, optional
        Names for the outputs. A tensor that already has such a name is renamed.
    before_fusion : callable
        Called with the graph before its nodes are fused, if they are; it must not change the graph.
    verify : bool
        Check the graph after every pass, and its form after every stage.
    step : callable, optional
        Called before each pass with its name, and the stage if the pass is part of one.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    ExportError
        If a pass does not exist; the message lists those that do.
    InternalError
        If passes undo each other's work forever, or a rule breaks the graph; with ``verify`` also
        if a pass breaks the graph, or the graph lacks a stage's form afterwards.
    """
    found = find_passes(passes)
    place = _fusion(found)

    def keep_unfused(each: Graph) -> bool:
        if each is graph:  # not a block
            before_fusion(graph)
        return False

    runs = [*found] if place is None else [*found[:place], keep_unfused, *found[place:]]
    records = _compile(graph, runs, verify, step, partition)
    if output_names is not None:
        graph.name_outputs(output_names)
        graph.listener.fired("name_outputs", "")
    return records


def fuse_again(
    unfused: Graph,
    passes: Sequence[Pass | str] | None,
    room: int,
    output_names: Sequence[str],
) -> Graph:
    """Split and fuse the nodes of a copy of a graph again, with smaller parts; return the copy.

    Parameters
    ----------
    unfused : Graph
        What ``before_fusion`` got (:func:`compile_graph`).
    passes : sequence of passes or str, optional
        All passes.
    room : int
        The bytes that a part of a node may read and write.
    output_names : sequence of str
        Names for the outputs.
    """
    graph, found = unfused.copy(), find_passes(passes)
    _compile(graph, with_room(found[_fusion(found) :], room), verify=False, step=None)
    graph.name_outputs(output_names)
    return graph


def _fusion(passes: Sequence[Pass]) -> int | None:
    """Return the place of the first pass that fuses nodes; None if there is none."""
    names = [name_of(pass_) for pass_ in passes]
    return next((i for i, name in enumerate(names) if name in _FUSES), None)


def _compile(
    graph: Graph,
    passes: Sequence[Pass],
    verify: bool,
    step: Callable[[str], None] | None,
    partition: Partition | None = None,
) -> list[PassRecord]:
    """Compile a graph, then the graphs inside its nodes."""
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
