"""Find the tensors that hold a batch along their first dim, and nodes that keep items apart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.regions import part_of, regions
from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.base.sizes import Size
from taper_runtime.ops.region import Grouped, Same, output_axes

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.region import Range, Region


class BatchAxes:
    """The tensors of a graph that hold a batch, with their rows per item.

    Attributes
    ----------
    items : int
        The number of items: the first dim of most inputs; 0 if no input has one.
    rows : dict of str to int
        For each tensor [items * r, ...] in which every r consecutive rows belong to one item, r.
    """

    def __init__(self, graph: Graph) -> None:
        """Find the batch of the inputs, and follow it through the nodes."""
        self._graph = graph
        firsts = {
            name: shape[0]
            for name in graph.reads
            if (shape := graph.tensors[name].shape)
            and not any(isinstance(size, Size) for size in shape)
            and shape[0] > 1
        }
        counts = Counter(firsts.values())
        self.items: int = max(counts, key=counts.__getitem__, default=0)
        self.rows = {name: 1 for name, first in firsts.items() if first == self.items}
        self._cut: dict[str, set[str]] = {}
        for node in graph.order():
            cut = self._cut_inputs(node)
            if cut:
                self.rows[node.output] = graph.tensors[node.output].shape[0] // self.items
                self._cut[node.output] = cut

    def keeps_apart(self, node: Node) -> bool:
        """Return whether each item of the output depends only on the same item of the inputs."""
        return node.output in self.rows

    def cut_inputs(self, node: Node) -> set[str]:
        """Return the inputs that are split along with a node that keeps items apart."""
        return self._cut[node.output]

    def rows_of(self, tensor: str, items: Range) -> Range:
        """Return the rows of ``tensor`` that hold some items."""
        rows = self.rows[tensor]
        return items[0] * rows, items[1] * rows

    def _cut_inputs(self, node: Node) -> set[str]:
        """Return the inputs that are split along with the output; none if items are not apart."""
        graph, batches = self._graph, self.rows.keys() & set(node.inputs)
        output = graph.tensors[node.output].shape
        if not batches or not output or not graph.is_static(node) or not output[0]:
            return set()
        if output[0] % self.items:
            return set()
        for name, region in zip(node.inputs, regions(graph, node), strict=True):
            if not _keeps_order(region) or (name in batches and 0 not in _first_axes(region)):
                return set()
        first = part_of(graph, node, {0: (0, output[0] // self.items)})
        if first is None:
            return set()
        cut = set()
        for name, ranges in zip(node.inputs, first.inputs, strict=True):
            if name in batches and ranges[0] != (0, self.rows[name]):
                return set()
            shape = () if name == ABSENT else graph.tensors[name].shape
            if ranges != tuple((0, size) for size in shape):
                cut.add(name)
        return cut


def _first_axes(region: Region) -> list[int]:
    """Return the axes of an input that depend on the first axis of the output."""
    return [axis for axis, relation in enumerate(region) if 0 in output_axes(relation)]


def _keeps_order(region: Region) -> bool:
    """Return whether equal ranges of the first output axis need disjoint, equal ranges."""
    relations = [region[axis] for axis in _first_axes(region)]
    return all(isinstance(relation, (Same, Grouped)) for relation in relations)
