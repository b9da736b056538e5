"""Find where a variable's value is read last, so that a run of ops returns no unused results."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from taper_openinfer.language.kinds import returns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_openinfer.check.flow import Flow
    from taper_openinfer.language.graph import Node


class Liveness:
    """Tells which variables a sequence of nodes still needs at each position.

    Parameters
    ----------
    flow : Flow
    nodes : sequence of Node
    is_kept : bool
        Whether temporaries may be read after the block returns.
    behind : callable, optional
        Returns whether a variable may be read after the last node before it is written. By default
        the block ends there.
    """

    def __init__(
        self,
        flow: Flow,
        nodes: Sequence[Node],
        is_kept: bool,
        behind: Callable[[str], bool] | None = None,
    ) -> None:
        """Record the reads, the writes and the returns by position."""
        self._behind, self._is_kept = behind, is_kept
        # For each variable, the positions of the nodes that read it first or always write it.
        self._places: dict[str, list[int]] = {}
        self._is_read: dict[str, list[bool]] = {}
        # The positions of nodes that may return from the block.
        self._exits = [place for place, node in enumerate(nodes) if returns([node])]
        for place, node in enumerate(nodes):
            early, written = flow.of_node(node)
            for name in early.keys() | written:
                self._places.setdefault(name, []).append(place)
                self._is_read.setdefault(name, []).append(name in early)

    def is_read(self, name: str, place: int) -> bool:
        """Return whether the value of a variable after the node at ``place`` may be read."""
        places = self._places.get(name, ())
        following = bisect_right(places, place)
        is_last = following == len(places)
        if self._is_kept:
            leaving = bisect_right(self._exits, place)
            is_left = leaving < len(self._exits)
            if is_left and (is_last or self._exits[leaving] <= places[following]):
                return True
        if not is_last:
            return self._is_read[name][following]
        return self._is_kept if self._behind is None else self._behind(name)

    def of_body(self, flow: Flow, body: Sequence[Node], place: int) -> Liveness:
        """Return the liveness in the body of the loop at ``place``: its nodes may run again."""
        again, leaves = flow.of_nodes(body).early, self._is_kept and returns(body)

        def behind(name: str) -> bool:
            return leaves or name in again or self.is_read(name, place)

        return Liveness(flow, body, self._is_kept, behind)
