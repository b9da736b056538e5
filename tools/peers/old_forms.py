"""Choose the forms of convolutions as commit a2ddc4c1 did, so that tuning can be compared with it.

That commit estimated with one machine for all ISA levels, whose products waited for their weights.
The work that an op counts for a 3x3 convolution of stride 1 is the same today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from taper_frontend.compiler.stages.weights import transform_weights
from taper_runtime.base.decisions import Decision
from taper_runtime.formats.winograd import POINTS
from taper_runtime.machine.cost import Locality, cost
from taper_runtime.machine.limits import TYPICAL

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Attrs, OpDef, TensorType

#: The limits of a2ddc4c1: nothing but arithmetic, sums and scratch memory had a time.
LIMITS = TYPICAL._replace(flops=160.0, reached=1.0, function_ns=0.0, row_ns=0.0, spill=1.0)

#: Its DRAM, in bytes per nanosecond, and the part of the direct sums' time below which another form
#: was taken.
DRAM, WORTH = 12.0, 0.9


def old_form(op: OpDef, inputs: list[TensorType], output: TensorType, attrs: Attrs) -> int:
    """Return the tile size that a2ddc4c1 took for a convolution; 0 for direct sums."""
    x, weight, *extras = inputs
    times = {}
    for tile in (0, *POINTS):
        stored = weight._replace(format=f"winograd.{tile}") if tile else weight
        place = Locality(waited=stored.nbytes / DRAM)
        times[tile] = cost(op, [x, stored, *extras], [output], attrs, place, LIMITS)
    times[0] *= WORTH
    return min(times, key=times.__getitem__)


def _fastest(graph: Graph, node: Node) -> tuple[int, Decision]:
    types = [graph.tensors[name].type for name in (*node.inputs, node.output)]
    tile = old_form(node.definition, types[:-1], types[-1], node.complete_attrs())
    return tile, Decision("form", node.inputs[1], str(tile), reason="the rule of a2ddc4c1")


def old_forms() -> AbstractContextManager[object]:
    """Return a context in which exports of fixed sizes choose forms as a2ddc4c1 did."""
    return mock.patch.object(transform_weights, "_fastest", _fastest)
