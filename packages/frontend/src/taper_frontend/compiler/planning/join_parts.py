"""Join row tiles and micro-batches into whole nodes, so that these can be split in another way.

A plan has only the parts of a chain. Each part is its node for a range of rows or items: it reads
slices of the same tensors, or parts of the node before. The whole node reads these tensors, or the
whole of the node before. What cannot be joined so stays in parts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.errors import ExportError
from taper_runtime.base.errors import InternalError, OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The ends of the names of parts; see :class:`taper_frontend.compiler.stages.schedule.tiles.Tiles`.
_PART = re.compile(r"\.(tile|items)(_\d+)?$")

#: Tensors that together are one: the parts of a node's output, or slices of one tensor.
_Parts = tuple[str, ...]


def join_parts(graph: Graph) -> bool:
    """Replace each CAT of parts by the whole node, where that is possible.

    ::

        SLICE(x), CONV(., v), MATMUL(., u)  for each part      CONV(x, v)
        CAT(parts)                                             MATMUL(., u)

    The result computes the same if passes that split nodes made the parts, as the names of the
    parts say. A file may have any names, so compare the results before it is used.

    Returns
    -------
    bool
        Whether anything was joined.
    """
    joiner = _PartJoiner(graph)
    names: dict[str, str] = {}
    for node in reversed(graph.order()):
        if graph.nodes.get(node.output) is node and node.op == "CAT" and _is_split(node):
            made = joiner.join(node)
            names |= {made: node.output} if made is not None else {}
    graph.rename({made: name for made, name in names.items() if made in graph.tensors})
    return bool(names)


def _is_split(node: Node) -> bool:
    return len(node.inputs) > 1 and all(map(_PART.search, node.inputs))


class _PartJoiner:
    """Makes a whole node for each group of parts, once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._whole: dict[_Parts, str | None] = {}

    def join(self, cat: Node) -> str | None:
        """Let readers of a CAT read a whole tensor, and return its name; None without one."""
        graph = self._graph
        before = len(graph.nodes)
        made = self.whole(self._flat(cat))
        if made is None or graph.tensors[made].type != graph.tensors[cat.output].type:
            graph.prune(reversed([*graph.nodes][before:]))
            self._whole.clear()
            return None
        graph.replace_uses(cat.output, made)
        graph.prune([cat.output])
        return made

    def _flat(self, cat: Node) -> _Parts:
        """Return the parts of a CAT; its parts may be CATs of parts themselves."""
        found: list[str] = []
        for name in cat.inputs:
            node = self._graph.producers.get(name)
            inner = node is not None and node.op == "CAT" and _is_split(node)
            found += self._flat(node) if node is not None and inner else [name]
        return tuple(found)

    def whole(self, parts: _Parts) -> str | None:
        """Return the tensor that the parts make up; None if no node can compute it."""
        stack = [parts]
        while stack:
            each = stack[-1]
            if each in self._whole:
                stack.pop()
                continue
            sources = self._sources(each)
            missing = [] if sources is None else [s for s in sources if s not in self._whole]
            if missing:
                stack += missing
                continue
            self._whole[each] = None if sources is None else self._make(each, sources)
            stack.pop()
        return self._whole[parts]

    def _sources(self, parts: _Parts) -> list[_Parts] | None:
        """Return the parts of each tensor to join first; None if the parts do not match."""
        graph = self._graph
        bases = tuple(map(self._unsliced, parts))
        if bases != parts:
            return [bases]
        if len(set(parts)) == 1:
            return []
        nodes = [graph.producers.get(name) for name in parts]
        first = nodes[0]
        if first is None or any(
            node is None
            or (node.op, len(node.inputs)) != (first.op, len(first.inputs))
            or node.blocks
            or len(node.outputs) > 1
            or not _PART.search(node.output)
            for node in nodes
        ):
            return None
        columns = zip(*(node.inputs for node in nodes if node is not None), strict=True)
        return [tuple(column) for column in columns if ABSENT not in column]

    def _unsliced(self, name: str) -> str:
        """Return the tensor that a split cut this slice from; another tensor is returned itself."""
        node = self._graph.producers.get(name)
        while node is not None and node.op == "SLICE":
            source = node.inputs[0]
            if not (name.startswith(source) and _PART.match(name[len(source) :])):
                break
            name, node = source, self._graph.producers.get(source)
        return name

    def _make(self, parts: _Parts, sources: Sequence[_Parts]) -> str | None:
        """Compute the whole tensor from the whole sources; return its name."""
        graph = self._graph
        if not sources:
            return parts[0]
        if any(self._whole[each] is None for each in sources):
            return None
        if sources == [tuple(map(self._unsliced, parts))] and sources[0] != parts:
            return self._whole[sources[0]]
        nodes = [graph.producers[name] for name in parts]
        whole = iter([self._whole[each] for each in sources])
        inputs = [None if name == ABSENT else next(whole) for name in nodes[0].inputs]
        try:
            return graph.add_node(
                nodes[0].op,
                inputs,
                _joined_attrs(nodes),
                name=_PART.sub("", parts[0]),
                source=nodes[0].source,
            )
        except (OpError, ExportError, InternalError):
            return None


def _joined_attrs(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the attrs of the whole node.

    Parts have padding only at the edges that they reach, and sizes of their own. What tells a part
    its place is left out.
    """
    first = nodes[0]
    attrs = {}
    for name, value in first.attrs.items():
        values: list[Any] = [node.attrs.get(name) for node in nodes]
        role = first.definition.attrs[name].role
        if role == "part":
            continue
        if all(each == value for each in values):
            attrs[name] = value
        elif role == "shape":
            # the axis along which parts differ has the sum of their sizes
            sizes = zip(*values, strict=True)
            attrs[name] = tuple(each[0] if len(set(each)) == 1 else sum(each) for each in sizes)
        elif role == "padding":
            attrs[name] = tuple(map(max, *values))
        else:
            raise ExportError(f"{name}: expected one value for all parts, got {values}")
    return attrs
