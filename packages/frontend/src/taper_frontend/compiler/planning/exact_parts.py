"""Find how nodes compute parts of their outputs with the bits that the whole output has."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.analysis.regions import part_of
from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.stages.schedule.tiles import rows_together
from taper_runtime.base.records import NamedTuple
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


class KnownParts:
    """Facts about parts of nodes; equal nodes, such as those of layers, share them.

    Attributes
    ----------
    kinds : dict of tuple to int
        A number for each kind: op, attrs, and the types and strides of inputs and output.
    parts : dict of tuple to ExactPart or None
        Of a kind and ranges.
    ways : dict of int to _KernelWay or None
        How the kernel computes a whole node of a kind.
    times : dict of tuple to float
        Of a kind and the share of it that is computed, in nanoseconds.
    """

    def __init__(self) -> None:
        self.kinds: dict[tuple[object, ...], int] = {}
        self.parts: dict[tuple[int, tuple[tuple[int, Range], ...]], ExactPart | None] = {}
        self.ways: dict[int, _KernelWay | None] = {}
        self.times: dict[tuple[int, float], float] = {}


class ExactPart(NamedTuple):
    """A part of a node's output, and the bytes of its kernel's scratch memory."""

    part: Part
    scratch: int


class _KernelWay(NamedTuple):
    """The kernel of a node, its variant if its bits depend on that, and its scratch in bytes."""

    kernel: str
    variant: str | None
    scratch: int


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
    known : KnownParts
        What was found out about other graphs of the same sizes, on the same machine.
    """

    def __init__(self, graph: Graph, strides: Mapping[str, Shape], known: KnownParts) -> None:
        self._graph, self._strides, self._known = graph, strides, known
        self._kinds: dict[str, int] = {}

    def part(self, node: Node, cuts: Mapping[int, Range]) -> ExactPart | None:
        """Return how a static node computes ranges of its output's axes; None if it cannot.

        Parameters
        ----------
        node : Node
        cuts : mapping of int to Range
            None of them is a whole axis.
        """
        key = self._kind(node), tuple(cuts.items())
        if key not in self._known.parts:
            self._known.parts[key] = self._find(node, cuts)
        return self._known.parts[key]

    def ns(self, node: Node, share: float = 1.0) -> float:
        """Return :func:`.placed_cost` of a share of a node."""
        key = self._kind(node), share
        if key not in self._known.times:
            self._known.times[key] = placed_cost(self._graph, node, share)
        return self._known.times[key]

    def _kind(self, node: Node) -> int:
        if node.output not in self._kinds:
            names = (*node.inputs, *node.outputs)
            kind = (
                node.op,
                repr(sorted(node.attrs.items())),
                tuple([self._graph.is_constant(name) for name in names]),
                tuple([None if x == ABSENT else self._graph.tensors[x].type for x in names]),
                tuple([self._strides.get(name) for name in names]),
                tuple([names.index(name) for name in names]),
            )
            self._kinds[node.output] = self._known.kinds.setdefault(kind, len(self._known.kinds))
        return self._kinds[node.output]

    def _find(self, node: Node, cuts: Mapping[int, Range]) -> ExactPart | None:
        """Return the part, unless tiles are cut or the kernel would choose another variant."""
        shape = self._graph.tensors[node.output].shape
        step = rows_together(self._graph, node)
        for axis in _IMAGE_AXES:
            start, stop = cuts.get(axis, (0, 0))
            if start % step or (stop % step and stop != shape[axis]):
                return None
        part = part_of(self._graph, node, cuts)
        if part is None or node.definition.view is not None:
            return None if part is None else ExactPart(part, 0)
        kind = self._kind(node)
        if kind not in self._known.ways:
            inputs = [() if t is None else t.shape for t in self._graph.input_types(node)]
            self._known.ways[kind] = self._way(node, inputs, shape, node.attrs)
        whole = self._known.ways[kind]
        sizes = [tuple([stop - start for start, stop in ranges]) for ranges in part.inputs]
        made = [stop - start for start, stop in (cuts.get(i, (0, n)) for i, n in enumerate(shape))]
        way = self._way(node, sizes, tuple(made), part.attrs)
        if way is None or whole is None:
            return ExactPart(part, 0) if way is whole else None
        return ExactPart(part, way.scratch) if way[:2] == whole[:2] else None

    def _way(
        self, node: Node, inputs: Sequence[Shape], output: Shape, attrs: Mapping[str, Any]
    ) -> _KernelWay | None:
        """Return how a kernel computes a node of these shapes; None if there is none."""
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
        return _KernelWay(found.kernel_name, variant, found.scratch_bytes)

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
