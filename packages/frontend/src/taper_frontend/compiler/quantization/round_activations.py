"""Let products by weights of few bits round their activations, to int8 once for several."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from taper_frontend.compiler.stages.schedule.fuse_epilogues import fuse_epilogues
from taper_frontend.compiler.stages.weights.merge_parallel_matmuls import merge_parallel_matmuls
from taper_runtime.formats.blocks import LEVELS
from taper_runtime.ops.map import EPILOGUE

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The most activations that share a scale. MiniLM's embeddings then move as far as by
#: ``int8_dynamic``; groups of 256 save a kernel 1.5% to 3%, and move them half as far again.
_MOST = 128

#: Groups are multiples of it, as a kernel reads weights.
_STEP = 8

#: The bits of levels for which kernels multiply bytes.
_BITS = (4, 8)


def round_activations(graph: Graph) -> None:
    """Set the attr ``activation_group`` of each product that can round its activations.

    ::

        MATMUL(x, w in blocks of 4 or 8 bits)      MATMUL(x, w, activation_group=128)

    Products of integers are exact, whatever the rows beside them. Products of one tensor become
    one, which rounds it once: also the gate and the other half of a gated MLP, whose epilogue is
    then a node.
    """
    products: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in graph.order():
        for block in node.blocks:
            round_activations(block)
        if node.op != "MATMUL" or node.attrs.get("accumulate"):
            continue
        weight = graph.tensors[node.inputs[1]]
        format = weight.format
        if group := activation_group(format, weight.shape[0]):
            attrs = {**node.attrs, "activation_group": group}
            graph.replace_node(node, node.op, node.inputs, attrs)
            products[node.inputs[0], format].append(graph.nodes[node.output])
    alike = [each for each in products.values() if len(each) > 1]
    for node in chain.from_iterable(alike):
        if node.attrs.get("code"):
            _set_apart(graph, node)
    if alike:
        merge_parallel_matmuls(graph)
        fuse_epilogues(graph)  # of those that stay apart


def round_to_bfloat16(graph: Graph) -> None:
    """Set the attr ``activation_dtype`` of each product by weights of bfloat16.

    ::

        MATMUL(x, w in bfloat16)      MATMUL(x, w, activation_dtype="bfloat16")

    Sums stay float32: they are those of the numbers of bfloat16, in the order of float32 products.
    """
    for node in graph.order():
        for block in node.blocks:
            round_to_bfloat16(block)
        if node.op == "MATMUL" and graph.tensors[node.inputs[1]].dtype == "bfloat16":
            attrs = {**node.attrs, "activation_dtype": "bfloat16"}
            graph.replace_node(node, node.op, node.inputs, attrs)


def _set_apart(graph: Graph, node: Node) -> None:
    """Make a node of a product's epilogue."""
    x, weight, *extras = node.inputs
    program = {name: value for name, value in node.attrs.items() if name in EPILOGUE}
    attrs = {name: value for name, value in node.attrs.items() if name not in EPILOGUE}
    product = graph.add_node(node.op, [x, weight], attrs, source=node.source)
    graph.replace_node(node, "MAP", [product, *extras], program)


def activation_group(format: str, rows: int) -> int:
    """Return how many activations are rounded together beside a weight of so many rows.

    This is the largest number up to 128 that divides the rows and is a multiple of the weight's
    blocks or divides these; 0 where kernels have no product of rounded activations.
    """
    family, *parameters = format.split(".")
    if family != "blocks":
        return 0
    levels = LEVELS[int(parameters[0]) if parameters[0].isdigit() else parameters[0]]
    if levels.bits not in _BITS or levels.code or levels.factors is not None:
        return 0
    block = int(parameters[1])
    groups = (n for n in range(_MOST, 0, -_STEP) if rows % n == 0)
    return next((n for n in groups if n % block == 0 or block % n == 0), 0)
