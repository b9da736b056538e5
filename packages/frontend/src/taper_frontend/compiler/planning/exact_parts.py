"""Find how nodes compute parts of their outputs with the bits that the whole output has."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.regions import part_of
from taper_frontend.compiler.stages.schedule.tiles import rows_together
from taper_runtime.native._kernels import find_kernels, prepare
from taper_runtime.ops.opdef import contiguous_strides, is_contiguous

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape, TensorType
    from taper_runtime.ops.region import Part, Range

#: The axes of an image [N, H, W, C] whose pixels a node may compute together.
_IMAGE_AXES = (1, 2)


class ExactParts:
    """Parts of the nodes of a graph that have the bits of the whole.

    A kernel declares which of its variants add up terms in another order, and chooses a variant by
    the sizes and strides of a node: attention of few queries, for example, has other sums than that
    of many. A part for which this machine's kernel chooses another such variant than for the whole
    is none of these parts, nor is one that cuts the tiles of Winograd's algorithm.

    Parameters
    ----------
    graph : Graph
    strides : mapping of str to tuple of int
        The strides of tensors in the plan, in elements.
    """

    def __init__(self, graph: Graph, strides: Mapping[str, Shape]) -> None:
        self._graph, self._strides = graph, strides
        self._parts: dict[tuple[str, tuple[tuple[int, Range], ...]], Part | None] = {}
        self._whole: dict[str, tuple[str, str | None] | None] = {}

    def part(self, node: Node, cuts: Mapping[int, Range]) -> Part | None:
        """Return how a static node computes ranges of its output's axes; None if it cannot.

        Parameters
        ----------
        node : Node
        cuts : mapping of int to Range
            None of them is a whole axis.
        """
        key = node.output, tuple(cuts.items())
        if key not in self._parts:
            self._parts[key] = self._find(node, cuts)
        return self._parts[key]

    def _find(self, node: Node, cuts: Mapping[int, Range]) -> Part | None:
        """Return the part, unless tiles are cut or the kernel would choose another variant."""
        shape = self._graph.tensors[node.output].shape
        step = rows_together(self._graph, node)
        for axis in _IMAGE_AXES:
            start, stop = cuts.get(axis, (0, 0))
            if start % step or (stop % step and stop != shape[axis]):
                return None
        part = part_of(self._graph, node, cuts)
        if part is None or node.definition.view is not None:
            return part
        if node.output not in self._whole:
            inputs = [() if t is None else t.shape for t in self._graph.input_types(node)]
            self._whole[node.output] = self._way(node, inputs, shape, node.attrs)
        sizes = [tuple([stop - start for start, stop in ranges]) for ranges in part.inputs]
        made = [stop - start for start, stop in (cuts.get(i, (0, n)) for i, n in enumerate(shape))]
        way = self._way(node, sizes, tuple(made), part.attrs)
        return part if way == self._whole[node.output] else None

    def _way(
        self, node: Node, inputs: Sequence[Shape], output: Shape, attrs: Mapping[str, Any]
    ) -> tuple[str, str | None] | None:
        """Return the kernel that computes a node of these shapes; None if there is none.

        Beside it stands its variant if its bits depend on that.
        """
        op = node.definition
        operands = [
            None if t is None else self._operand(name, t, shape)
            for name, t, shape in zip(
                node.inputs, self._graph.input_types(node), inputs, strict=True
            )
        ]
        spec = self._graph.tensors[node.output]
        found = prepare(
            op, op.fill(attrs), operands, [self._operand(node.output, spec.type, output)]
        )
        if found is None:
            return None
        variant = found.variant if found.kernel_name in _with_other_bits(op.name) else None
        return found.kernel_name, variant

    def _operand(self, name: str, t: TensorType, shape: Shape) -> tuple[TensorType, Shape]:
        """Return the type of a part of a tensor, and its strides if it lies like the whole."""
        part = t if shape == t.shape else t._replace(shape=shape)
        strides = self._strides.get(name)
        if strides is None or is_contiguous(t.storage.shape, strides):
            strides = contiguous_strides(part.storage.shape)
        return part, strides


@cache
def _with_other_bits(op: str) -> frozenset[str]:
    """Return the kernels of an op whose bits depend on the variant."""
    kernels = find_kernels(op)
    return frozenset(k.name for k in kernels if any(each.other_bits for each in k.variants))
