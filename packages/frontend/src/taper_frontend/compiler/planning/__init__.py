"""Plan the execution of a graph: order and shared memory."""

from taper_frontend.compiler.planning.join import join_plans
from taper_frontend.compiler.planning.order import Schedule, make_schedule
from taper_frontend.compiler.planning.planner import make_plan, plan_unfused

__all__ = ["Schedule", "join_plans", "make_plan", "make_schedule", "plan_unfused"]
