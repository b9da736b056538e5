"""Values that torch refuses are refused; those that it takes mean what they mean in torch."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from function_module import Function
from lowering import evaluate_graph, lower_model
from taper_frontend import export
from taper_runtime import InferenceSession
from taper_runtime.base.errors import InputError

X = torch.arange(12.0).reshape(4, 3)
ROWS = torch.tensor([1, 0])
PLACES = torch.tensor([[1, 0, 1]])
SRC = torch.arange(3.0)[None]


def scattering(reduce, include_self=True):
    return lambda x, i: x.scatter_reduce(0, i, SRC, reduce, include_self=include_self)


#: Calls of X and places, what places they are given first.
CALLS = {
    "gather": (lambda x, i: x.gather(0, i), PLACES),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 0), PLACES),
    "scatter": (lambda x, i: x.scatter(0, i, SRC), PLACES),
    "scatter.value": (lambda x, i: x.scatter(0, i, 7.0), PLACES),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, SRC), PLACES),
    **{
        f"scatter_reduce.{reduce}.{own}": (scattering(reduce, own), PLACES)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    "index_select": (lambda x, i: x.index_select(0, i), ROWS),
    "index_add": (lambda x, i: x.index_add(0, i, X[:2], alpha=2), ROWS),
    "index_copy": (lambda x, i: x.index_copy(0, i, X[:2]), ROWS),
    "index_fill": (lambda x, i: x.index_fill(0, i, 9.0), ROWS),
    "index_fill.tensor": (lambda x, i: x.index_fill(1, i, torch.tensor(9.0)), ROWS),
    "index_put": (lambda x, i: x.index_put((i,), X[:2]), ROWS),
    "index_put.add": (lambda x, i: x.index_put((i,), X[:2], accumulate=True), ROWS),
    "index": (operator.getitem, ROWS),
    "take": (torch.take, ROWS),
    "put": (lambda x, i: x.put(i, X[0, :2]), ROWS),
    "embedding": (lambda x, i: F.embedding(i, x), ROWS),
    "one_hot": (lambda x, i: F.one_hot(i, 4), ROWS),
    "nll_loss": (F.nll_loss, torch.tensor([0, 1, 2, 1])),
    "cross_entropy": (F.cross_entropy, torch.tensor([0, 1, -100, 1])),
    "max_unpool1d": (
        lambda x, i: F.max_unpool1d(x[:2, None, :2], i, 2),
        torch.tensor([[[1, 0]], [[3, 2]]]),
    ),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(x[:2, None, None, :2], i, 2),
        torch.tensor([[[[1, 0]]], [[[7, 2]]]]),
    ),
    "max_unpool3d": (
        lambda x, i: F.max_unpool3d(x[:2, None, None, None, :2], i, 2),
        torch.tensor([[[[[1, 0]]]], [[[[7, 2]]]]]),
    ),
}


def outcome(function, *args):
    try:
        return function(*args)
    except (IndexError, RuntimeError, InputError):
        return None


@pytest.mark.parametrize("name", CALLS)
def test_places(name):
    """The first and the last place in turn are beyond either end."""
    call, places = CALLS[name]
    graph = lower_model(call, X, places).graph
    for value in (0, -1, -2, -100, 3, 4, 16, 100):
        for at in (0, -1):
            given = places.clone()
            given.flatten()[at] = value
            want = outcome(call, X, given)
            got = outcome(lambda given=given: evaluate_graph(graph, [X, given])[0])
            assert (got is None) == (want is None), f"{name} of {value}: {got}, torch: {want}"
            if want is not None:
                torch.testing.assert_close(got, want, equal_nan=True)


DIVISIONS = {
    "//": operator.floordiv,
    "%": operator.mod,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "of a number": lambda a, b: 7 // b + 7 % b,
    "in the middle": lambda a, b: (a * 2) // b + 1,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions(name, dtype):
    division = DIVISIONS[name]
    a, b = torch.tensor([7, 5, 9], dtype=dtype), torch.tensor([2, 3, 4], dtype=dtype)
    graph = lower_model(division, a, b).graph
    torch.testing.assert_close(evaluate_graph(graph, [a, b])[0], division(a, b))
    b[1] = 0
    assert outcome(division, a, b) is None
    with pytest.raises(InputError, match="expected integers other than 0 as divisors, got 0"):
        evaluate_graph(graph, [a, b])


def arrays_session(plan):
    """Return a session that takes tensors."""
    session = InferenceSession(plan)
    return lambda *tensors: session(*(tensor.numpy() for tensor in tensors))


def test_a_division_that_may_be_refused_is_fused():
    def model(a, b):
        return (a * 2) // b + 1, torch.relu(a.float() @ torch.ones(3, 3)).long() % b

    a, b = torch.tensor([7, 5, 9]), torch.tensor([2, 3, 4])
    plan = export(Function(model), (a, b))
    programs = [node.attrs["code"] for node in plan.nodes if node.op == "MAP"]
    assert ["FLOOR_DIV:nonzero" in code for code in programs].count(True) == 1
    session = arrays_session(plan)
    for got, want in zip(session(a, b), model(a, b), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(InputError, match=r"\(MAP\): .*expected integers other than 0 .* got 0"):
        session(a, torch.tensor([2, 0, 4]))


def test_a_product_takes_no_division_that_may_be_refused():
    def model(x, b):
        return ((x @ torch.ones(3, 3)).int() // b).float()

    x, b = torch.full((4, 3), 7.0), torch.full((4, 3), 2, dtype=torch.int32)
    plan = export(Function(model), (x, b))
    assert not any(node.attrs.get("code") for node in plan.nodes if node.op == "MATMUL")
    session = arrays_session(plan)
    np.testing.assert_array_equal(session(x, b), model(x, b))
    b[2, 1] = 0
    with pytest.raises(InputError, match="got 0"):
        session(x, b)


def test_a_smaller_division_is_refused_beside_nothing():
    """torch divides, and refuses, whatever the sizes that the quotient meets."""

    def model(a, b, x):
        return a // b + x

    a, b, x = torch.tensor([7]), torch.tensor([2]), torch.arange(4)
    plan = export(Function(model), (a, b, x), dynamic_shapes=(({}, {}, {0: "n"}),))
    session = arrays_session(plan)
    assert session(a, b, x[:0]).size == 0
    for rows in (x, x[:0]):
        with pytest.raises(InputError, match="got 0"):
            session(a, torch.tensor([0]), rows)


def test_a_divisor_that_is_a_number_needs_no_check():
    def model(a):
        return a // 3, a % -2, torch.fmod(a, 5), torch.arange(len(a)) // len(a)

    graph = lower_model(model, torch.arange(5)).graph
    assert all(node.attrs.get("by_zero", True) for node in graph.order())


def test_division_by_the_number_0():
    graph = lower_model(lambda a: a // 0, torch.arange(5)).graph
    with pytest.raises(InputError, match="got 0"):
        evaluate_graph(graph, [torch.arange(5)])
