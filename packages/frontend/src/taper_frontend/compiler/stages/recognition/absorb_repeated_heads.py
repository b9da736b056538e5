"""Let attention read unrepeated key and value heads for grouped queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import op

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.rules.pattern import Match
    from taper_runtime.ops.opdef import Shape


def _absorb(match: Match) -> bool:
    graph, node = match.graph, match.node
    q, k, v, *mask = node.inputs
    k_heads, v_heads = _heads_before_repeat(graph, k), _heads_before_repeat(graph, v)
    if k_heads is None or v_heads is None:
        return False
    (k_source, shape), (v_source, v_shape) = k_heads, v_heads
    if shape[1] != v_shape[1]:
        return False
    k = graph.add_node("RESHAPE", [k_source], {"shape": shape}, source=node.source)
    v = graph.add_node("RESHAPE", [v_source], {"shape": v_shape}, source=node.source)
    graph.replace_node(node, "ATTENTION", [q, k, v, *mask], node.attrs)
    return True


def _heads_before_repeat(graph: Graph, tensor: str) -> tuple[str, Shape] | None:
    """Return the tensor whose heads ``tensor`` repeats, and its rank 4 shape; else None."""
    flat = graph.producers.get(tensor)
    if flat is None or flat.op != "RESHAPE":
        return None
    repeated = graph.producers.get(flat.inputs[0])
    if repeated is None or repeated.op != "EXPAND":
        return None
    source = repeated.inputs[0]
    before, after = graph.tensors[source].shape, graph.tensors[repeated.output].shape
    if len(before) != 5 or before != (*after[:2], 1, *after[3:]):
        return None
    batch, heads, group, *rest = after
    if graph.tensors[tensor].shape != (batch, heads * group, *rest):
        return None
    return source, (batch, heads, *rest)


#: Let ATTENTION read each key and value head for its whole group of query heads.
#:
#: ::
#:
#:     k: [B, Hkv, L, D]                          ATTENTION(q, k, v)   k, v: [B, Hkv, L, D]
#:       -> RESHAPE [B, Hkv, 1, L, D]
#:       -> EXPAND  [B, Hkv, G, L, D]
#:       -> RESHAPE [B, Hkv * G, L, D]
#:     v likewise; ATTENTION(q, ., .)
#:
#: Both must be repeated, and equally.
absorb_repeated_heads = RuleSet(
    "absorb_repeated_heads", Rule("heads repeated for a group", op("ATTENTION"), _absorb)
)
