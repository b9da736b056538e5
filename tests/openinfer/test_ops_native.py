"""Ops with a native Taper op: compiled, they give the same as numpy's evaluator."""

import itertools

import numpy as np
import pytest

import openinfer_reference as reference
from openinfer_samples import ELEMENTWISE, REDUCTIONS, operands, random_values, stored, variants
from taper_openinfer.dtypes import taper_name
from taper_openinfer.ops import combinations, evaluate, native_node, output_type
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.native import _kernels
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate

LEVELS = _kernels.available_isas()


def run(node, dtypes, arrays, out, isa=None):
    """Run one node through the compiled executor, at a level; a node without a kernel fails."""
    name, attrs = node
    ends = [*((d, array.shape) for d, array in zip(dtypes, arrays, strict=True)), out]
    roles = ["input"] * len(arrays) + ["output"]
    specs = [
        TensorSpec(f"t{index}", taper_name(dtype), shape, role)
        for index, ((dtype, shape), role) in enumerate(zip(ends, roles, strict=True))
    ]
    names = [spec.name for spec in specs]
    plan = Plan(
        nodes=(PlanNode(name, tuple(names[:-1]), (names[-1],), attrs),),
        tensors={spec.name: spec for spec in specs},
        placements={s.name: Placement(s.name, 0, contiguous_strides(s.shape)) for s in specs},
        inputs=tuple(names[:-1]),
        outputs=(names[-1],),
        constants={},
    )
    validate(plan)
    options = SessionOptions()
    options.isa, options.strict_native, options.intra_op_num_threads = isa, True, 1
    options.bfloat16 = "bits"  # as the simulator has it
    session = InferenceSession(plan, options)
    return session.run(None, dict(zip(names[:-1], arrays, strict=True)))[0]


def check(op, dtypes, arrays, settings, isa=None):
    """Compare a call with numpy's evaluator; False if no op of Taper's computes it."""
    types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
    out = output_type(op, types, settings)
    node = native_node(op, dtypes, [array.shape for array in arrays], settings, out)
    if node is None:
        return False
    got = run(node, dtypes, arrays, out, isa)
    want = evaluate(op, arrays, dtypes, settings, out[0])
    what = f"{op} {dtypes} {settings} {node}"
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if out[0] in reference.FLOATS:
        atol, rtol = reference.TOLERANCES[out[0]]
        numbers = [reference.to_python(array, out[0]) for array in (got, want)]
        np.testing.assert_allclose(*numbers, rtol=rtol, atol=atol, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)
    return True


#: Ops that no op of Taper's computes, for whatever types.
NUMPY_ALONE = {"popcount", "shl", "shr", "is_finite"}


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op not in NUMPY_ALONE])
def test_elementwise(op, isa):
    rng = np.random.default_rng(1)
    served = {
        dtypes
        for dtypes, _, chosen in combinations(op)
        for variant in variants(op, dtypes[0])
        if check(op, dtypes, operands(rng, dtypes), {**variant, **chosen}, isa)
    }
    assert served


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op, isa):
    rng = np.random.default_rng(2)
    chosen = [{"axis": 1}, {"axis": -1, "keepdims": True}]
    if op not in ("argmax_axis", "argmin_axis"):
        chosen = [{"axes": [0]}, {"axes": [-1, 0], "keepdims": True}, {"axes": []}]
    served = 0
    for (dtypes, _, extra), settings in itertools.product(combinations(op), chosen):
        (dtype,) = dtypes
        array = stored(random_values(rng, dtype, 60, 1.0), dtype).reshape(3, 4, 5)
        served += check(op, dtypes, [array], {**settings, **extra}, isa)
        if array.dtype.kind == "f" and op[:3] in ("max", "min", "arg"):
            array[:, 1, 2], array[2, :, 1], array[1, 1] = np.nan, -np.inf, np.nan
            served += check(op, dtypes, [array], {**settings, **extra}, isa)
    assert served


@pytest.mark.parametrize("isa", LEVELS)
def test_matmul(isa):
    rng = np.random.default_rng(3)
    for shapes in (((5, 7), (7, 9)), ((7,), (7,)), ((2, 1, 4, 5), (3, 5, 6)), ((2, 0), (0, 3))):
        arrays = [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]
        assert check("matmul", ["f32", "f32"], arrays, {}, isa)


def test_broadcast():
    rng = np.random.default_rng(4)
    for shapes in (((2, 1, 3), (4, 1)), ((), (3,)), ((), ()), ((0, 3), (1, 3))):
        for op, dtype in itertools.product(("add", "sub", "div"), ("f32", "bf16", "i32", "u8")):
            arrays = [
                stored(random_values(rng, dtype, int(np.prod(shape))), dtype).reshape(shape)
                for shape in shapes
            ]
            assert check(op, [dtype] * 2, arrays, {})


@pytest.mark.parametrize("op", sorted(NUMPY_ALONE))
def test_what_numpy_alone_computes(op):
    for dtypes, result, chosen in combinations(op):
        settings = {**variants(op, dtypes[0])[0], **chosen}
        shapes = [(3,)] * len(dtypes)
        assert native_node(op, dtypes, shapes, settings, (result, (3,))) is None
