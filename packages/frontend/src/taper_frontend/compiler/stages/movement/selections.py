"""Merge several copies in a row that only pick rows."""

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

_MIN_ROW = 16  # elements; of shorter rows a copy costs more than what it saves
_MAX_ELEMENTS = 1 << 24  # of a tensor whose every element is followed


def merge_selections(graph: Graph) -> bool:
    """Make one INDEX_SELECT of movements that take two copies or more.

    ::

        x -> INDEX_SELECT (shift rows)             x -> RESHAPE [images, rows, C]
          -> INDEX_SELECT (shift columns)            -> INDEX_SELECT (places, axis=1)
          -> RESHAPE -> PERMUTE -> RESHAPE           -> RESHAPE
             (cut into windows)

    Where each element comes from is worked out at export. What moves together, the channels of a
    pixel at least, is a row, and what all is moved alike, such as an image, needs one list of
    places. It happens only where fewer copies are left.
    """
    return rewrite(graph, _merge)


def _merge(graph: Graph, node: Node) -> bool:
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
    if row == places.size == source.type.size:  # everything is back where it was
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
    """Return whether ``node`` only picks elements of its first input, each known at export.

    A view that repeats elements would tear apart the rows that move together.
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
    """Move numbers as the nodes move elements."""
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
    """Return how many parts, a product of first dims of ``shape``, are moved alike, each inside."""
    for axes in range(len(shape) - 1, 0, -1):
        images = math.prod(shape[:axes])
        if images and places.size % images == 0:
            longer = math.prod(shape[axes:])
            parts = places.reshape(images, -1)
            starts = longer * np.arange(images)[:, None]
            if (parts[0] < longer).all() and (parts == parts[0] + starts).all():
                return images
    return 1
