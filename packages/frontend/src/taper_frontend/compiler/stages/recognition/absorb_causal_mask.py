"""Replace causal masks by attention's causal attribute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.affine import comparison, truth
from taper_frontend.compiler.analysis.static import static_constants
from taper_frontend.compiler.graph.constants import visible
from taper_frontend.compiler.rules.engine import rewrite
from taper_frontend.compiler.stages.recognition.recognize_attention import VANISHING
from taper_runtime.base.sizes import is_static

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def absorb_causal_mask(graph: Graph) -> bool:
    """Replace lower-triangular constant masks by ATTENTION's attrs causal and diagonal.

    ::

        ATTENTION(q, k, v, tril(true))             ATTENTION(q, k, v, causal, diagonal=0)
        ATTENTION(q, k, v, triu(-inf, 1))          ATTENTION(q, k, v, causal, diagonal=0)
        ATTENTION(q, k, v, tril & padding)         ATTENTION(q, k, v, padding, causal)
        ATTENTION(q, k, v, all true)               ATTENTION(q, k, v)
        ATTENTION(q, k, v, ARANGE(s) <= ARANGE(s)[:, None])      as tril(true)

    Masks may be bool or float. A float mask has 0 where attention is allowed, and elsewhere -inf or
    a number that is so low that it acts like -inf. Slices along leading dimensions must be equal.
    With such a number, a row without an allowed key attends to all keys, so every row must have
    one.
    """
    masked = [node for node in graph.nodes.values() if _is_masked(node)]
    # once for all masks, because each one would inspect the same nodes again
    constants = static_constants(graph) if any(map(graph.is_static, masked)) else {}

    def causal_mask(graph: Graph, node: Node) -> bool:
        if not _is_masked(node):
            return False
        if graph.is_static(node):
            return _absorb(graph, node, constants)
        return _absorb_for_all_sizes(graph, node)

    return rewrite(graph, causal_mask, at=("ATTENTION",))


def _is_masked(node: Node) -> bool:
    return node.op == "ATTENTION" and len(node.inputs) == 4


def _absorb(graph: Graph, node: Node, constants: Mapping[str, Constant]) -> bool:
    """Absorb a mask that depends on no input."""
    q, k, v, mask = node.inputs
    size = graph.tensors[q].shape[-2], graph.tensors[k].shape[-2]
    for constant, rest in _readings(graph, mask):
        value = visible(constants[constant]) if constant in constants else None
        allowed = None if value is None else _allowed(value, size, alone=rest is None)
        if allowed is None:
            continue
        attrs = dict(node.attrs)
        if not allowed.all():
            diagonal = _diagonal(allowed)
            if diagonal is None:
                continue
            if attrs.get("causal"):
                diagonal = min(diagonal, attrs.get("diagonal", 0))
            attrs |= {"causal": True, "diagonal": diagonal}
        graph.replace_node(node, "ATTENTION", [q, k, v] if rest is None else [q, k, v, rest], attrs)
        return True
    return False


def _absorb_for_all_sizes(graph: Graph, node: Node) -> bool:
    """Absorb a mask that compares the positions of queries and keys, or that allows all."""
    q, k, v, mask = node.inputs
    for part, rest in _readings(graph, mask):
        inputs = [q, k, v] if rest is None else [q, k, v, rest]
        attrs = dict(node.attrs)
        if not truth(graph, part):
            diagonal = _compared_diagonal(graph, part)
            if diagonal is None:
                continue
            if attrs.get("causal"):
                diagonal = min(diagonal, attrs.get("diagonal", 0))
            attrs |= {"causal": True, "diagonal": diagonal}
        graph.replace_node(node, "ATTENTION", inputs, attrs)
        return True
    return False


def _compared_diagonal(graph: Graph, mask: str) -> int | None:
    """Return d if ``mask`` allows query i to attend to key j iff j <= i + d, else None."""
    found = comparison(graph, mask)
    if found is None:
        return None
    order, apart = found
    if order not in ("LT", "LE", "GT", "GE"):
        return None
    if not is_static(apart.start) or len(apart.steps) < 2:
        return None
    sign = 1 if order in ("LT", "LE") else -1  # keys - queries + start <= 0
    if apart.steps[-2:] != (-sign, sign) or any(step != 0 for step in apart.steps[:-2]):
        return None
    return -sign * apart.start - (order in ("LT", "GT"))


def _readings(graph: Graph, mask: str) -> Iterator[tuple[str, str | None]]:
    """Yield each part of ``mask`` that may be constant, with the rest of the mask."""
    yield mask, None
    node = graph.producers.get(mask)
    if node is None:
        return
    match node.op, graph.tensors[mask].dtype, node.operands():
        case ("LOGICAL_AND" | "BITWISE_AND", "bool", [str(a), str(b)]) | (
            "ADD",
            "float32",
            [str(a), str(b)],
        ):
            yield a, b
            yield b, a
        case "WHERE", "float32", [str(keep), str(rest), float(fill)] if fill == -math.inf:
            yield keep, rest


def _allowed(mask: np.ndarray, size: tuple[int, int], *, alone: bool) -> np.ndarray | None:
    """Return which keys each query may attend to; None if ``mask`` is not such a mask.

    Parameters
    ----------
    mask : numpy.ndarray
        bool or float, broadcasting to ``[..., *size]``.
    size : tuple of int
        The numbers of queries and keys.
    alone : bool
        Whether it is the whole mask. Added to another mask, a low number does not act like -inf.
    """
    allowed = mask if mask.dtype == np.bool_ else mask == 0
    if mask.dtype != np.bool_:
        denied = mask <= VANISHING if alone else mask == -np.inf
        if not (allowed | denied).all():
            return None
    matrices = np.broadcast_to(allowed, np.broadcast_shapes(allowed.shape, size)).reshape(-1, *size)
    if not matrices.size or (matrices != matrices[0]).any():
        return None
    soft = mask.dtype != np.bool_ and np.isfinite(mask[~allowed]).any()
    if soft and not matrices[0].any(axis=1).all():
        return None
    matrix: np.ndarray = matrices[0]
    return matrix


def _diagonal(allowed: np.ndarray) -> int | None:
    """Return d such that query i may attend to key j iff j <= i + d; None if there is none."""
    queries, keys = allowed.shape
    counts = allowed.sum(axis=1)
    telling = np.flatnonzero((counts > 0) & (counts < keys))
    full = np.flatnonzero(counts == keys)
    if telling.size:
        diagonal = int(counts[telling[0]] - 1 - telling[0])
    elif full.size:  # the first row that attends to all keys
        diagonal = int(keys - 1 - full[0])
    else:
        diagonal = -queries
    return diagonal if (allowed == np.tri(queries, keys, diagonal, dtype=np.bool_)).all() else None
