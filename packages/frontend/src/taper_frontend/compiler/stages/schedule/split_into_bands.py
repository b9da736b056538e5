"""Chains of ops over images, a band of rows at a time, so that what they hand on stays in cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taper_frontend.compiler.analysis.cost import node_cost
from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_runtime.machine.cost import Place, cache_bytes, shared_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape

#: Nodes of a chain that are weighed together, and bands at most: a CAT's inputs.
_LONGEST, _MOST = 8, 64

#: Ops whose windows slide over the rows of their first input.
_WINDOWED = frozenset({"CONV", "MAX_POOL", "AVG_POOL"})
_NORMS = frozenset({"LAYER_NORM", "RMS_NORM"})


def split_into_bands(graph: Graph) -> bool:
    """Compute chains of nodes over large images [N, H, *, C] one band of rows after the other.

    ::

        MATMUL(x, w)                          for each band:
        CONV(., v, kernel=(3, 3))               SLICE(x), MATMUL(., w), CONV(., v), MATMUL(., u)
        MATMUL(., u)                          CAT(bands)

    A band is as large as cache allows: between the nodes of a chain nothing goes to memory, and the
    arena holds bands instead of images. The rows of x that a band needs are a view, and its result
    is computed where it lies in the whole. Neighbours compute the rows that both need, which is
    weighed against what they save, and so is reading the weights again. Of several images each is a
    band or several.
    """
    done: set[str] = set()
    changed = False
    for node in graph.order():
        if node.output in done or node.output not in graph.nodes:
            continue
        chain = _chain(graph, node)
        done.update(link.output for link in chain)
        for part in _segments(graph, chain):
            if part.bands:
                _split(graph, part)
                graph.listener.fired("split_into_bands", part.nodes[-1].output)
                changed = True
    return changed


class _Band(NamedTuple):
    """Part of a tensor [N, H, ...]: images and rows, the first and beyond."""

    images: tuple[int, int]
    rows: tuple[int, int]


class _Segment(NamedTuple):
    """Nodes that are computed together: in bands of the last one's output, or, without, whole."""

    nodes: Sequence[Node]
    bands: Sequence[_Band]
    time: float  # estimated, in nanoseconds


class _Window(NamedTuple):
    """Which rows of its input a node needs: kernel, stride, padding above, and dilation."""

    kernel: int
    stride: int
    low: int
    dilation: int

    def needs(self, rows: tuple[int, int]) -> tuple[int, int]:
        """First row that rows of the output need, which may be negative, and the one beyond."""
        first = rows[0] * self.stride - self.low
        last = (rows[1] - 1) * self.stride - self.low + self.dilation * (self.kernel - 1)
        return first, last + 1


def _window(node: Node) -> _Window:
    attrs = node.attrs
    if node.op in _WINDOWED:
        dilation = attrs.get("dilation", (1,))[0]
        return _Window(attrs["kernel"][0], attrs["stride"][0], attrs["padding"][0], dilation)
    return _Window(1, 1, 0, 1)


# -- what is a chain -------------------------------------------------------------------------------


def _chain(graph: Graph, node: Node) -> list[Node]:
    """Nodes from ``node`` on, of which each is all that reads the one before."""
    chain: list[Node] = []
    following: Node | None = node
    while following is not None and _is_banded(graph, following):
        if chain and chain[-1].output not in following.inputs[: _operands(following)]:
            break
        if chain and following.inputs.count(chain[-1].output) > 1:
            break
        chain.append(following)
        following = graph.sole_consumer(following.output)
    return chain


def _is_banded(graph: Graph, node: Node) -> bool:
    """Whether rows of the output, its second dim, need no more than some rows of x."""
    if not graph.is_static(node) or 0 in graph.tensors[node.output].shape:
        return False
    ranks = [len(graph.tensors[name].shape) for name in (node.inputs[0], node.output)]
    if ranks[0] != ranks[1] or ranks[0] < 3:
        return False
    if node.op == "MATMUL":
        return len(graph.tensors[node.inputs[1]].shape) == 2
    if node.op in _NORMS:
        return int(node.attrs["dims"]) <= ranks[0] - 2
    return is_elementwise(node) or node.op in _WINDOWED


def _operands(node: Node) -> int:
    """How many of the inputs have the rows of x: those before weights and epilogues."""
    return len(node.inputs) if is_elementwise(node) else 1


# -- what is weighed -------------------------------------------------------------------------------


def _segments(graph: Graph, chain: Sequence[Node]) -> list[_Segment]:
    """Cut a chain into segments so that it takes the least time, as far as that is estimated."""
    best: list[tuple[float, list[_Segment]]] = [(0.0, [])]
    for stop in range(1, len(chain) + 1):
        options = []
        for start in range(max(0, stop - _LONGEST), stop):
            segment = _segment(graph, chain[start:stop])
            if segment is not None:
                time, before = best[start]
                options.append((time + segment.time, [*before, segment]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def _segment(graph: Graph, nodes: Sequence[Node]) -> _Segment | None:
    """The fewest bands that fit cache; None where that is impossible or would be pointless."""
    last = graph.tensors[nodes[-1].output]
    # A large tensor is written to memory and read again, by this segment's last node and the next.
    handed_on = 2 * shared_ns(last.nbytes) if last.nbytes > cache_bytes() else 0.0
    if len(nodes) == 1:
        return _Segment(nodes, (), node_cost(graph, nodes[0], Place(waited=handed_on)))
    if all(graph.tensors[node.output].nbytes <= cache_bytes() for node in nodes[:-1]):
        return None
    images, rows = last.shape[:2]
    for count in range(2, _MOST + 1):
        # Whole images as long as there are as many.
        groups = min(count, images)
        per_image = -(-count // groups)
        if per_image > rows:
            return None
        bands = [
            _Band(group, band)
            for group in _shares(images, groups)
            for band in _shares(rows, per_image if groups == images else 1)
        ]
        largest = max(bands, key=lambda band: _peak(graph, nodes, band))
        if _peak(graph, nodes, largest) <= cache_bytes() and len(bands) <= _MOST:
            time = sum(_band_time(graph, nodes, band) for band in bands)
            return _Segment(nodes, bands, time + _weights(graph, nodes, len(bands)) + handed_on)
    return None


def _shares(count: int, parts: int) -> list[tuple[int, int]]:
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def _spans(graph: Graph, nodes: Sequence[Node], band: _Band) -> list[tuple[_Band, _Band]]:
    """What each node reads of its input and makes of its output, for a band of the last one's."""
    spans = []
    for node in reversed(nodes):
        first, stop = _window(node).needs(band.rows)
        height = graph.tensors[node.inputs[0]].shape[1]
        read = _Band(band.images, (max(0, first), min(height, stop)))
        spans.append((read, band))
        band = read
    return spans[::-1]


def _bytes(graph: Graph, tensor: str, band: _Band) -> float:
    spec = graph.tensors[tensor]
    return spec.nbytes * _share(spec.shape, band)


def _share(shape: Shape, band: _Band) -> float:
    """What part of a tensor a band is."""
    images, rows = (stop - first for first, stop in band)
    return images * rows / (shape[0] * shape[1])


def _peak(graph: Graph, nodes: Sequence[Node], band: _Band) -> float:
    """Most bytes that a node reads and writes for a band."""
    return max(
        _bytes(graph, node.inputs[0], read) + _bytes(graph, node.output, made)
        for node, (read, made) in zip(nodes, _spans(graph, nodes, band), strict=True)
    )


def _band_time(graph: Graph, nodes: Sequence[Node], band: _Band) -> float:
    return sum(
        node_cost(graph, node, Place(_share(graph.tensors[node.output].shape, made)))
        for node, (_, made) in zip(nodes, _spans(graph, nodes, band), strict=True)
    )


def _weights(graph: Graph, nodes: Sequence[Node], bands: int) -> float:
    """Time of reading the weights for every band but the first, where they do not stay."""
    names = {name for node in nodes for name in node.inputs if name in graph.constants}
    nbytes = sum(graph.tensors[name].nbytes for name in names)
    return (bands - 1) * shared_ns(nbytes) if nbytes > cache_bytes() // 2 else 0.0


# -- the rewrite -----------------------------------------------------------------------------------


def _split(graph: Graph, segment: _Segment) -> None:
    last = segment.nodes[-1]
    images: dict[tuple[int, int], list[str]] = {}
    for band in segment.bands:
        images.setdefault(band.images, []).append(_compute(graph, segment.nodes, band))
    if len(images) == 1:
        graph.replace_node(last, "CAT", next(iter(images.values())), {"axis": 1})
        return
    parts = [
        bands[0]
        if len(bands) == 1
        else graph.add_node(
            "CAT", bands, {"axis": 1}, name=f"{last.output}.band", source=last.source
        )
        for bands in images.values()
    ]
    graph.replace_node(last, "CAT", parts, {"axis": 0})


def _compute(graph: Graph, nodes: Sequence[Node], band: _Band) -> str:
    """Add the nodes that compute a band of the last one's output."""
    made, result = "", ""
    for node, (read, write) in zip(nodes, _spans(graph, nodes, band), strict=True):
        rank = len(graph.tensors[node.output].shape)
        inputs = []
        for index, name in enumerate(node.inputs):
            if name == made:
                inputs.append(result)
            elif index == 1 and not is_elementwise(node):
                inputs.append(name)  # a weight
            else:
                inputs.append(_cut(graph, name, rank, read if index == 0 else write))
        attrs = dict(node.attrs)
        if node.op in _WINDOWED:
            first, stop = _window(node).needs(write.rows)
            height = graph.tensors[node.inputs[0]].shape[1]
            around = (max(0, -first), max(0, stop - height))
            attrs["padding"] = (*around, *attrs["padding"][2:])
        made = node.output
        result = graph.add_node(node.op, inputs, attrs, name=f"{made}.band", source=node.source)
    return result


def _cut(graph: Graph, tensor: str, rank: int, band: _Band) -> str:
    """The band of a tensor that broadcasts to ``rank`` dims."""
    shape = graph.tensors[tensor].shape
    for axis, (first, stop) in enumerate(band, len(shape) - rank):
        if axis >= 0 and shape[axis] != 1 and (first, stop) != (0, shape[axis]):
            cut = {"axis": axis, "start": first, "stop": stop}
            tensor = graph.add_node("SLICE", [tensor], cut, name=f"{tensor}.band")
    return tensor
