"""Find the variables that nodes may read before they write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from taper_openinfer.check.visits import loop_range
from taper_openinfer.language.graph import ENTRY, Await, Branch, Graph, Loop, Node, Return, Yield
from taper_openinfer.language.kinds import accesses, returns
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taper_openinfer.oinf.reader import Model


class Linked(Protocol):
    """The parts of a linked program that the analysis reads."""

    @property
    def graph(self) -> Graph:
        """Return the graph, whose blocks branch in no circle."""

    @property
    def model(self) -> Model:
        """Return the model, whose sizes bound the loops."""


class Summary(NamedTuple):
    """The variables that some nodes read first or write, whatever ran before them.

    Attributes
    ----------
    early : dict of str to Node
        The variables that the nodes may read before they write them, and the first node that
        reads each.
    written : set of str
        The variables that the nodes write in every run.
    """

    early: dict[str, Node]
    written: set[str]

    def then(self, other: Summary) -> None:
        """Add nodes that run afterwards."""
        for name, node in other.early.items():
            if name not in self.written:
                self.early.setdefault(name, node)
        self.written.update(other.written)

    def then_perhaps(self, other: Summary) -> None:
        """Add nodes that may run afterwards."""
        self.then(other._replace(written=set()))


class Flow:
    """Computes what the blocks of a program read first, and what they write in every run.

    Parameters
    ----------
    program : Linked
    order : iterable of str
        The blocks; each comes after the blocks that branch to it.
    """

    def __init__(self, program: Linked, order: Iterable[str]) -> None:
        self._program = program
        self._beside = program.graph.blocks_beside()
        self._blocks: dict[str, Summary] = {}
        for name in reversed(dict.fromkeys([ENTRY, *order])):
            self._blocks[name] = self.of_nodes(program.graph.blocks[name].nodes)

    def of_block(self, name: str) -> Summary:
        """Return the summary of a block; an empty one if the block is unknown."""
        return self._blocks.get(name) or Summary({}, set())

    def of_nodes(self, nodes: Sequence[Node]) -> Summary:
        """Return the summary of nodes that run one after the other."""
        found = Summary({}, set())
        may_have_returned = False
        for node in nodes:
            if may_have_returned:
                found.then_perhaps(self.of_node(node))
            else:
                found.then(self.of_node(node))
            if isinstance(node.kind, Return):
                break
            may_have_returned = may_have_returned or returns([node])
        return found

    def of_node(self, node: Node) -> Summary:
        """Return the summary of one node, including a loop's body and the blocks it branches to."""
        kind = node.kind
        reads, writes = accesses(kind)
        found = Summary({access.base: node for access in reads}, {a.base for a in writes})
        if isinstance(kind, Loop):
            body = self.of_nodes(kind.body)
            if loop_range(self._program, kind):
                found.then(body)
            else:
                found.then_perhaps(body)
        elif isinstance(kind, Branch):
            names = [name for name in (kind.then, kind.otherwise) if name is not None]
            targets = [self.of_block(name) for name in names]
            for target in targets:
                found.then_perhaps(target)
            found.written.update(set.intersection(*(target.written for target in targets)))
        elif isinstance(kind, Yield):
            for name in self._beside:
                found.then_perhaps(self.of_block(name))
        elif isinstance(kind, Await):
            for name in self._beside:
                found.written.update(self.of_block(name).written)
        return found
