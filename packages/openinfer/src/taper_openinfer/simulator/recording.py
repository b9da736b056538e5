"""Record the values of variables after each node of some steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.language import graph as g
from taper_openinfer.simulator.variables import format_truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_openinfer.link import LinkedProgram
    from taper_openinfer.simulator.events import TraceEvent
    from taper_openinfer.simulator.executor import Executor

#: How many nodes are recorded; later ones run unrecorded.
MAX_NODES = 20_000
#: How many entries of a table are shown.
_MAX_ENTRIES = 8


class Recorder:
    """Runs an executor's steps node by node and records what changes.

    Parameters
    ----------
    program : LinkedProgram
    executor : Executor
    """

    def __init__(self, program: LinkedProgram, executor: Executor) -> None:
        self._program, self._executor = program, executor
        self._nodes = {node.uuid: node for node in program.graph.nodes()}
        names = [
            name
            for name, variable in program.variables.items()
            if not variable.declaration.is_prefix_table
        ]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._known: dict[str, np.ndarray] = {}
        self._values: list[dict[str, Any]] = []
        self._steps: list[dict[str, Any]] = []
        self._count = 0
        self.is_cut = False

    def step(self) -> Iterator[TraceEvent]:
        """Run one step; see :meth:`.executor.Executor.iterate`."""
        self._count += 1
        walk = self._executor.iterate()
        self._note(f"step {self._count} begins", "", [], (), "")
        for event in walk:
            node = self._nodes[event.node_uuid]
            facts = [["node", str(event.node_index)], ["block", event.block_name]]
            if node.place is not None:
                facts.append(["line", str(node.place.line)])
            loops = self._executor.loops()
            if loops:
                facts.append(["loops", ", ".join(f"{name} = {n}" for name, n in loops.items())])
            if event.micros:
                facts.append(["time", event.micros])
            self._note(event.node_desc, event.block_name, facts, _written(node.kind), event.kind)
            yield event
        self._know()

    def _note(
        self, title: str, block: str, facts: list[list[str]], written: tuple[str, ...], kind: str
    ) -> None:
        """Record the variables that changed since the node before."""
        if len(self._steps) >= MAX_NODES:
            self.is_cut = True
            return
        before = self._known
        now = self._know()
        after: dict[int, int | None] = {
            self._numbers[name]: self._add(name, array)
            for name, array in now.items()
            if name in written or self._has_changed(name, before.get(name), array)
        }
        after |= {self._numbers[name]: None for name in before if name not in now}
        self._steps.append(
            {
                "step": self._count,
                "title": title,
                "block": block,
                "kind": kind,
                "facts": facts,
                "after": after,
            }
        )

    def _know(self) -> dict[str, np.ndarray]:
        self._known = self._executor.loaded()
        return self._known

    def _has_changed(self, name: str, before: np.ndarray | None, now: np.ndarray) -> bool:
        """Return whether a variable changed; only arrays of caches are ever written to."""
        if before is None:
            return True
        if self._program.variables[name].declaration.is_cache:
            return before.shape != now.shape
        return before is not now

    def _add(self, name: str, array: np.ndarray) -> int:
        """Store how a value is displayed; return its number."""
        variable = self._program.variables[name]
        lines = [format_truncated(array, variable.dtype)]
        rank = array.ndim - len(variable.shape)
        if variable.declaration.table:
            lines = [
                f"[{', '.join(map(str, index))}] {format_truncated(array[index], variable.dtype)}"
                for index in _first(array.shape[:rank])
            ]
            left = int(np.prod(array.shape[:rank])) - len(lines)
            lines += [f"and {left} more"] * (left > 0)
        self._values.append({"shape": list(array.shape), "lines": lines})
        return len(self._values) - 1

    def data(self) -> dict[str, Any]:
        """Return the recording for JSON: variables, values, and the changes of each step."""
        variables = []
        for name in self._numbers:
            variable = self._program.variables[name]
            kind = variable.declaration.kind
            dims = ", ".join(map(str, variable.shape))
            variables.append({"name": name, "kind": kind, "type": f"{variable.dtype}[{dims}]"})
        return {"variables": variables, "values": self._values, "steps": self._steps}


def _written(kind: g.NodeKind) -> tuple[str, ...]:
    """Return the cache that a node writes, or the variable that may get the same view again."""
    match kind:
        case g.CacheRead():
            return (kind.dst.base,)
        case g.CacheWrite():
            return (kind.dst.base,)
        case g.CacheReset():
            return (kind.target.base,)
        case g.CacheIncrement() | g.CacheDecrement():
            return (kind.target,)
    return ()


def _first(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the first indices of a table."""
    count = min(int(np.prod(shape)), _MAX_ENTRIES)
    return [tuple(map(int, np.unravel_index(number, shape))) for number in range(count)]
