"""Which tensors hold a batch along their first dim, and which nodes keep its images apart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Ops that keep the images of their inputs apart as long as they name no axis 0, each with the
#: inputs that all images share: weights, tables, indices.
_SHARED: dict[str, tuple[int, ...]] = {
    "CONV": (1,),
    "CONV_TRANSPOSE": (1,),
    "LAYER_NORM": (1, 2),
    "RMS_NORM": (1,),
    "EMBEDDING": (0,),
    "INDEX_SELECT": (1,),
    **dict.fromkeys(
        ("MATMUL", "ATTENTION", "SOFTMAX", "MAX_POOL", "AVG_POOL", "RESAMPLE", "COPY"), ()
    ),
    **dict.fromkeys(("ADAPTIVE_MAX_POOL", "ADAPTIVE_AVG_POOL"), ()),
    **dict.fromkeys(("RESHAPE", "TRANSPOSE", "PERMUTE", "SLICE", "EXPAND", "FLIP", "CAT"), ()),
    **dict.fromkeys(("SUM", "MEAN", "PROD", "AMAX", "AMIN", "ANY", "ALL", "VAR"), ()),
    **dict.fromkeys(("ARGMAX", "ARGMIN", "ARGSORT", "CUMSUM", "CUMPROD"), ()),
}


class Batch:
    """How the tensors of a graph hold a batch of images.

    Attributes
    ----------
    images : int
        How many there are: the first dim of most inputs; 0 where no input has one.
    rows : dict of str to int
        For each tensor [images * r, ...] of which r rows after the other are of one image alone, r.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        firsts = {
            name: shape[0]
            for name in graph.reads
            if (shape := graph.tensors[name].shape)
            and not any(isinstance(size, Size) for size in shape)
            and shape[0] > 1
        }
        counts = Counter(firsts.values())
        self.images: int = max(counts, key=counts.__getitem__, default=0)
        self.rows = {name: 1 for name, first in firsts.items() if first == self.images}
        for node in graph.order():
            if self._keeps_apart(node):
                self.rows[node.output] = graph.tensors[node.output].shape[0] // self.images

    def keeps_apart(self, node: Node) -> bool:
        """Whether each image of the output depends on that image of the inputs alone."""
        return node.output in self.rows

    def is_cut(self, node: Node, index: int) -> bool:
        """Whether an input of a node that keeps images apart is cut along with its output."""
        name = node.inputs[index]
        if name in self.rows:
            return True
        shape, output = (self._graph.tensors[tensor].shape for tensor in (name, node.output))
        return (
            index not in self._shared(node)
            and len(shape) == len(output)
            and shape[0] == output[0]
            and output[0] > 1
        )

    def _shared(self, node: Node) -> Sequence[int]:
        if node.op == "MATMUL" and len(self._graph.tensors[node.inputs[1]].shape) <= 2:
            return (1,)
        return _SHARED.get(node.op, ())

    def _keeps_apart(self, node: Node) -> bool:
        batches = [index for index, name in enumerate(node.inputs) if name in self.rows]
        if not batches or not (is_elementwise(node) or node.op in _SHARED):
            return False
        tensors = self._graph.tensors
        output = tensors[node.output].shape
        if not output or not self._graph.is_static(node) or set(batches) & set(self._shared(node)):
            return False
        if node.op == "RESHAPE":  # row-major: what begins with whole images goes on to
            return bool(output[0]) and output[0] % self.images == 0
        shapes = [tensors[node.inputs[index]].shape for index in batches]
        if any(shape[0] != output[0] for shape in shapes):
            return False
        # What is broadcast from a lower rank has its first dim elsewhere in the output.
        changes_rank = node.op == "EMBEDDING" or (len(node.inputs) == 1 and node.op != "EXPAND")
        if not changes_rank and any(len(shape) != len(output) for shape in shapes):
            return False
        return not _works_along_first(node, len(shapes[0]))


def _works_along_first(node: Node, rank: int) -> bool:
    """Whether ``node`` moves or combines values along axis 0 of its inputs, of rank ``rank``."""
    attrs = node.complete_attrs()
    if node.op in ("LAYER_NORM", "RMS_NORM"):
        return bool(attrs["dims"] >= rank)
    if node.op == "PERMUTE":
        return bool(attrs["axes"][0] != 0)
    axes = [attrs[name] for name in ("axis", "axis0", "axis1") if name in attrs]
    return 0 in (*axes, *attrs.get("axes", ()))
