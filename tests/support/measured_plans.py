"""Plans in which nodes compute sizes."""

import numpy as np

from taper_runtime.base.sizes import variable
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

N = variable("n", 0, 64)
POSITIVE = variable("positive", 0, N)
LARGE = variable("large", 0, POSITIVE)


def measured_plan():
    """The rows of x whose mark is 1, and of these, doubled, those whose second mark is 1."""
    i64, f32 = "int64", "float32"
    specs = [
        TensorSpec("x", f32, (N, 3), "input"),
        TensorSpec("first", "bool", (N,), "input"),
        TensorSpec("second", "bool", (N,), "input"),
        TensorSpec("two", f32, (1,), "constant"),
        TensorSpec("end", i64, (1,), "intermediate"),
        TensorSpec("places", i64, (N,), "intermediate"),
        TensorSpec("count", i64, (1,), "intermediate"),
        TensorSpec("found", i64, (POSITIVE,), "intermediate"),
        TensorSpec("rows", f32, (POSITIVE, 3), "output"),
        TensorSpec("double", f32, (POSITIVE, 3), "intermediate"),
        TensorSpec("marks", "bool", (POSITIVE,), "intermediate"),
        TensorSpec("end_2", i64, (1,), "intermediate"),
        TensorSpec("places_2", i64, (POSITIVE,), "intermediate"),
        TensorSpec("count_2", i64, (1,), "intermediate"),
        TensorSpec("found_2", i64, (LARGE,), "intermediate"),
        TensorSpec("y", f32, (LARGE, 3), "output"),
    ]
    placements = {s.name: Placement(s.name, 0, contiguous_strides(s.shape)) for s in specs}
    placements["found"] = Placement("places", 0, (1,))
    placements["found_2"] = Placement("places_2", 0, (1,))
    cut = {"axis": 0, "start": 0}
    return Plan(
        nodes=(
            PlanNode("NONZERO", ("first",), ("places",)),
            PlanNode("ARANGE", (), ("end",), {"start": N, "stop": N + 1}),
            PlanNode("SEARCHSORTED", ("places", "end"), ("count",), {}, "model.py:1"),
            PlanNode("SLICE", ("places",), ("found",), {**cut, "stop": POSITIVE}),
            PlanNode("INDEX_SELECT", ("x", "found"), ("rows",), {"axis": 0}),
            PlanNode("MUL", ("rows", "two"), ("double",)),
            PlanNode("INDEX_SELECT", ("second", "found"), ("marks",), {"axis": 0}),
            PlanNode("NONZERO", ("marks",), ("places_2",)),
            PlanNode("ARANGE", (), ("end_2",), {"start": POSITIVE, "stop": POSITIVE + 1}),
            PlanNode("SEARCHSORTED", ("places_2", "end_2"), ("count_2",)),
            PlanNode("SLICE", ("places_2",), ("found_2",), {**cut, "stop": LARGE}),
            PlanNode("INDEX_SELECT", ("double", "found_2"), ("y",), {"axis": 0}),
        ),
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=("x", "first", "second"),
        outputs=("rows", "y"),
        constants={"two": np.array([2], np.float32)},
        sizes={"n": (0, 64), "positive": (0, N), "large": (0, POSITIVE)},
        origins={"positive": ("count", 0), "large": ("count_2", 0)},
    )


def measured_arrays(rng, n, share=0.5):
    """Inputs of n rows, of which about this share is marked."""
    return {
        "x": rng.standard_normal((n, 3)).astype(np.float32),
        "first": rng.random(n) < share,
        "second": rng.random(n) < share,
    }


def measured_result(arrays):
    """What the plan gives."""
    x, first, second = arrays.values()
    return [x[first], (2 * x)[first & second]]
