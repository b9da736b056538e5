"""Plans of one node."""

from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate


def plan_of(op, attrs, *shapes, dtype="float32"):
    """A plan of one node."""
    definition = REGISTRY[op]
    names = [f"x{i}" for i in range(len(shapes))]
    specs = {n: TensorSpec(n, dtype, s, "input") for n, s in zip(names, shapes, strict=True)}
    (result,) = definition.infer_types([specs[n].type for n in names], attrs)
    specs["y"] = TensorSpec("y", result.dtype, result.shape, "output")
    plan = Plan(
        nodes=(PlanNode(op, tuple(names), ("y",), attrs),),
        tensors=specs,
        placements={n: Placement(n, 0, contiguous_strides(s.shape)) for n, s in specs.items()},
        inputs=tuple(names),
        outputs=("y",),
        constants={},
    )
    validate(plan)
    return plan
