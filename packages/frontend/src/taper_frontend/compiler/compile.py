"""Compile a lowered graph: all that stands between lowering and planning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.pipeline import run_pipeline
from taper_frontend.compiler.stages import STAGES
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.pipeline import Pass, PassRecord


def compile_graph(
    graph: Graph, passes: Sequence[Pass] = STAGES, *, verify: bool = False
) -> list[PassRecord]:
    """Optimize ``graph`` and give each output a node of its own, which the planner needs.

    The graphs inside its nodes are compiled after it, each like it.

    Parameters
    ----------
    graph : Graph
        Changed in place.
    passes : sequence of passes, optional
        Stages, groups and passes, in order; :data:`taper_frontend.compiler.stages.STAGES` if not
        given. With ``()`` the graph stays as lowered.
    verify : bool
        Check the graph after every pass, and its form after every stage.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    InternalError
        If passes undo each other's work forever, or a rule breaks the graph; with ``verify`` also
        if a pass does, or a stage leaves what its form says is gone.
    """
    records = run_pipeline(graph, [*passes, materialize_outputs], verify=verify)
    for node in graph.order():
        for block in node.blocks:
            records += compile_graph(block, passes, verify=verify)
    return records
