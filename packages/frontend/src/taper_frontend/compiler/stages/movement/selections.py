"""Merge consecutive copies that only select rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.views import is_free_reshape
from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.ops.evaluate import evaluate_op
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_MIN_ROW = 16  # elements; for shorter rows a copy costs more than it saves
_MAX_ELEMENTS = 1 << 24  # elements of a tensor that is traced element by element


def merge_selections(graph: Graph) -> bool:
    """Merge movements that take two or more copies into one INDEX_SELECT.

    ::

        x -> INDEX_SELECT (shift rows)             x -> RESHAPE [images, rows, C]
          -> INDEX_SELECT (shift columns)            -> INDEX_SELECT (places, axis=1)
          -> RESHAPE -> PERMUTE -> RESHAPE           -> RESHAPE
             (cut into windows)

    The export computes where each element comes from. Elements that always move together, at least
    the channels of a pixel, form a row. Parts that are all rearranged alike, such as images, share
    one list of positions. This is done only if fewer copies remain.
    """
    return rewrite(graph, _merge)


def _merge(graph: Graph, node: Node) -> bool:
    """Merge the chain of movements that ends at ``node``, if that saves a copy.

    The positions of all elements are traced through the chain. If they are unchanged, a RESHAPE is
    enough; otherwise rows are selected from each image, the input's first axes.
    """
    reader = graph.sole_consumer(node.output)
    if not _is_move(graph, node) or (reader is not None and _is_move(graph, reader)):
        return False
    chain = [node]
    while (
        (before := graph.producers.get(chain[0].inputs[0])) is not None
        and _is_move(graph, before)
        and graph.sole_consumer(before.output) is chain[0]
    ):
        chain.insert(0, before)
    source = graph.tensors[chain[0].inputs[0]]
    copies = sum(_is_copy(graph, move) for move in chain)
    if copies < 2 or source.type.size > _MAX_ELEMENTS:
        return False
    places = _follow(graph, chain, np.arange(source.type.size).reshape(source.shape))
    row = _row(places, source.shape)
    if row < _MIN_ROW:
        return False
    wanted = {"shape": graph.tensors[node.output].shape}
    if row == places.size == source.type.size:  # every element is at its original position
        graph.replace_node(node, "RESHAPE", [source.name], wanted)
        return True
    images = _images(places, source.shape)
    shape = (images, source.type.size // images // row, row)
    if copies == 2 and not is_free_reshape(graph, source.name, shape):
        return False
    name = f"{node.output}.merged"
    first = places.reshape(images, -1, row)[0, :, 0]
    index = graph.add_constant(f"{name}.places", first // row)
    rows = graph.add_node("RESHAPE", [source.name], {"shape": shape}, name=f"{name}.rows")
    taken = graph.add_node(
        "INDEX_SELECT", [rows, index], {"axis": 1}, name=name, source=node.source
    )
    graph.replace_node(node, "RESHAPE", [taken], wanted)
    return True


def _is_move(graph: Graph, node: Node) -> bool:
    """Return whether ``node`` only selects elements of its first input, by known positions.

    Views that repeat elements are excluded, because they would split rows.
    """
    if not graph.is_static(node):
        return False
    if node.op == "INDEX_SELECT":
        places = graph.constants.get(node.inputs[1])
        return places is not None and not places.is_open
    if node.definition.view is None:
        return False
    before, after = (graph.tensors[name].type.size for name in (node.inputs[0], node.output))
    return after <= before


def _is_copy(graph: Graph, node: Node) -> bool:
    if node.op == "RESHAPE":
        return not is_free_reshape(graph, node.inputs[0], graph.tensors[node.output].shape)
    return node.op == "INDEX_SELECT"


def _follow(graph: Graph, chain: list[Node], places: np.ndarray) -> np.ndarray:
    """Apply the movements of the nodes to an array of positions."""
    for node in chain:
        arrays = [places, *(graph.constants[name].value() for name in node.inputs[1:])]
        types = [TensorType(array.dtype.name, array.shape) for array in arrays]
        (places,) = evaluate_op(node.op, arrays, types, node.attrs)
    return places


def _row(places: np.ndarray, shape: tuple[int, ...]) -> int:
    """Return how many elements, a product of last dims of ``shape``, always move together."""
    row = 1
    for axis in range(len(shape) - 1, -1, -1):
        longer = math.prod(shape[axis:])
        if longer == 0 or places.size % longer:
            break
        rows = places.reshape(-1, longer)
        if (rows[:, 0] % longer).any() or (rows != rows[:, :1] + np.arange(longer)).any():
            break
        row = longer
    return row


def _images(places: np.ndarray, shape: tuple[int, ...]) -> int:
    """Return how many parts, a product of first dims, are rearranged alike, each within itself."""
    for axes in range(len(shape) - 1, 0, -1):
        images = math.prod(shape[:axes])
        if images and places.size % images == 0:
            longer = math.prod(shape[axes:])
            parts = places.reshape(images, -1)
            starts = longer * np.arange(images)[:, None]
            if (parts[0] < longer).all() and (parts == parts[0] + starts).all():
                return images
    return 1
