"""A small plan whose weights can be replaced."""

import numpy as np

from plan_files import small_plan
from taper_runtime.plan.plan import Plan
from taper_runtime.plan.recipes import RecipeStep
from taper_runtime.plan.replaceable import WeightSpec

Q, K = (np.arange(16, dtype=np.float32).reshape(4, 4) + i for i in (0, 100))


def weight(name: str) -> RecipeStep:
    """A leaf of a recipe."""
    return RecipeStep("WEIGHT", (), {"name": name})


def weighted_plan() -> Plan:
    """The small plan, whose w is [q, k.T] * scale and whose b is a weight itself."""
    plan = small_plan()
    recipe = (
        weight("q"),
        weight("k"),
        RecipeStep("TRANSPOSE", (1,), {"axis0": 0, "axis1": 1}),
        RecipeStep("CAT", (0, 2), {"axis": 1}),
        weight("scale"),
        RecipeStep("MUL", (3, 4), {}),
    )
    return plan._replace(
        weights={
            "b": WeightSpec("b", "buffer", "float32", (8,)),
            "k": WeightSpec("k", "parameter", "float32", (4, 4), aliases=("head.k",)),
            "q": WeightSpec("q", "parameter", "float32", (4, 4)),
            "scale": WeightSpec("scale", "constant", "float32", ()),
            "unused": WeightSpec("unused", "buffer", "int64", ()),
        },
        derived={"b": (weight("b"),), "w": recipe},
        originals={"k": K, "q": Q, "scale": np.array(0.5, np.float32)},
        constants={
            **plan.constants,
            "w": np.ascontiguousarray(np.concatenate([Q, K.T], 1) * np.float32(0.5)),
        },
    )


def expected(q: np.ndarray, k: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What the plan computes of the input, by numpy alone."""
    h = 0.5 * (x @ (np.concatenate([q, k.T], 1) * np.float32(0.5)))
    s = np.maximum(h, 0)[:, :4]
    keep = np.array([True, False, True, True])
    return np.where(keep, s, x).reshape(8) + b
