"""Choose by measured times how chains of nodes are split, as ``taper tune`` measures them.

The passes that split make parts for the bytes of a core's own cache. How many bytes serve best
depends on the machine, so the same chain is measured as it is, and with parts for more and for
fewer bytes. All ways give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.chains import chain_key
from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.from_plan import plan_again, to_graph
from taper_frontend.compiler.graph.fingerprint import structure_digest
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.planning.join_parts import join_parts
from taper_frontend.compiler.stages.canonical.remove_noops import remove_noops
from taper_frontend.compiler.stages.schedule.move_scales import move_scales
from taper_frontend.compiler.stages.schedule.split_into_microbatches import split_into_microbatches
from taper_frontend.compiler.stages.schedule.split_into_row_tiles import split_into_row_tiles
from taper_frontend.errors import ExportError
from taper_runtime.base.decisions import Decision
from taper_runtime.executor.node_trials import Candidate, TunableNode
from taper_runtime.executor.tuned_choice import fastest
from taper_runtime.machine.cost import cache_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.analysis.chains import Room
    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.file.measurements import Measurements, NodeKey
    from taper_runtime.plan.plan import Plan

#: The ways of splitting a chain: parts for so many times the bytes of a core's own cache. The first
#: one is the default. With the last one there are no parts.
ROOMS = {
    "parts for the cache": 1.0,
    "for a quarter of it": 0.25,
    "for a half": 0.5,
    "for twice": 2.0,
    "for four times": 4.0,
    "whole": 2.0**40,
}

#: The passes that split, by what they make.
_PASSES: dict[str, Callable[[Graph, Room], bool]] = {
    "micro-batches": split_into_microbatches,
    "row tiles": split_into_row_tiles,
}


class TunedSplits:
    """Chooses the size of a chain's parts by measured times; see :data:`.chains.Room`.

    Parameters
    ----------
    measurements : Measurements
    required : bool
        Whether a chain that can be split in several ways, and has no measured times, is an error.

    Attributes
    ----------
    chosen : dict of str to str
        The way of each chain that had measured times, by its last node.
    missing : list of str
        The last nodes of chains that have several ways and no measured times.
    """

    def __init__(self, measurements: Measurements, *, required: bool = False) -> None:
        self._measurements, self._required = measurements, required
        self.chosen: dict[str, str] = {}
        self.missing: list[str] = []
        self.decisions: list[Decision] = []

    def __call__(self, about: str, chain: Callable[[], Graph]) -> int:
        """Return the bytes that a part of a chain may take.

        Raises
        ------
        ExportError
            If times are required, and the chain has none.
        """
        graph = chain()
        last = graph.writes[-1]
        known = self._measurements.by_node.get(chain_key(about, graph), {})
        names = [name for name in ROOMS if name in known]
        if not names or names[0] != next(iter(ROOMS)):
            if len(_ways(about, graph)) > 1:
                self.missing.append(last)
                if self._required:
                    raise ExportError(self._lacking(about, last))
            return cache_bytes()
        best = names[fastest([known[name] for name in names])]
        self.chosen[last] = best
        among = {name: round(known[name].median) for name in names}
        self.decisions.append(Decision(f"parts of {about}", last, best, among, "measured times"))
        return _bytes(best)

    @property
    def changes(self) -> bool:
        """Return whether a chain is not split in the default way."""
        return any(name != next(iter(ROOMS)) for name in self.chosen.values())

    def _lacking(self, about: str, last: str) -> str:
        skipped = "; ".join(("", *self._measurements.skipped))
        return (
            f"require_tuned: {about} of the chain that ends with {last!r}: expected measured times "
            f"in {self._measurements.path}, got none; run `taper tune`{skipped}"
        )


def tunable_splits(plan: Plan) -> list[TunableNode]:
    """Return the chains of a plan that can be split in several ways.

    Raises
    ------
    ExportError
        If the plan has several entries, or weights that a session may replace.
    """
    found: dict[NodeKey, tuple[str, list[Graph]]] = {}

    def listen(about: str, chain: Callable[[], Graph]) -> int:
        graph = chain()
        found.setdefault(chain_key(about, graph), (about, []))[1].append(graph)
        return cache_bytes()

    _split(_joined(plan), listen)
    nodes = []
    for key, (about, chains) in found.items():
        ways = _ways(about, chains[0])
        if len(ways) < 2:
            continue
        candidates = []
        for name, graph in ways.items():
            ns = sum(placed_cost(graph, node) for node in graph.order())
            compile_graph(graph, ())
            candidates.append(Candidate(make_plan(graph), key, name, ns))
        labels = [f"{chain.writes[-1]} ({about})" for chain in chains]
        nodes.append(TunableNode(labels, len(chains), candidates))
    return nodes


def with_tuned_splits(plan: Plan, splits: TunedSplits) -> Plan:
    """Return a plan whose chains are split by measured times; if none changes, the same plan.

    Raises
    ------
    ExportError
        As :func:`tunable_splits`.
    """
    graph = _joined(plan)
    _split(graph, splits)
    if not splits.changes:
        return plan
    names = list(graph.outputs)
    compile_graph(graph, ())
    for decision in splits.decisions:
        graph.listener.considered(decision)
    return plan_again(plan, graph, plan.metadata, dict(zip(names, graph.outputs, strict=True)))


def _joined(plan: Plan) -> Graph:
    graph = to_graph(plan)
    join_parts(graph)
    remove_noops(graph)
    return graph


def _split(graph: Graph, room: Room) -> None:
    """Run the passes that split, in the order of the stage "schedule"."""
    split_into_microbatches(graph, room)
    move_scales(graph)
    split_into_row_tiles(graph, room)


def _ways(about: str, chain: Graph) -> dict[str, Graph]:
    """Return the different graphs that the pass makes of a chain, by the names of :data:`ROOMS`."""
    ways: dict[str, Graph] = {}
    known: set[str] = set()
    for name in ROOMS:
        graph = chain.copy()
        _PASSES[about](graph, _bytes(name))
        if (digest := structure_digest(graph)) not in known:
            known.add(digest)
            ways[name] = graph
    return ways


def _bytes(name: str) -> int:
    return int(ROOMS[name] * cache_bytes())
