"""Describe the arena of a run: places of roots and scratch, and which tensors share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.program import arena_ranges
from taper_runtime.executor.sites import executed_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.plan.plan import Plan

#: How a tensor shares the memory of another: a view of it, computed in the place of an input, or a
#: part of a larger tensor.
SHARES = ("view", "in place", "slice")


class Piece(NamedTuple):
    """A piece of the arena.

    Attributes
    ----------
    offset, bytes : int
        Where it begins in the arena, and its size.
    first, last : int
        The first and the last executed node that need it, by their numbers.
    name : str
        The tensor that owns it; of scratch, the node that needs it.
    kind : str
        ``"tensor"``; ``"scratch"``, of a kernel; or ``"blocks"``, what the blocks of a node of
        control flow need.
    shared : tuple of (str, str)
        The other tensors in the same memory, and how: one of :data:`SHARES`.
    """

    offset: int
    bytes: int
    first: int
    last: int
    name: str
    kind: str
    shared: tuple[tuple[str, str], ...] = ()


class MemoryLayout(NamedTuple):
    """The arena of a run on one thread, without the insides of blocks.

    Attributes
    ----------
    arena_bytes : int
    pieces : list of Piece
        In the order of their offsets.
    shared : dict of str to int
        How many tensors of the plan share memory of another one, inputs and outputs included, by
        how they do: see :data:`SHARES`.
    """

    arena_bytes: int
    pieces: list[Piece]
    shared: dict[str, int]

    @property
    def scratch_bytes(self) -> int:
        """Return the most scratch that a node needs."""
        return max((piece.bytes for piece in self.pieces if piece.kind == "scratch"), default=0)

    def counts(self) -> dict[str, int]:
        """Return the numbers of the layout."""
        return {
            "arena_bytes": self.arena_bytes,
            "scratch_bytes": self.scratch_bytes,
            "roots": sum(piece.kind == "tensor" for piece in self.pieces),
            "in_place": self.shared["in place"],
            "views": self.shared["view"],
            "slices": self.shared["slice"],
        }

    def data(self) -> dict[str, Any]:
        """Return the layout as plain data for JSON (docs/cli.md)."""
        pieces = [
            {**piece._asdict(), "shared": [{"name": n, "how": how} for n, how in piece.shared]}
            for piece in self.pieces
        ]
        return {**self.counts(), "pieces": pieces}

    def lines(self) -> list[str]:
        """Return the layout as text, a piece on each line."""
        rows = [("offset", "bytes", "nodes", "what")]
        for piece in self.pieces:
            nodes = f"{piece.first}" if piece.first == piece.last else f"{piece.first}-{piece.last}"
            what = piece.name if piece.kind == "tensor" else f"{piece.kind} of {piece.name}"
            what += "".join(f", {how} {name}" for name, how in piece.shared)
            rows.append((str(piece.offset), str(piece.bytes), nodes, what))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        counts = self.counts()
        return [
            (
                f"layout  arena {counts['arena_bytes']} bytes, scratch of a node at most "
                f"{counts['scratch_bytes']}, {counts['roots']} roots, {counts['in_place']} tensors "
                f"in place, {counts['views']} views, {counts['slices']} slices"
            ),
            *(
                "  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
                for row in rows
            ),
        ]


def layout_of(
    plan: Plan, arena: tuple[Sequence[tuple[int, int, int]], Sequence[int], int]
) -> MemoryLayout:
    """Return the layout of an instance.

    Parameters
    ----------
    plan : Plan
        The plan that was compiled.
    arena : tuple
        What :meth:`.Runner.arena` returns.
    """
    ranges, offsets, nbytes = arena
    nodes = executed_nodes(plan)
    members: dict[str, list[tuple[str, str]]] = {}
    shared = dict.fromkeys(SHARES, 0)
    for name, how in _sharing(plan):
        members.setdefault(plan.placements[name].root, []).append((name, how))
        shared[how] += 1
    owners = [(root, "tensor", tuple(members.get(root, ()))) for root in arena_ranges(plan, nodes)]
    owners += [(node.output, "blocks" if node.blocks else "scratch", ()) for node in nodes]
    pieces = [
        Piece(offset, size, first, last, *owner)
        for (first, last, size), offset, owner in zip(ranges, offsets, owners, strict=True)
        if size or owner[1] == "tensor"
    ]
    return MemoryLayout(nbytes, sorted(pieces, key=lambda piece: piece.offset), shared)


def _sharing(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the outputs of nodes that lie in the memory of another tensor, and how they do."""
    places = plan.placements
    for node in plan.nodes:
        is_view = not plan.is_executed(node)
        read = {places[name].root for name in node.reads}
        for name in node.outputs:
            if is_view:
                yield name, "view"
            elif places[name].root in read:
                yield name, "in place"
            elif places[name].root != name:
                yield name, "slice"
