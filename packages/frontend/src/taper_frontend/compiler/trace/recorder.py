"""Record the changes of a graph, one rule at a time.

The graph reports to its recorder which tensors a change touched, and the rules' engine reports when
a rule has fired. A step is the difference between the touched tensors now and as they were recorded
before. So nothing is copied, and a recording grows with the changes and not with the graph.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.constants import Derived, Literal, Parameter, steps
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.graph.printer import format_type
from taper_runtime.reports.report import module_path

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.base.decisions import Decision

_MAX_VALUES = 8  # elements of a constant that are shown; a larger one is shown by name and type
_MAX_ITEMS = 64  # items of a list in the attrs: tile programs have a few dozen
_MAX_TEXT = 400  # characters of a source line, or of a text in the attrs


class TraceRecorder(Listener):
    """Records the changes of a graph from now on, as its listener.

    Parameters
    ----------
    graph : Graph
        The lowered graph.

    Notes
    -----
    :meth:`data` describes the recording's form.
    """

    def __init__(self, graph: Graph) -> None:
        """Record the lowered graph."""
        super().__init__()
        self.decisions = graph.listener.decisions  # the graph's plan has them too
        self._decided: list[dict[str, Any]] = []
        self._graph = graph
        self._sources: dict[str, int] = {"": 0}
        self._records: dict[str, int] = {}  # for each record as JSON, its index
        self._passes: list[dict[str, Any]] = []
        self._steps: list[dict[str, Any]] = []
        self._running = False  # the last of the passes
        self._touched: dict[str, None] = {}  # an ordered set
        self._became: dict[str, str] = {}
        made = [name for node in graph.order() for name in node.outputs]
        names = [*graph.reads, *graph.constants, *made]
        self._known = {name: self._record(name) for name in names}
        self._ends = (graph.reads, graph.writes)
        self._lowered = {
            "inputs": self._ends[0],
            "outputs": self._ends[1],
            "tensors": dict(self._known),
        }
        graph.listener = self

    # -- what the graph says ----------------------------------------------------------------------

    def touch(self, *names: str) -> None:
        """Record that these tensors, or the nodes that make them, were changed."""
        for name in names:
            self._touched[name] = None

    def replaced(self, old: str, new: str) -> None:
        """Record that the readers of the tensor ``old`` read ``new`` from now on."""
        super().replaced(old, new)
        self._became[old] = new

    # -- what applies rules says ------------------------------------------------------------------

    def enter(self, stage: str, pass_: str) -> None:
        """Start a pass, and end the one before it."""
        self.leave()
        start = len(self._steps)
        self._passes.append({"stage": stage, "name": pass_, "steps": [start, start], "nodes": 0})
        self._running = True

    def leave(self) -> None:
        """End the pass; changes that belong to no rule become a step of the pass itself."""
        if not self._running:
            return
        ended = self._passes[-1]
        self.fired(ended["name"], "")
        ended["nodes"] = len(self._graph.nodes)
        self._running = False

    def fired(self, rule: str, node: str) -> None:
        """End a step: all changes since the last step are one application of ``rule``.

        Parameters
        ----------
        rule : str
        node : str
            The output, before the changes, of the node at which it was applied; empty if there is
            none.
        """
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        for name in self._touched:
            old = self._known.get(name)
            new = self._record(name) if name in self._graph.tensors else None
            if old == new:
                continue
            if old is not None:
                before[name] = self._known.pop(name)
            if new is not None:
                after[name] = self._known[name] = new
        ends = (self._graph.reads, self._graph.writes)
        became, self._touched, self._became = self._became, {}, {}
        if not before and not after and ends == self._ends:
            return
        if not self._running:  # changes outside of the pipeline form a pass of their own
            self.enter("", rule)
            self._passes[-1]["nodes"] = len(self._graph.nodes)
            self._running = False
        step: dict[str, Any] = {"rule": rule, "node": node, "before": before, "after": after}
        if became:
            step["became"] = became
        for end, old_names, new_names in zip(("inputs", "outputs"), self._ends, ends, strict=True):
            if old_names != new_names:
                step[end] = [old_names, new_names]
        self._ends = ends
        self._steps.append(step)
        self._passes[-1]["steps"][1] = len(self._steps)

    def considered(self, decision: Decision, made_of: str = "") -> None:
        """Record a choice of a pass, with its alternatives."""
        super().considered(decision, made_of)
        running = self._passes[-1]["name"] if self._running else ""
        self._decided.append({"pass": running, **decision.data()})

    # -- the recording ----------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """Return the recording as plain data for JSON.

        Returns
        -------
        dict
            ``sources``: lines of the user's model, each with the path of its module.

            ``records``: what a tensor can be. One of a node has the node's ``op``, ``inputs``,
            ``attrs``, ``type`` and ``source``, a place among the sources, and, for control flow,
            the lines of its ``blocks``; an absent input is None. An output after a node's first has
            a ``part``, which one it is, and reads the first. One of an input, a state or a constant
            has its ``role`` and ``type``; a constant made of others the names of its
            ``parameters`` and the ``ops`` that make it, another one of few elements its ``value``.

            ``lowered``: ``inputs`` (then the states), ``outputs`` (then the states' next values)
            and ``tensors``, a place among the records by name.

            ``passes``, in the order they ran: ``stage``, ``name``, ``steps`` (the first and one
            past the last) and ``nodes``, how many the graph had after it.

            ``steps``: ``rule``, the ``node`` it was applied at, ``before`` and ``after``: the
            tensors that it removed or changed as they were, those that it changed or added as they
            are, places among the records by name. ``became``: tensors whose readers read another
            now. ``inputs`` and ``outputs``: the names before and after, where they changed.

            ``decisions``: what passes chose, with the ``pass`` and the fields of
            :class:`taper_runtime.base.decisions.Decision`.
        """
        self.leave()  # an exception may have ended the pass
        self.fired("", "")
        return {
            "sources": [[source, module_path(source) or ""] for source in self._sources],
            "records": [json.loads(record) for record in self._records],
            "lowered": self._lowered,
            "passes": self._passes,
            "steps": self._steps,
            "decisions": self._decided,
        }

    def _record(self, name: str) -> int:
        """Return the index of the record of a tensor's current state."""
        graph = self._graph
        spec = graph.tensors[name]
        record: dict[str, Any] = {"type": format_type(spec)}
        node = graph.producers.get(name)
        if node is None:
            record["role"] = spec.role
            if name in graph.constants:
                record |= _recipe(graph.constants[name])
        else:
            source = node.source.line[:_MAX_TEXT]
            record["op"] = node.op
            record["inputs"] = [name or None for name in node.inputs]
            record["attrs"] = {name: _plain(value) for name, value in node.attrs.items()}
            record["source"] = self._sources.setdefault(source, len(self._sources))
            if node.blocks:
                record["blocks"] = [str(block).splitlines() for block in node.blocks]
            if part := node.outputs.index(name):
                record |= {"part": part, "inputs": [node.output], "attrs": {}, "blocks": []}
        return self._records.setdefault(json.dumps(record), len(self._records))


def _recipe(constant: Constant) -> dict[str, Any]:
    """Return how a constant is computed; nothing is computed and no parameter is read."""
    if isinstance(constant, Literal):
        few = constant.array.size <= _MAX_VALUES and constant.dtype != "bfloat16"
        return {"value": _plain(constant.array.tolist())} if few else {}
    parts = list(steps(constant))
    names = [part.names[0] for part in parts if isinstance(part, Parameter)]
    ops = [part.op for part in parts if isinstance(part, Derived)]
    return {"parameters": _plain(names), "ops": _plain(ops)}


def _plain(value: Any) -> Any:
    """Convert an attr to JSON: long lists are cut, sizes and non-finite floats become texts."""
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value[:_MAX_ITEMS]]
        return items if len(value) <= _MAX_ITEMS else [*items, f"... {len(value)} in all"]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_MAX_TEXT]
