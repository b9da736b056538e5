"""Graph to plan: order, memory sharing, arena offsets."""

from taper_frontend.compiler.planning.planner import make_plan

__all__ = ["make_plan"]
