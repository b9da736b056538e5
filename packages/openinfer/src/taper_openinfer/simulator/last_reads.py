"""Tell where what a temporary holds is still read, so that a run of ops leaves no more."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from taper_openinfer.language.kinds import returns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_openinfer.check.flow import Flow
    from taper_openinfer.language.graph import Node


class Liveness:
    """What nodes, one after the other, still need of variables.

    Parameters
    ----------
    flow : Flow
    nodes : sequence of Node
    is_kept : bool
        Whether what the block leaves in temporaries where it returns may be read.
    behind : callable, optional
        Says of a variable whether what runs behind the last node may read it first; by default that
        is the end of the block.
    """

    def __init__(
        self,
        flow: Flow,
        nodes: Sequence[Node],
        is_kept: bool,
        behind: Callable[[str], bool] | None = None,
    ) -> None:
        self._behind, self._is_kept = behind, is_kept
        # By variable: the places of the nodes that read it first, or surely write it, in order.
        self._places: dict[str, list[int]] = {}
        self._is_read: dict[str, list[bool]] = {}
        # Of nodes that may return from the block.
        self._exits = [place for place, node in enumerate(nodes) if returns([node])]
        for place, node in enumerate(nodes):
            early, written = flow.of_node(node)
            for name in early.keys() | written:
                self._places.setdefault(name, []).append(place)
                self._is_read.setdefault(name, []).append(name in early)

    def is_read(self, name: str, place: int) -> bool:
        """Whether the value that a variable has behind the node at a place may be read."""
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
        """Return that of the body of the loop at a place: its nodes may run again."""
        again, leaves = flow.of_nodes(body).early, self._is_kept and returns(body)

        def behind(name: str) -> bool:
            return leaves or name in again or self.is_read(name, place)

        return Liveness(flow, body, self._is_kept, behind)
