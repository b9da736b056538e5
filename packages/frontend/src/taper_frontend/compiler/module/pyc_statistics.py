"""Compute PyC's statistics of a plan: of its memory, its values and its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.executor.executor import definition, input_types, node_work, output_types
from taper_runtime.executor.memory_use import memory_layout
from taper_runtime.executor.program import example_sizes
from taper_runtime.executor.sites import executed_nodes, sites
from taper_runtime.machine.cost import cost
from taper_runtime.machine.limits import typical
from taper_runtime.plan.liveness import lifetimes
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.base.decisions import Decision
    from taper_runtime.executor.memory_layout import MemoryLayout, Piece
    from taper_runtime.plan.plan import Plan


def peak_live_values(plan: Plan) -> int:
    """Return the most computed tensors that are needed at one node, views among them."""
    nodes = executed_nodes(plan)
    names = {name: name for node in nodes for name in node.outputs}
    spans = lifetimes(nodes, names, outputs=plan.writes).values()
    return max(
        (sum(birth <= at <= death for birth, death in spans) for at in range(len(nodes))), default=0
    )


def memory_statistics(plan: Plan, layout: MemoryLayout | None) -> dict[str, int]:
    """Return what PyC tells of allocations, of the arena of a run on one thread.

    Parameters
    ----------
    plan : Plan
    layout : MemoryLayout or None
        Of a session; None computes the one of the plan's samples.
    """
    found = memory_layout(plan) if layout is None else layout
    pieces = sorted(found.pieces, key=lambda piece: (piece.first, piece.offset))
    pairs = [(a, b) for at, b in enumerate(pieces) for a in pieces[:at]]
    moves = plan.metadata.get("memory", {}).get("moves", [])
    again = {move["what"] for move in moves if move["kind"] == "recompute"}
    reused = {id(b) for a, b in pairs if a.last < b.first and _share_bytes(a, b)}
    return {
        "peak_bytes": found.arena_bytes,
        "total_requested_bytes": sum(piece.bytes for piece in pieces),
        "allocation_events": len(pieces),
        "reused_allocations": len(reused),
        "overlap_pairs_observed": sum(b.first <= a.last for a, b in pairs),
        "largest_allocation_bytes": max((piece.bytes for piece in pieces), default=0),
        "rematerialized_tensors": len(again),
    }


def _share_bytes(a: Piece, b: Piece) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def kernel_statistics(plan: Plan, isa: str, decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return what PyC tells of the chosen kernels.

    The symbol has all kernels, in the order of their first nodes. The score is the estimated time
    of all nodes in nanoseconds: less is better. The utilization is the share of the level's
    arithmetic that the estimate reaches.
    """
    chosen = [each.chosen.replace(" ", "/") for each in decisions if each.about == "kernel"]
    ns = flops = 0.0
    static = specialize(plan, example_sizes(plan))
    for site in sites(static):
        if site.runs_blocks:
            continue
        op, attrs = definition(site.node)
        types = input_types(site.plan, site.node), output_types(site.plan, site.node)
        ns += site.trips * cost(op, *types, attrs)
        flops += site.trips * node_work(site.plan, site.node).flops
    return {
        "selected_kernel_count": len(chosen),
        "selected_kernel_symbol": ",".join(dict.fromkeys(chosen)) or "none",
        "selected_kernel_score": ns,
        "estimated_utilization": flops / (ns * typical(isa).flops) if ns else 0.0,
    }
