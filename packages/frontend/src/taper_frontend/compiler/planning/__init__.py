"""Plan the execution of a graph: order, shared memory, offsets in the arena."""

from taper_frontend.compiler.planning.planner import make_plan

__all__ = ["make_plan"]
