"""Plans whose sizes the inputs decide."""

import numpy as np

from taper_runtime.base.sizes import variable
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

B, S = variable("B", 1, 8), variable("S", 2, 32)


def sized_plan() -> Plan:
    """Per row the sums of relu(x @ w)'s halves; and x's columns joined with themselves.

    Views and an in-place result at offsets that depend on sizes, a fold, an attr with a size.
    """
    f32 = "float32"
    specs = [
        TensorSpec("x", f32, (B, S, 4), "input"),
        TensorSpec("m", f32, (2 * S,), "input"),
        TensorSpec("w", f32, (4, 6), "constant"),
        TensorSpec("h", f32, (B, S, 6), "intermediate"),
        TensorSpec("r", f32, (B, S, 6), "intermediate"),
        TensorSpec("a", f32, (B, S, 3), "intermediate"),
        TensorSpec("c", f32, (B, 2 * S, 3), "intermediate"),
        TensorSpec("t", f32, (B, 3, 2 * S), "intermediate"),
        TensorSpec("p", f32, (B, 3, 2 * S), "intermediate"),
        TensorSpec("y", f32, (B, 3), "output"),
        TensorSpec("z", f32, (6 * B * S,), "output"),
    ]
    strides = {spec.name: contiguous_strides(spec.shape) for spec in specs}
    placements = {name: Placement(name, 0, value) for name, value in strides.items()}
    placements["r"] = Placement("h", 0, strides["h"])
    placements["a"] = Placement("h", 12, strides["h"])
    placements["t"] = Placement("c", 0, (6 * S, 1, 3))
    return Plan(
        nodes=(
            PlanNode("MATMUL", ("x", "w"), ("h",)),
            PlanNode("RELU", ("h",), ("r",)),  # in place
            PlanNode("SLICE", ("r",), ("a",), {"axis": 2, "start": 3, "stop": 6}),  # a view
            PlanNode("CAT", ("a", "a"), ("c",), {"axis": 1}),
            PlanNode("TRANSPOSE", ("c",), ("t",), {"axis0": 1, "axis1": 2}),  # a view
            PlanNode("MUL", ("t", "m"), ("p",)),
            PlanNode("SUM", ("p",), ("y",), {"axes": (2,)}),
            PlanNode("RESHAPE", ("p",), ("z",), {"shape": (6 * B * S,)}),
        ),
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=("x", "m"),
        outputs=("y", "z"),
        constants={"w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)},
        samples={"x": np.ones((2, 3, 4), np.float32), "m": np.ones(6, np.float32)},
        sizes={"B": (1, 8), "S": (2, 32)},
    )


def sized_arrays(b, s):
    rng = np.random.default_rng(b * 100 + s)
    return {
        "x": rng.standard_normal((b, s, 4)).astype(np.float32),
        "m": rng.standard_normal(2 * s).astype(np.float32),
    }


def expected(plan, arrays):
    h = np.maximum(arrays["x"] @ plan.constants["w"], 0)[:, :, 3:]
    p = np.concatenate([h, h], 1).swapaxes(1, 2) * arrays["m"]
    return [p.sum(2), p.ravel()]
