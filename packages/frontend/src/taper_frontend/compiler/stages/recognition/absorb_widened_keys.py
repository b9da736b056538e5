"""Let attention read keys and values of 16 bits, and of int8 with scales, as caches have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import op
from taper_runtime.ops.convert import FLOATS_16_BIT

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.rules.pattern import Match


def _absorb(match: Match) -> bool:
    """Let ATTENTION read keys and values before they are widened to float32."""
    graph, node = match.graph, match.node
    q, k, v, *mask = node.inputs
    steps_k, steps_v = _since_widening(graph, k), _since_widening(graph, v)
    if not steps_k or not steps_v:
        return False
    sources = [steps[-1].inputs[0] for steps in (steps_k, steps_v)]
    if len({graph.tensors[source].dtype for source in sources}) > 1:
        return False
    stored = []
    for source, (*moves, _) in zip(sources, (steps_k, steps_v), strict=True):
        name = source
        for move in reversed(moves):
            name = graph.add_node(move.op, [name], move.attrs, source=move.source)
        stored.append(name)
    graph.replace_node(node, "ATTENTION", [q, *stored, *mask], node.attrs)
    return True


def _absorb_scaled(match: Match) -> bool:
    graph, node = match.graph, match.node
    if len(node.inputs) != 4:
        return False
    q, k, v, mask = node.inputs
    stored_k, stored_v = _before_scale(graph, k), _before_scale(graph, v)
    if stored_k is None or stored_v is None:
        return False
    (k, k_scale), (v, v_scale) = stored_k, stored_v
    graph.replace_node(node, "ATTENTION", [q, k, v, mask, k_scale, v_scale], node.attrs)
    return True


def _before_scale(graph: Graph, tensor: str) -> tuple[str, str] | None:
    """Return int8 numbers of rank 4, and the scales of their last axis; None if it has no such."""
    product = graph.producers.get(tensor)
    if product is None or product.op != "MUL" or len(product.inputs) != 2:
        return None
    for widened, scale in (product.inputs, product.inputs[::-1]):
        cast = graph.producers.get(widened)
        if cast is None or cast.op != "CAST" or graph.tensors[widened].dtype != "float32":
            continue
        stored, of = graph.tensors[cast.inputs[0]], graph.tensors[scale]
        one_each = len(stored.shape) == 4 and of.shape == (*stored.shape[:-1], 1)
        if stored.dtype == "int8" and of.dtype == "float32" and one_each:
            return cast.inputs[0], scale
    return None


_MOVES = ("RESHAPE", "TRANSPOSE", "PERMUTE", "SLICE", "EXPAND")


def _since_widening(graph: Graph, tensor: str) -> list[Node]:
    """Return the moves of 16-bit floats after a CAST to float32, last first, and the CAST.

    Empty if this is no such tensor.
    """
    steps = []
    producer = graph.producers.get(tensor)
    while producer is not None and producer.op in _MOVES:
        steps.append(producer)
        producer = graph.producers.get(producer.inputs[0])
    if producer is None or producer.op != "CAST" or graph.tensors[tensor].dtype != "float32":
        return []
    is_narrow = graph.tensors[producer.inputs[0]].dtype in FLOATS_16_BIT
    return [*steps, producer] if is_narrow else []


#: Let ATTENTION widen keys and values itself, of which it reads no more than the mask allows.
#:
#: ::
#:
#:     ATTENTION(q, CAST(k), CAST(v))             ATTENTION(q, k, v)   k, v: float16 or bfloat16
#:
#: What moves elements in between moves them before. Of int8 with a mask, and a scale for each key
#: and value:
#:
#: ::
#:
#:     ATTENTION(q, CAST(k) * s, CAST(v) * t, m)  ATTENTION(q, k, v, m, s, t)   k, v: int8
absorb_widened_keys = RuleSet(
    "absorb_widened_keys",
    Rule("widened keys and values", op("ATTENTION"), _absorb),
    Rule("scaled keys and values", op("ATTENTION"), _absorb_scaled),
)
