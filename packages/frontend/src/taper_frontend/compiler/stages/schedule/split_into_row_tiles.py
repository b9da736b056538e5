"""Split chains of nodes over images into row tiles, so that tensors between stay in cache."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.chains import Room, chain_alone, room_of
from taper_frontend.compiler.analysis.estimates import node_cost
from taper_frontend.compiler.analysis.regions import part_of, regions
from taper_frontend.compiler.stages.schedule.tiles import Tiles, rows_together
from taper_runtime.base.decisions import Decision
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.machine.cost import Locality, cache_bytes, shared_ns
from taper_runtime.ops.region import Same, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape
    from taper_runtime.ops.region import Range

#: The most nodes of a chain that are considered together, and the most tiles: inputs of a CAT.
_LONGEST, _MOST = 8, 64

#: The most segments that a decision lists.
_LISTED = 100


def split_into_row_tiles(graph: Graph, room: Room | None = None) -> bool:
    """Compute chains of nodes over large images [N, H, *, C] one row tile after the other.

    ::

        MATMUL(x, w)                          for each tile:
        CONV(., v, kernel=(3, 3))               SLICE(x), MATMUL(., w), CONV(., v), MATMUL(., u)
        MATMUL(., u)                          CAT(tiles)

    A tile is as large as the cache allows, so tensors between the nodes of a chain do not go to
    memory, and the arena holds tiles instead of images. The regions of the ops say which rows of x
    a tile needs. Those rows are a view, and the result is computed at its offset in the whole.
    Neighbouring tiles both compute the rows that both need. This cost, and that of reading the
    weights again, is compared with the saving. If there are several images, a tile holds one or
    more of them, or rows of one image.

    Parameters
    ----------
    graph : Graph
    room : int or callable, optional
        The most bytes that a node of a chain reads and writes for one tile, or a function that
        returns them for a chain (:data:`.chains.Room`). By default those of a core's own cache.

    Returns
    -------
    bool
        Whether anything was split.
    """
    done: set[str] = set()
    changed = False
    for node in graph.order():
        if node.output in done or node.output not in graph.nodes:
            continue
        chain = _chain(graph, node)
        done.update(link.node.output for link in chain)
        if len(chain) < 2:
            continue
        nodes = [link.node for link in chain]
        nbytes = room_of(room, "row tiles", partial(chain_alone, graph, nodes))
        segments, weighed = _segments(graph, chain, nbytes)
        graph.listener.considered(_decision(chain, segments, weighed))
        for segment in segments:
            if segment.tiles:
                _split(graph, segment)
                graph.listener.fired("split_into_row_tiles", segment.links[-1].node.output)
                changed = True
    return changed


def _decision(
    chain: Sequence[_Link], segments: Sequence[_Segment], weighed: Sequence[_Segment]
) -> Decision:
    """Return the decision about a chain, under the name of its last node.

    Its candidates are the whole chain without tiles and as chosen, and each segment alone.
    """
    whole = sum(each.time for each in weighed if not each.tiles)
    among = {"no tiles": round(whole), "as chosen": round(sum(each.time for each in segments))}
    tiled = [each for each in weighed if each.tiles]
    among |= {each.text(): round(each.time) for each in tiled[:_LISTED]}
    chosen = ", ".join(each.text() for each in segments if each.tiles)
    why = f"{counted(len(chain), 'node')} from {chain[0].node.output}; least estimated time"
    return Decision("row tiles", chain[-1].node.output, chosen or "none", among, why)


class _Tile(NamedTuple):
    """A part of a tensor [N, H, ...]."""

    images: Range
    rows: Range


class _Link(NamedTuple):
    """A node of a chain.

    Attributes
    ----------
    node : Node
    source : str
        The input that comes from the node before, or from outside for the first node.
    relation : Same or Window
        The relation of the rows of ``source`` to the rows of the output.
    height : int
        The number of rows of ``source``.
    """

    node: Node
    source: str
    relation: Same | Window
    height: int

    def reads(self, tile: _Tile) -> _Tile:
        """Return the part of ``source`` that a tile of the output needs."""
        if isinstance(self.relation, Same):
            return tile
        start, stop = self.relation.needs(tile.rows)
        return _Tile(tile.images, (max(0, start), min(self.height, stop)))


class _Segment(NamedTuple):
    """Links that are computed together: in tiles of the last output, or whole if there are none."""

    links: Sequence[_Link]
    tiles: Sequence[_Tile]
    time: float  # the estimated time in nanoseconds

    def text(self) -> str:
        """Return the text of a segment: the number of tiles, and the nodes."""
        return f"{len(self.tiles)} for {self.links[0].node.output} to {self.links[-1].node.output}"


# -- what is a chain -------------------------------------------------------------------------------


def _chain(graph: Graph, node: Node) -> list[_Link]:
    """Return the chain from ``node`` on: each node is the only reader of the one before."""
    chain: list[_Link] = []
    following: Node | None = node
    source = node.inputs[0] if node.inputs else ""
    while following is not None and (link := _link(graph, following, source)) is not None:
        chain.append(link)
        source = following.output
        following = graph.sole_consumer(source)
    return chain


def _link(graph: Graph, node: Node, source: str) -> _Link | None:
    """Return ``node`` as a link if it can compute rows of its output from rows of ``source``."""
    output = graph.tensors[node.output].shape
    if not graph.is_static(node) or 0 in output or source not in node.inputs:
        return None
    shape = graph.tensors[source].shape
    if node.inputs.index(source) in node.definition.weights or len(shape) < 3:
        return None
    if len(shape) != len(output) or node.definition.view is not None:
        return None
    region, *others = {
        region
        for name, region in zip(node.inputs, regions(graph, node), strict=True)
        if name == source
    }
    images, rows, *_ = region
    if others or images != Same(0) or not isinstance(rows, (Same, Window)) or rows.axis != 1:
        return None
    one = dict.fromkeys((0, 1), (0, 1))
    return _Link(node, source, rows, shape[1]) if part_of(graph, node, one) else None


# -- what is weighed -------------------------------------------------------------------------------


def _segments(
    graph: Graph, chain: Sequence[_Link], room: int
) -> tuple[list[_Segment], list[_Segment]]:
    """Split a chain into the segments with the least estimated time; also return all weighed."""
    weighed = []
    best: list[tuple[float, list[_Segment]]] = [(0.0, [])]
    for stop in range(1, len(chain) + 1):
        options = []
        for start in range(max(0, stop - _LONGEST), stop):
            segment = _segment(graph, chain[start:stop], room)
            if segment is not None:
                weighed.append(segment)
                time, before = best[start]
                options.append((time + segment.time, [*before, segment]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1], weighed


def _segment(graph: Graph, links: Sequence[_Link], room: int) -> _Segment | None:
    """Return the segment with the fewest tiles that fit in ``room``; None if that is useless."""
    last = graph.tensors[links[-1].node.output]
    # A large result is written to memory by this segment, and read again by the next one.
    live_across = 2 * shared_ns(last.nbytes) if last.nbytes > room else 0.0
    if len(links) == 1:
        return _Segment(links, (), node_cost(graph, links[0].node, Locality(waited=live_across)))
    if all(graph.tensors[link.node.output].nbytes <= room for link in links[:-1]):
        return None
    images, rows = last.shape[:2]
    step = max(rows_together(graph, link.node) for link in links)
    for count in range(2, _MOST + 1):
        # Whole images, as long as there are at least as many images as tiles.
        groups = min(count, images)
        per_image = -(-count // groups)
        if per_image > max(1, rows // step):
            return None
        tiles = [
            _Tile(group, part)
            for group in _shares(images, groups)
            for part in _shares(rows, per_image if groups == images else 1, step)
        ]
        if len(tiles) <= _MOST and all(_peak(graph, links, tile) <= room for tile in tiles):
            time = sum(_tile_time(graph, links, tile) for tile in tiles)
            time += _weights(graph, links, len(tiles))
            return _Segment(links, tiles, time + live_across)
    return None


def _shares(count: int, parts: int, step: int = 1) -> list[Range]:
    """Return about equal ranges, which begin at multiples of ``step``."""
    starts = [count * i // parts // step * step for i in range(parts)]
    return list(zip(starts, [*starts[1:], count], strict=True))


def _spans(links: Sequence[_Link], tile: _Tile) -> list[tuple[_Tile, _Tile]]:
    """Return, for a tile of the last output, what each link reads of its source and computes."""
    spans = []
    for link in reversed(links):
        read = link.reads(tile)
        spans.append((read, tile))
        tile = read
    return spans[::-1]


def _bytes(graph: Graph, tensor: str, tile: _Tile) -> float:
    spec = graph.tensors[tensor]
    return spec.nbytes * _share(spec.shape, tile)


def _share(shape: Shape, tile: _Tile) -> float:
    """Return the fraction of a tensor that is in a tile."""
    images, rows = (stop - start for start, stop in tile)
    return images * rows / (shape[0] * shape[1])


def _peak(graph: Graph, links: Sequence[_Link], tile: _Tile) -> float:
    """Return the most bytes that one link reads and writes for a tile."""
    return max(
        _bytes(graph, link.source, read) + _bytes(graph, link.node.output, made)
        for link, (read, made) in zip(links, _spans(links, tile), strict=True)
    )


def _tile_time(graph: Graph, links: Sequence[_Link], tile: _Tile) -> float:
    time = 0.0
    for link, (_, made) in zip(links, _spans(links, tile), strict=True):
        step = rows_together(graph, link.node)
        start, stop = made.rows
        computed = made._replace(rows=(start, start + -(-(stop - start) // step) * step))
        share = _share(graph.tensors[link.node.output].shape, computed)
        time += node_cost(graph, link.node, Locality(share))
    return time


def _weights(graph: Graph, links: Sequence[_Link], tiles: int) -> float:
    """Return the time of reading the weights again for every tile after the first."""
    names = {name for link in links for name in link.node.inputs if graph.is_constant(name)}
    nbytes = sum(graph.tensors[name].nbytes for name in names)
    return (tiles - 1) * shared_ns(nbytes) if nbytes > cache_bytes() // 2 else 0.0


# -- the rewrite -----------------------------------------------------------------------------------


def _split(graph: Graph, segment: _Segment) -> None:
    """Compute the segment's tiles, and concatenate the rows of images, then the images."""
    last = segment.links[-1].node
    images: dict[Range, list[str]] = {}
    for tile in segment.tiles:
        images.setdefault(tile.images, []).append(_compute(graph, segment.links, tile))
    if len(images) == 1:
        graph.replace_node(last, "CAT", next(iter(images.values())), {"axis": 1})
        return
    parts = [
        tiles[0]
        if len(tiles) == 1
        else graph.add_node(
            "CAT", tiles, {"axis": 1}, name=f"{last.output}.tile", source=last.source
        )
        for tiles in images.values()
    ]
    graph.replace_node(last, "CAT", parts, {"axis": 0})


def _compute(graph: Graph, links: Sequence[_Link], tile: _Tile) -> str:
    """Add the nodes that compute a tile of the last link's output."""
    tiles, made = Tiles(graph, ".tile"), ""
    for link, (_, write) in zip(links, _spans(links, tile), strict=True):
        made = tiles.compute(link.node, dict(enumerate(write)))
    return made
