"""Find the variables that a step may read before it writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.openinfer.check.walk import loop_range
from taper_runtime.openinfer.graph import ENTRY, Await, Branch, Loop, Node, Return, Yield
from taper_runtime.openinfer.kinds import accesses
from taper_runtime.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.openinfer.check.context import Context
    from taper_runtime.openinfer.check.walk import Step


class _Summary(NamedTuple):
    """What nodes do, whatever was before them.

    Attributes
    ----------
    early : dict of str to Node
        The variables that they may read before they write them, and the first node that does.
    written : set of str
        Variables that they surely write.
    """

    early: dict[str, Node]
    written: set[str]

    def then(self, other: _Summary) -> None:
        """Add what runs behind."""
        for name, node in other.early.items():
            if name not in self.written:
                self.early.setdefault(name, node)
        self.written.update(other.written)


def read_before_written(context: Context, steps: Sequence[Step]) -> dict[str, Node]:
    """Return the variables that a step may read before it writes them, and the first node that does.

    Parameters
    ----------
    context : Context
        No block of its graph branches back to itself.
    steps : sequence of Step
        Every node, those of a block behind those that branch to it.
    """
    blocks: dict[str, _Summary] = {}
    beside = context.graph.blocks_beside()
    for name in reversed(dict.fromkeys([ENTRY, *(step.block for step in steps)])):
        blocks[name] = _summary(context, context.graph.blocks[name].nodes, blocks, beside)
    return blocks[ENTRY].early


def _summary(
    context: Context,
    nodes: Sequence[Node],
    blocks: Mapping[str, _Summary],
    beside: Sequence[str],
) -> _Summary:
    """Summarize nodes in order; ``blocks`` has those that they branch to and those ``beside``."""
    found = _Summary({}, set())
    for node in nodes:
        kind = node.kind
        reads, writes = accesses(kind)
        found.then(_Summary({access.base: node for access in reads}, set()))
        found.written.update(access.base for access in writes)
        if isinstance(kind, Return):
            break
        if isinstance(kind, Loop):
            body = _summary(context, kind.body, blocks, beside)
            found.then(body if loop_range(context, kind) else body._replace(written=set()))
        elif isinstance(kind, Branch):
            names = [name for name in (kind.then, kind.otherwise) if name is not None]
            targets = [blocks.get(name, _Summary({}, set())) for name in names]
            written = set.intersection(*(target.written for target in targets))
            for target in targets:
                found.then(target._replace(written=set()))
            found.written.update(written)
        elif isinstance(kind, Yield):
            for name in beside:
                found.then(blocks.get(name, _Summary({}, set()))._replace(written=set()))
        elif isinstance(kind, Await):
            for name in beside:
                found.written.update(blocks.get(name, _Summary({}, set())).written)
    return found
