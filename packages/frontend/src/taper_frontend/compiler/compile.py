"""Compile a graph: optimize it, and leave it as the planner takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.stages import PIPELINE, run_pipeline
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.pipeline import Pass, PassRecord


def compile_graph(graph: Graph, passes: Sequence[Pass] = PIPELINE) -> list[PassRecord]:
    """Run ``passes`` over ``graph``, and give each output a tensor of its own.

    The latter is what :func:`taper_frontend.compiler.planning.make_plan` requires, so it is done
    whatever the passes are.

    Returns
    -------
    list of PassRecord
        As :func:`taper_frontend.compiler.stages.run_pipeline` returns them.
    """
    return run_pipeline(graph, [*passes, materialize_outputs])
