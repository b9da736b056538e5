"""Nodes with nothing to compute: their inputs are still checked, at no cost."""

import numpy as np
import pytest

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides

NAMES = {dtype.storage: name for name, dtype in DTYPES.items()}
HUGE = 2**31 - 1


def floats(*shape):
    return np.empty(shape, np.float32)


def ints(*values):
    return np.array(values, np.int64)


def types_of(inputs):
    return [TensorType(NAMES[x.dtype], x.shape) for x in inputs]


def output_of(name, inputs, attrs):
    dtype, shape, _ = REGISTRY[name].infer_type(types_of(inputs), attrs)
    return np.empty(shape, DTYPES[dtype].storage)


def kernel(name, inputs, attrs, output):
    op = REGISTRY[name]
    operands = [(t, contiguous_strides(t.shape)) for t in types_of([*inputs, output])]
    node = _kernels.prepare(op, op.complete(attrs), operands[:-1], operands[-1:])
    assert node is not None, f"no kernel for {name}"
    node.run(inputs, [output])


def evaluator(name, inputs, attrs, output):
    REGISTRY[name].compute(inputs, REGISTRY[name].complete(attrs), [output])


#: Op, inputs of which one holds what is outside, attrs; the output of each is empty.
OUTSIDE = [
    ("EMBEDDING", [floats(5, 0), ints(0, 5)], {}),
    ("EMBEDDING_BAG", [floats(5, 0), ints(0, 5), ints(0)], {"mode": "sum"}),
    ("EMBEDDING_BAG", [floats(5, 0), ints(0, 4), ints(1)], {"mode": "sum"}),
    ("EMBEDDING_BAG", [floats(5, 0), ints(0, 4), ints(0, 2, 1)], {"mode": "max"}),
    ("EMBEDDING_BAG", [floats(5, 0), ints(0, 4), ints(0, 3)], {"mode": "mean"}),
    ("INDEX_SELECT", [floats(5, 0), ints(0, -6)], {"axis": 0}),
    ("INDEX_SELECT", [floats(0, 5), ints(5)], {"axis": 1}),
    ("INDEX_SELECT", [floats(HUGE, 5, 0), ints(5)], {"axis": 1}),
    ("SCATTER", [floats(0, 3), np.zeros((2, 3), np.int64), floats(2, 3)], {"axis": 0}),
    ("SCATTER", [floats(HUGE, 0), np.zeros((1, 1), np.int64), floats(1, 1)], {"axis": 1}),
    ("WRITE", [floats(5, 0), ints(0, 5), floats(2, 0)], {"axis": 0}),
    ("GROUPED_MATMUL", [floats(3, 4), floats(2, 4, 0), ints(2, 4)], {}),
    ("GROUPED_MATMUL", [floats(3, 4), floats(2, 4, 0), ints(2, 1)], {}),
    ("GROUPED_MATMUL", [floats(0, 4), floats(2, 4, 5), ints(0, 1)], {}),
    ("GROUPED_MATMUL", [floats(HUGE, 0), floats(1, 0, 0), ints(-1)], {}),
]


@pytest.mark.parametrize("compute", [kernel, evaluator])
@pytest.mark.parametrize(("name", "inputs", "attrs"), OUTSIDE)
def test_what_is_outside_is_found_where_the_result_is_empty(name, inputs, attrs, compute):
    output = output_of(name, inputs, attrs)
    assert output.size == 0
    with pytest.raises(InputError, match=f"{name}: expected (indices in|(ends|offsets) that rise)"):
        compute(name, inputs, attrs, output)


@pytest.mark.parametrize("index", [-1, 20, 31])
def test_what_is_outside_a_packed_table_is_found(index):
    """It may be in the padding of the last panel."""
    op, table = REGISTRY["EMBEDDING"], TensorType("float32", (20, 0), "panels.0")
    types = [table, TensorType("int64", (1,)), TensorType("float32", (1, 0))]
    inputs, output = [floats(*table.storage.shape), ints(index)], floats(1, 0)
    operands = [(t, contiguous_strides(t.storage.shape)) for t in types]
    node = _kernels.prepare(op, {}, operands[:-1], operands[-1:])
    for compute in (
        lambda: node.run(inputs, [output]),
        lambda: op.compute(inputs, {}, [output], types),
    ):
        with pytest.raises(InputError, match=rf"expected indices in \[0, 20\), got {index}"):
            compute()


def test_what_is_inside_passes():
    for name, inputs, attrs in OUTSIDE:
        inside = [x if x.dtype == np.float32 or x.ndim > 1 else np.zeros_like(x) for x in inputs]
        if name != "SCATTER":  # a dim of no places has none inside
            for compute in (kernel, evaluator):
                compute(name, inside, attrs, output_of(name, inside, attrs))


@pytest.mark.parametrize("compute", [kernel, evaluator])
def test_without_bags_no_index_is_looked_at(compute):
    """Torch does not either."""
    inputs = [floats(5, 3), ints(0, 9, -1), ints()]
    output = output_of("EMBEDDING_BAG", inputs, {"mode": "sum"})
    compute("EMBEDDING_BAG", inputs, {"mode": "sum"}, output)
    assert output.shape == (0, 3)


@pytest.mark.parametrize("compute", [kernel, evaluator])
def test_a_correction_that_is_no_number_gives_none(compute):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    attrs = {"axes": [1], "correction": np.nan}
    output = output_of("VAR", [x], attrs)
    compute("VAR", [x], attrs, output)
    assert np.isnan(output).all()


RESAMPLED = {"axes": [1], "scales": [0.0], "align_corners": False}
WINDOW = {"kernel": [3], "stride": [1], "padding": [1, 1]}

#: Op, inputs of no bytes, attrs: the evaluators themselves would take long, or gigabytes.
VAST = [
    ("AVG_POOL", [floats(0, HUGE, 4)], {**WINDOW, "counted": [1, 1]}),
    ("MAX_POOL", [floats(HUGE, 5, 0)], {**WINDOW, "dilation": [1]}),
    ("ADAPTIVE_MAX_POOL", [floats(0, 4, 4)], {"sizes": [HUGE]}),
    ("ADAPTIVE_AVG_POOL", [floats(HUGE, 4, 0)], {"sizes": [3]}),
    ("SOFTMAX", [floats(HUGE, 0)], {"axis": 0}),
    ("CUMARGMAX", [floats(HUGE, 0)], {"axis": 0}),
    ("ARGSORT", [floats(HUGE, 0)], {"axis": 0}),
    ("LOGCUMSUMEXP", [floats(0, HUGE)], {"axis": 1}),
    ("SEARCHSORTED", [floats(HUGE, 0, 1), floats(HUGE, 0, 1)], {}),
    ("RESAMPLE", [floats(0, 4)], {**RESAMPLED, "sizes": [HUGE], "mode": "cubic"}),
    ("RESAMPLE", [floats(HUGE, 0)], {**RESAMPLED, "axes": [0], "sizes": [9], "mode": "nearest"}),
]


@pytest.mark.parametrize(("name", "inputs", "attrs"), VAST)
def test_an_empty_result_of_vast_dims_costs_nothing(name, inputs, attrs):
    """The evaluator is not even called, and the kernel has no tasks."""
    output = output_of(name, inputs, attrs)
    assert output.size == 0
    op = REGISTRY[name]._replace(evaluate=None)
    op.compute(inputs, op.complete(attrs), [output])
    kernel(name, inputs, attrs, output)


@pytest.mark.parametrize("compute", [kernel, evaluator])
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("INVERSE", [floats(HUGE, 2, 0, 0)]),
        ("SOLVE", [floats(0, 0), floats(0, HUGE)]),
        ("SOLVE", [floats(HUGE, 0, 0), floats(HUGE, 0, 0)]),
    ],
)
def test_matrices_of_no_rows_are_not_walked(name, inputs, compute):
    compute(name, inputs, {"check": True}, output_of(name, inputs, {"check": True}))


def test_singular_matrices_are_found_beside_no_right_sides():
    inputs = [np.zeros((1, 3, 3), np.float32), floats(HUGE, 3, 0)]
    with pytest.raises(InputError, match="invertible"):
        evaluator("SOLVE", inputs, {"check": True}, output_of("SOLVE", inputs, {"check": True}))


@pytest.mark.parametrize("index", [(0, 0), (HUGE, 0), (0, HUGE)])
def test_a_scatter_of_no_index_into_an_empty_result_has_no_tasks(index):
    op = REGISTRY["SCATTER"]
    x, places, source = floats(HUGE, 0), np.zeros(index, np.int64), floats(*index)
    operands = [(t, contiguous_strides(t.shape)) for t in types_of([x, places, source, x])]
    node = _kernels.prepare(op, op.complete({"axis": 1}), operands[:-1], operands[-1:])
    assert node.tasks == 0


#: Op, input of no elements but with a dim of 2**31 - 1, attrs, what each element of the output is.
NOTHING = [
    ("SUM", floats(2, HUGE, 4, 0), {"axes": [1, 3]}, 0.0),
    ("SUM", floats(HUGE, 2, 0), {"axes": [0, 2]}, 0.0),
    ("SUM", np.empty((2, HUGE, 4, 0), np.int64), {"axes": [1, 3]}, 0),
    ("SUM", np.empty((0, HUGE, 3), np.float64), {"axes": [0, 1]}, 0.0),
    ("MEAN", floats(2, HUGE, 4, 0), {"axes": [1, 3]}, np.nan),
    ("PROD", floats(2, HUGE, 4, 0), {"axes": [1, 3]}, 1.0),
    ("PROD", floats(2, 0, 4, HUGE), {"axes": [1, 3]}, 1.0),
    ("ANY", np.empty((2, HUGE, 4, 0), bool), {"axes": [1, 3]}, False),
    ("ALL", np.empty((2, HUGE, 4, 0), bool), {"axes": [1, 3]}, True),
    ("VAR", floats(2, HUGE, 4, 0), {"axes": [1, 3], "correction": 1.0}, np.nan),
]


@pytest.mark.parametrize("compute", [kernel, evaluator])
@pytest.mark.parametrize(("name", "x", "attrs", "wanted"), NOTHING)
def test_a_reduction_of_nothing_walks_no_dims(name, x, attrs, wanted, compute):
    """One of them in minutes would be 2**31 rows of none."""
    output = output_of(name, [x], attrs)
    compute(name, [x], attrs, output)
    assert output.size
    np.testing.assert_array_equal(output, np.full_like(output, wanted))


def test_attention_needs_as_many_query_heads_as_key_heads():
    """With none for two, each has a share of 0 heads, by which nothing can be divided."""
    op = REGISTRY["ATTENTION"]
    for queries in ((1, 0, 1, 8), (1, 0, 5, 8), (1, 1, 1, 8)):
        types = [TensorType("float32", shape) for shape in (queries, *[(1, 2, 32, 8)] * 2)]
        with pytest.raises(OpError, match="ATTENTION: expected H to be a multiple of Hkv"):
            op.infer_types(types, {"scale": 1.0})
        operands = [(t, contiguous_strides(t.shape)) for t in (*types, types[0])]
        attrs = op.complete({"scale": 1.0})
        assert _kernels.prepare(op, attrs, operands[:3], operands[3:]) is None
    nothing = TensorType("float32", (1, 0, 1, 8))
    assert op.infer_types([nothing] * 3, {"scale": 1.0}) == (nothing,)


@pytest.mark.parametrize(
    ("size", "mode", "scale"),
    [(2**20, "linear-antialias", 2.0**-20), (2**24, "cubic", 0.0), (2**25, "linear", 0.0)],
)
def test_more_taps_than_memory_are_refused(size, mode, scale):
    """A scale far from the ratio of the sizes gives each element as many taps as x has elements."""
    op = REGISTRY["RESAMPLE"]
    attrs = {**RESAMPLED, "sizes": [size], "scales": [scale], "mode": mode}
    x = floats(1, size if scale else 4)
    assert op.table([TensorType("float32", x.shape)], op.complete(attrs)) is None
    with pytest.raises(OpError, match="RESAMPLE: expected at most 33,554,432 taps along an axis"):
        op.evaluate([x], op.complete(attrs))
