"""Quantize tensors before they are joined or padded, instead of after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.base.sizes import is_static

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The ops that quantize, before the CAST to bytes.
_STEPS = ("MUL", "ROUND", "ADD", "MAXIMUM", "MINIMUM")


def quantize_before_joining(graph: Graph) -> bool:
    """Move QUANTIZE before CAT, and quantize constant borders at export.

    ::

        QUANTIZE(CAT(x, y), s)               CAT(QUANTIZE(x, s), QUANTIZE(y, s))
        QUANTIZE(CAT(zeros, x, zeros), s)    CAT(bytes, QUANTIZE(x, s), bytes)

    Then what makes x quantizes it in its epilogue, bytes of another scale become those of this one
    in one step, and a convolution can pad its input itself. The scale and the zero point are
    constants of one element; QUANTIZE may be written out.
    """
    return rewrite(graph, _swap)


def _swap(graph: Graph, node: Node) -> bool:
    """Quantize the parts of a CAT, if ``node`` quantizes them together."""
    is_last = node.op in ("QUANTIZE", "CAST")
    if not is_last or graph.tensors[node.output].dtype not in ("int8", "uint8"):
        return False
    steps = [node]
    cat = graph.producers.get(node.inputs[0])
    while cat is not None and cat.op in _STEPS and _is_alone(graph, cat, steps[-1]):
        steps.append(cat)
        cat = graph.producers.get(cat.inputs[0])
    if cat is None or cat.op != "CAT" or not _is_alone(graph, cat, steps[-1]):
        return False
    if any(not _is_one(graph, name) for step in steps for name in step.inputs[1:]):
        return False
    borders = {name: _border(graph, name) for name in cat.inputs}
    if None not in borders.values():
        return False
    parts: dict[str, str] = {}
    for name, border in borders.items():
        y, value = name, border
        for step in reversed(steps):
            rest = step.inputs[1:]
            if value is None:
                y = graph.add_node(step.op, [y, *rest], step.attrs, source=step.source)
            else:
                known = [graph.value(other) for other in rest]
                ones = [np.asarray(other).reshape(()) for other in (value, *known)]
                value = np.asarray(step.definition.evaluate(ones, step.complete_attrs()))
        if value is not None:
            shape = graph.tensors[name].shape
            y = graph.add_constant("border", np.full(shape, value, value.dtype))
        parts[name] = y
    graph.replace_node(node, "CAT", [parts[name] for name in cat.inputs], cat.attrs)
    for name, border in borders.items():  # an image is padded along one axis after the other
        if border is None:
            _swap(graph, graph.producers[parts[name]])
    return True


def _is_alone(graph: Graph, node: Node, reader: Node) -> bool:
    return graph.sole_consumer(node.output) is reader


def _is_one(graph: Graph, name: str) -> bool:
    value = graph.value(name)
    return value is not None and value.size == 1


def _border(graph: Graph, name: str) -> np.ndarray | None:
    """Return the element that a constant tensor has everywhere, or None."""
    producer = graph.producers.get(name)
    source = producer.inputs[0] if producer is not None and producer.op == "EXPAND" else name
    value = graph.value(source)
    if value is None or value.size == 0 or not all(map(is_static, graph.tensors[name].shape)):
        return None
    first: np.ndarray = value.reshape(-1)[:1].reshape(())
    return first if bool((value == first).all()) else None
