"""3x3 convolutions of stride 1 in Winograd's form, where that is faster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import constant_weight
from taper_runtime.formats.panels import PANEL
from taper_runtime.formats.winograd import POINTS, tiles
from taper_runtime.sizes import size_at

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: What one core with 512-bit vectors does in a nanosecond: multiply-adds, pixels' floats to or from
#: a tile's transform, and floats of a weight from memory, since one run touches all of a model's.
_PRODUCTS, _TRANSFORMED, _WEIGHT = 80.0, 8.0, 3.0

#: Steps of a sum that storing it and starting the next cost.
_SUM = 8

#: What part of the direct sums' time is few enough to take rounding errors and bytes for.
_WORTH = 0.9


def transform_weights(graph: Graph) -> bool:
    """Transform the constant weight of each convolution that is faster for it.

    ::

        CONV(x, w)                                 CONV(x, PACK(w, winograd.4))

    Sums of a quarter (F(4x4)) or of 4/9 (F(2x2)) of the products, with about twice or 0.8 times the
    rounding error of the direct ones; an infinity in x makes NaN of all pixels of a tile. The
    weight takes 4 times, or 16/9 of, the bytes. A pipeline without this pass has direct sums only.
    """
    transformed: dict[tuple[str, int], str] = {}
    changed = False
    for node in graph.order():
        if not _is_eligible(graph, node):
            continue
        tile = _fastest(graph, node)
        if tile == 0:
            continue
        x, weight, *extras = node.inputs
        if (weight, tile) not in transformed:
            transformed[weight, tile] = graph.add_node(
                "PACK", [weight], {"format": f"winograd.{tile}"}, name=f"{weight}.tiles{tile}"
            )
        graph.replace_node(node, "CONV", [x, transformed[weight, tile], *extras], node.attrs)
        graph.listener.fired("transform_weights", node.output)
        changed = True
    return changed


def _is_eligible(graph: Graph, node: Node) -> bool:
    if node.op != "CONV" or node.attrs.get("groups", 1) != 1:
        return False
    weight = constant_weight(graph, node)
    return (
        tuple(node.attrs["kernel"]) == (3, 3)
        and tuple(node.attrs["stride"]) == tuple(node.attrs["dilation"]) == (1, 1)
        and weight is not None
        and graph.tensors[weight].type.size > 0
    )


def _fastest(graph: Graph, node: Node) -> int:
    """The tile size with the least estimated time; 0: direct sums."""
    batch, *sizes, outputs = (
        size_at(size, graph.examples) for size in graph.tensors[node.output].shape
    )
    channels = graph.tensors[node.inputs[0]].shape[-1]
    columns = _lanes(outputs)
    times = {0: _WORTH * _product(batch * math.prod(sizes), 9 * channels, columns)}
    for tile in POINTS:
        points, places = (tile + 2) ** 2, batch * tiles(tuple(sizes), tile)
        moved = places * points * (_lanes(channels) + columns)
        times[tile] = points * _product(places, channels, columns) + moved / _TRANSFORMED
    return min(times, key=times.__getitem__)


def _lanes(channels: int) -> int:
    """Channels as the kernels compute them: whole vectors."""
    return -(-channels // PANEL) * PANEL


def _product(rows: int, k: int, columns: int) -> float:
    """Nanoseconds of the product of ``rows`` pixels or tiles with a weight of [k, columns]."""
    return columns * (rows * (k + _SUM) / _PRODUCTS + k / _WEIGHT)
