"""Remove concatenations that are split again, or joined to a larger one."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.engine import Replacement, Rule, RuleSet
from taper_frontend.compiler.rules.pattern import Match, op

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def _flatten(match: Match) -> Replacement:
    """Concatenate the parts of each inner CAT that nothing else reads."""
    graph, node = match.graph, match.node
    parts: list[str] = []
    for name in node.inputs:
        inner = graph.producers.get(name)
        if (
            inner is not None
            and inner.op == "CAT"
            and inner.attrs == node.attrs
            and graph.sole_consumer(name) is node
        ):
            parts += inner.inputs
        else:
            parts.append(name)
    return op("CAT", *parts, **node.attrs) if len(parts) > len(node.inputs) else None


def _read_parts(match: Match) -> Replacement:
    """Slice the parts instead of the whole, if each reader is a slice inside one part."""
    graph, cat = match.graph, match.node
    if graph.is_output(cat.output) or graph.is_origin(cat.output) or not graph.is_static(cat):
        return None
    axis, readers = cat.attrs["axis"], graph.consumers(cat.output)
    sizes = [graph.tensors[name].shape[axis] for name in cat.inputs]
    starts = list(accumulate(sizes[:-1], initial=0))
    parts = [_part(graph, reader, axis, starts, sizes) for reader in readers]
    indices = [index for index in parts if index is not None]
    if not readers or len(indices) < len(readers):
        return None
    names = list(cat.inputs)
    for reader, index in zip(readers, indices, strict=True):
        attrs = reader.complete_attrs()
        attrs |= {end: attrs[end] - starts[index] for end in ("start", "stop")}
        graph.replace_node(reader, "SLICE", [names[index]], attrs)
    return True


def _part(graph: Graph, reader: Node, axis: int, starts: list[int], sizes: list[int]) -> int | None:
    """Return the index of the part that contains everything that ``reader`` slices, if one does."""
    attrs = reader.complete_attrs()
    if reader.op != "SLICE" or attrs["axis"] != axis or not graph.is_static(reader):
        return None
    index = bisect_right(starts, attrs["start"]) - 1
    return index if attrs["stop"] <= starts[index] + sizes[index] else None


#: Each rule removes a CAT.
simplify_concatenations = RuleSet(
    "simplify_concatenations",
    Rule("CAT of CAT", op("CAT"), _flatten),
    Rule("SLICEs of CAT", op("CAT"), _read_parts),
)
