"""Draws by kernels against those of numpy's Mersenne Twister, one after the other."""

import numpy as np
import pytest

from taper_runtime.base.errors import InputError
from taper_runtime.base.random_state import STATE_SIZE, new_state
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides


def kernel(name, inputs, attrs):
    op = REGISTRY[name]
    types = [TensorType(x.dtype.name, x.shape) for x in inputs]
    output = op.infer_type(types, attrs)
    y = np.empty(output.shape, output.dtype)
    operands = [(t, contiguous_strides(t.shape)) for t in (*types, output)]
    node = _kernels.prepare(op, op.complete(attrs), operands[:-1], operands[-1:])
    assert node is not None, f"no kernel for {name}"
    node.run(inputs, [y])
    return y


def evaluator(name, inputs, attrs):
    return REGISTRY[name].evaluate(inputs, REGISTRY[name].complete(attrs))


def draw(compute, state, law, dtype, count, limit=0):
    attrs = {"law": law, "limit": limit}
    values = compute("RANDOM", [state], {"shape": (count,), "dtype": dtype, **attrs})
    return values, compute("RANDOM_NEXT", [state, values], attrs)


@pytest.mark.parametrize(
    ("law", "dtype"),
    [
        *((law, dtype) for law in ("uniform", "normal") for dtype in ("float32", "float64")),
        *(("half_normal", "float32"), ("serial_normal", "float32"), ("serial_normal", "float64")),
        *(("integer", "int64"), ("permutation", "int64")),
    ],
)
def test_one_draw_after_the_other(law, dtype):
    state = new_state(11)
    for count in (1, 623, 3, 17, 1024, 1031, 5, 5000, 0, 2):
        for limit in (9, 2**28 - 1, 2**62, 0) if law == "integer" else (0,):
            values, after = draw(kernel, state, law, dtype, count, limit)
            want, state = draw(evaluator, state, law, dtype, count, limit)
            np.testing.assert_array_equal(after, state)
            if "normal" in law:
                eps = np.finfo(dtype).eps
                np.testing.assert_allclose(values, want, 8 * eps, 8 * eps)
            else:
                np.testing.assert_array_equal(values, want)


@pytest.mark.parametrize("used", [-1, 625, 2**40])
def test_a_state_that_is_none_is_refused(used):
    state = new_state(0)
    state[624] = used
    attrs = {"law": "uniform", "limit": 0}
    words = f"expected 0 to 624 words, got {used}"
    with pytest.raises(InputError, match=words):
        kernel("RANDOM", [state], {"shape": (3,), "dtype": "float32", **attrs})
    with pytest.raises(InputError, match=words):
        kernel("RANDOM_NEXT", [state, np.empty(3, np.float32)], attrs)


def test_any_words_are_a_state():
    state = np.full(STATE_SIZE, -1)
    state[624] = 0
    got, after = draw(kernel, state, "uniform", "float64", 700)
    want, following = draw(evaluator, state, "uniform", "float64", 700)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(after, following)
