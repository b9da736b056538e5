"""Sessions for tests of faults: every kind of step, sizes that vary, states, control flow."""

import numpy as np

from control_plans import counting, cumulative
from plan_files import chain, small_plan, towers
from sized_plans import sized_arrays, sized_plan
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

WIDTH = 64


def layers(depth=3):
    """Products and sums, each of which two threads share."""
    shape = (96, WIDTH)
    names = [f"h{i}" for i in range(2 * depth)]
    specs = [
        TensorSpec("x", "float32", shape, "input"),
        TensorSpec("w", "float32", (WIDTH, WIDTH), "constant"),
        *(TensorSpec(name, "float32", shape, "intermediate") for name in names[:-1]),
        TensorSpec(names[-1], "float32", shape, "output"),
    ]
    reads = ["x", *names]
    nodes = [
        PlanNode("MATMUL", (reads[i], "w"), (names[i],))
        if i % 2 == 0
        else PlanNode("TANH", (reads[i],), (names[i],))
        for i in range(2 * depth)
    ]
    return Plan(
        nodes=tuple(nodes),
        tensors={spec.name: spec for spec in specs},
        placements={s.name: Placement(s.name, 0, (WIDTH, 1)) for s in specs},
        inputs=("x",),
        outputs=(names[-1],),
        constants={"w": np.linspace(-0.2, 0.2, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, -1)},
    )


def drawn(plan, seed=0):
    """Arrays for the inputs of a plan whose sizes are fixed."""
    rng = np.random.default_rng(seed)
    specs = [plan.tensors[name] for name in plan.inputs]
    return {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in specs}


def cases():
    """Name, plan and inputs of each; all nodes are native but in ``while``."""
    one = cumulative()
    return {
        "small": (small_plan(), drawn(small_plan())),
        "layers": (layers(), drawn(layers())),
        "sized": (sized_plan(), sized_arrays(2, 5)),
        "scan": (one, {n: np.ones(_known(one, n), np.float32) for n in one.inputs}),
        "while": (counting(), {
            "i0": np.array(0), "x0": np.ones(2, np.float32), "top": np.array(4),
        }),
        "chain": (chain(["SIN", "EXP", "TANH"], 5000), {"x": np.ones(5000, np.float32)}),
        "towers": (towers(4, ["SIN", "EXP"], 5000), {"x": np.ones(5000, np.float32)}),
    }  # fmt: skip


def _known(plan, name):
    return tuple(size if type(size) is int else 3 for size in plan.tensors[name].shape)


def opened(plan, threads=2, **options):
    made = SessionOptions()
    made.intra_op_num_threads = threads
    for name, value in options.items():
        setattr(made, name, value)
    return InferenceSession(plan, made)


def bits(arrays):
    return [array.tobytes() for array in arrays]
