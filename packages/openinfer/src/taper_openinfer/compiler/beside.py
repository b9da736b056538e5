"""Lower the blocks that run beside the entry block, between a `yield` and its `await`.

These blocks see the variables as they are at the `yield`, and not each other's writes. So lowering
them one after the other at the `yield`, and merging their writes at the `await`, gives the same
result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.touched import touched
from taper_openinfer.language import graph as g

if TYPE_CHECKING:
    from taper_openinfer.compiler.lower_program import ProgramLowering
    from taper_openinfer.compiler.scope import Scope


class Beside:
    """The blocks that run beside the entry block, and what they have written.

    Attributes
    ----------
    blocks : list of str
        Those that are neither the entry block nor a branch's target.
    """

    def __init__(self, graph: g.Graph) -> None:
        self.blocks = graph.blocks_beside()
        self._before: dict[str, str] = {}
        self._scopes: dict[str, Scope] = {}

    def start(self, lowering: ProgramLowering, scope: Scope) -> None:
        """Run every block with the variables as they are now."""
        if self._scopes:
            raise CannotLower("expected an await before the second yield")
        graph = lowering.program.graph
        if scope.graph is not lowering.graph:
            raise CannotLower("a plan cannot have a yield inside a node of control flow")
        kept = [name for name, variable in graph.vars.items() if variable.kind == "persistent"]
        written: dict[str, None] = {}
        for name in (g.ENTRY, *self.blocks):
            found = touched(graph, graph.blocks[name].nodes)
            written |= dict.fromkeys(found.written)
            if name != g.ENTRY and (shared := [each for each in found.names if each in kept]):
                raise CannotLower(
                    f"block {name} runs at the same time as others: expected it to use no "
                    f"persistent variable, got {shared[0]}"
                )
        # a write is found by comparing the values at the await with those loaded here
        lowering.loaded(scope, [name for name in written if name in graph.vars])
        self._before = dict(scope.values)
        self._scopes = {name: scope.fork() for name in self.blocks}
        for name, inner in self._scopes.items():
            lowering.block(inner, name)

    def join(self, lowering: ProgramLowering, scope: Scope) -> None:
        """Merge what the blocks wrote since the `yield`; at most one may write each variable."""
        if not self._scopes:
            return
        scopes = {g.ENTRY: scope, **self._scopes}
        self._scopes = {}
        for name in lowering.program.graph.vars:
            if (before := self._before.get(name)) is None:
                continue
            writers = [block for block, each in scopes.items() if each.values[name] != before]
            if len(writers) > 1:
                raise CannotLower(
                    f"{name}: expected at most one block to write it between yield and await, got "
                    f"{' and '.join(writers)}"
                )
            for block in writers:
                scope.values[name] = scopes[block].values[name]
