"""Let attention read keys and values of 16 bits, such as those of a cache."""

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
#: What moves elements in between moves them before.
absorb_widened_keys = RuleSet(
    "absorb_widened_keys", Rule("widened keys and values", op("ATTENTION"), _absorb)
)
