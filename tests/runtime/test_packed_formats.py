"""A kernel's variant gives one node the same bits, whatever format its weight is stored in."""

import numpy as np
import pytest

from taper_runtime import InferenceSession, SessionOptions, UnsupportedOpError
from taper_runtime.formats import encode
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate


def plan_of(op, attrs, x, weight, format):
    """A plan of one node over an input of this shape and a constant weight in a format."""
    specs = {
        "x": TensorSpec("x", "float32", x, "input"),
        "w": TensorSpec("w", "float32", weight.shape, "constant", format),
    }
    (result,) = REGISTRY[op].infer_types([specs["x"].type, specs["w"].type], attrs)
    specs["y"] = TensorSpec("y", result.dtype, result.shape, "output")
    type_ = TensorType("float32", weight.shape, format)
    plan = Plan(
        nodes=(PlanNode(op, ("x", "w"), ("y",), attrs),),
        tensors=specs,
        placements={
            n: Placement(n, 0, contiguous_strides(s.storage.shape)) for n, s in specs.items()
        },
        inputs=("x",),
        outputs=("y",),
        constants={"w": np.ascontiguousarray(encode(weight, type_))},
    )
    validate(plan)
    return plan


def run(plan, feed, isa, kernels):
    options = SessionOptions()
    options.isa, options.kernels = isa, kernels
    session = InferenceSession(plan, options)
    (selection,) = session._default.executor._runner.selections()
    return (selection.kernel_name, selection.variant), session.run(None, feed)[0].tobytes()


def convolution(op, rng):
    groups = int(rng.choice((1, 1, 2, 3)))
    each, outputs = int(rng.choice((3, 17, 700))), int(rng.integers(1, 20))
    sizes = {name: tuple(map(int, rng.integers(1, 3, 2))) for name in ("stride", "dilation")}
    padding = tuple(map(int, rng.integers(0, 3, 4)))
    attrs = {"kernel": (3, 3), "padding": padding, "groups": groups, **sizes}
    return attrs, (1, 7, 7, groups * each), (3, 3, each, groups * outputs)


@pytest.mark.parametrize("isa", _kernels.available_isas())
@pytest.mark.parametrize(
    ("op", "variant"), [("CONV", "padded"), ("CONV", "clipped"), ("CONV_TRANSPOSE", "padded")]
)
def test_plain_and_packed_weights_of_convolutions_give_the_same_bits(op, variant, isa):
    """So a session may take either of the two: see ``taper_runtime.executor.packing``."""
    rng = np.random.default_rng(5)
    served = 0
    for _ in range(40):
        attrs, x, weight = convolution(op, rng)
        w = rng.standard_normal(weight).astype(np.float32)
        feed = {"x": rng.standard_normal(x).astype(np.float32)}
        formats = ("plain", f"grouped_panels.{attrs['groups']}")
        plans = [plan_of(op, attrs, x, w, format) for format in formats]
        try:
            plain, packed = (run(plan, feed, isa, {op: variant}) for plan in plans)
        except UnsupportedOpError:
            continue
        served += 1
        assert plain == packed, (attrs, x, weight)
    assert served >= 20
