"""A plan with a block of carries, one of which is written in place."""

import numpy as np

from several_outputs import REPEAT
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Entry, Placement, Plan, PlanBlock, PlanNode, TensorSpec

CARRYING = REPEAT._replace(carries=lambda attrs, block: 2)
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def parts(roles, shape=(2, 3), **places):
    """Tensors and placements of names by role: ``places`` gives roots that are not the names'."""
    tensors = {
        name: TensorSpec(name, "float32", shape, role)
        for role, names in roles.items()
        for name in names.split()
    }
    strides = contiguous_strides(shape)
    placements = {name: Placement(places.get(name, name), 0, strides) for name in tensors}
    return tensors, placements


def body(nodes, inputs, outputs, intermediates="", **places):
    roles = {"input": inputs, "output": outputs, "intermediate": intermediates}
    tensors, placements = parts(roles, **places)
    return PlanBlock(
        tuple(nodes), tensors, placements, tuple(inputs.split()), tuple(outputs.split())
    )


#: (a, b) to (max(a, 0) + w, min(a, 0) * b)
NODES = (
    PlanNode("HALVES", ("a",), ("up", "down"), targets=("aten.relu.default",)),
    PlanNode("AFFINE", ("up", None, "w"), ("c",)),
    PlanNode("MUL", ("b", "down"), ("d",)),
)
BODY = body(NODES, "a b", "c d", "up down", d="b")


def plan_of(block, times=2, **changes):
    tensors, placements = parts({"input": "x", "constant": "w", "output": "y z"})
    plan = Plan(
        nodes=(PlanNode("REPEAT", ("x", "x"), ("y", "z"), {"times": times}, blocks=(block,)),),
        tensors=tensors,
        placements=placements,
        inputs=("x",),
        outputs=("y", "z"),
        constants={"w": np.full((2, 3), 0.25, np.float32)},
    )
    return plan._replace(**changes)


def two_entries() -> Plan:
    """The plan of :data:`BODY`, with another entry that runs it once."""
    plan = plan_of(BODY)
    tensors, placements = parts({"input": "x", "output": "y z"})
    (node,) = plan_of(BODY, times=1).nodes
    other = Entry((node,), tensors, placements, ("x",), ("y", "z"))
    return plan._replace(entries={"once": other})
