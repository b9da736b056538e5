"""IF, WHILE and SCAN: what they compute from blocks, and what they refuse."""

import numpy as np
import pytest

from taper_runtime.base.errors import OpError
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import BlockFunction, Signature, TensorType

BOOL = TensorType("bool", ())
COUNT = TensorType("int64", ())
ROW = TensorType("float32", (3,))
ROWS = TensorType("float32", (5, 3))


def signature(inputs, outputs):
    return Signature(tuple(inputs), tuple(outputs))


def run(op, arrays, blocks, **attrs):
    definition = REGISTRY[op]
    types = [TensorType(array.dtype.name, array.shape) for array in arrays]
    expected = definition.infer_types(types, attrs, [block.types for block in blocks])
    results = definition.evaluate_all(arrays, definition.complete(attrs), blocks)
    got = [TensorType(result.dtype.name, result.shape) for result in results]
    assert got == list(expected)
    for result in results:
        assert not any(np.shares_memory(result, array) for array in arrays)
    return results


@pytest.mark.parametrize("predicate", [True, False])
def test_if_runs_one_of_its_blocks(predicate):
    def never(values):
        raise AssertionError

    def double(values):
        return [values[0] * 2, values[1]]

    types = signature([ROW, COUNT], [ROW, COUNT])
    blocks = [BlockFunction(types, double if predicate else never)]
    blocks.append(BlockFunction(types, never if predicate else double))
    x = np.arange(3, dtype=np.float32)
    doubled, passed = run("IF", [np.array(predicate), x, np.array(7)], blocks)
    np.testing.assert_array_equal(doubled, 2 * x)
    assert passed == 7


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_while_runs_its_body_as_long_as_the_condition_holds(limit):
    types = [COUNT, ROW, COUNT]
    condition = BlockFunction(signature(types, [BOOL]), lambda v: [np.asarray(v[0] < v[2])])
    body = BlockFunction(signature(types, types[:2]), lambda v: [np.asarray(v[0] + 1), v[1] * 2])
    arrays = [np.array(0), np.ones(3, np.float32), np.array(limit)]
    count, x = run("WHILE", arrays, [condition, body], carries=2)
    assert count == limit
    np.testing.assert_array_equal(x, np.full(3, 2.0**limit, np.float32))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_scan_carries_and_stacks(steps):
    body = BlockFunction(
        signature([ROW, ROW, ROW], [ROW, BOOL]),
        lambda v: [v[0] + v[1] * v[2], np.asarray(v[0].sum() > 10)],
    )
    xs = np.arange(3 * steps, dtype=np.float32).reshape(steps, 3)
    arrays = [np.ones(3, np.float32), xs, np.full(3, 2, np.float32)]
    total, large = run("SCAN", arrays, [body], carries=1, xs=1)
    np.testing.assert_array_equal(total, 1 + 2 * xs.sum(0))
    sums = 3 + 2 * np.cumsum(xs.sum(1)) - 2 * xs.sum(1)
    np.testing.assert_array_equal(large, sums > 10)


def test_scan_without_carries_maps():
    body = BlockFunction(signature([ROW], [ROW]), lambda v: [v[0] ** 2])
    xs = np.arange(6, dtype=np.float32).reshape(2, 3)
    (squares,) = run("SCAN", [xs], [body], xs=1)
    np.testing.assert_array_equal(squares, xs**2)


TEST = signature([COUNT, ROW], [BOOL])
STEP = signature([COUNT, ROW], [COUNT, ROW])
SCANNED = signature([ROW, ROW], [ROW, ROW])


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "blocks", "message"),
    [
        ("IF", [COUNT, ROW], {}, [SCANNED] * 2, r"a predicate of bool \[\], got int64 \[\]"),
        ("IF", [BOOL, ROW], {}, [SCANNED] * 2, "1 inputs of its block 'then', got 2"),
        (
            "IF",
            [BOOL, ROW],
            {},
            [signature([ROW], [ROW]), signature([ROW], [COUNT])],
            r"float32 \[3\] for result 0 of its block 'else', to match 'then', got int64 \[\]",
        ),
        ("IF", [BOOL, ROW], {}, [signature([ROW], [])] * 2, "blocks with outputs"),
        ("IF", [BOOL, ROW], {}, [signature([ROW], [ROW])], "expected 2 blocks, got 1"),
        ("WHILE", [COUNT, ROW], {"carries": 0}, [TEST, STEP], "carries from 1 to 2, got 0"),
        ("WHILE", [COUNT, ROW], {"carries": 3}, [TEST, STEP], "carries from 1 to 2, got 3"),
        ("WHILE", [COUNT, ROW], {"carries": 2}, [STEP, STEP], "1 results of its condition, got 2"),
        (
            "WHILE",
            [COUNT, ROW],
            {"carries": 2},
            [TEST, signature([COUNT, ROW], [COUNT, ROWS])],
            r"float32 \[3\] for result 1 of its body, to match its carries, got float32 \[5, 3\]",
        ),
        (
            "WHILE",
            [COUNT, ROW],
            {"carries": 2},
            [TEST, signature([COUNT, ROWS], [COUNT, ROW])],
            r"float32 \[3\] for input 1 of its body, got float32 \[5, 3\]",
        ),
        ("SCAN", [ROW, ROWS], {"carries": 1, "xs": 0}, [SCANNED], "xs from 1 to 1, got 0"),
        ("SCAN", [ROW, COUNT], {"carries": 1, "xs": 1}, [SCANNED], "an axis to step along"),
        (
            "SCAN",
            [ROWS, TensorType("float32", (4, 3))],
            {"xs": 2},
            [SCANNED],
            "the same number of steps, got",
        ),
        (
            "SCAN",
            [ROW, ROWS],
            {"carries": 1, "xs": 1},
            [signature([ROW, ROW], [COUNT])],
            r"float32 \[3\] for result 0 of its body, to match its carries, got int64 \[\]",
        ),
        ("SCAN", [ROWS], {"xs": 1}, [signature([ROW], [])], "a body with outputs"),
    ],
)
def test_what_does_not_fit_is_refused(op, inputs, attrs, blocks, message):
    with pytest.raises(OpError, match=message):
        REGISTRY[op].infer_types(inputs, attrs, blocks)
