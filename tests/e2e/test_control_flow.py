"""Branches and loops as plans, run by both executors."""

from functools import cache

import numpy as np
import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves

import taper_frontend
import taper_runtime
from control_flow import (
    GRU,
    MODELS,
    WIDTH,
    Branches,
    Buffer,
    BySize,
    Integers,
    Items,
    Noise,
    X,
    seeded,
)
from marks import NUMPY, STATE, some
from taper_runtime.executor.interpreted import InterpretedExecutor

torch.set_num_threads(1)
pytestmark = NUMPY


def torchs(model, args):
    with torch.no_grad():
        return [np.asarray(leaf) for leaf in tree_leaves(model(*args))]


def assert_close(got, want):
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@cache
def exported(name):
    """Export a model, and verify it."""
    model, args = MODELS[name]
    return taper_frontend.export(model, args)


#: Models that differ little from others, or do two things that others do apart.
MORE = (
    *("branch not taken", "while with integers", "cond in while", "while in while"),
    *("scan backwards along another axis", "scan in bfloat16", "scan with nested carries"),
    *("complex carry", "while with a buffer", "nested results"),
)


@pytest.mark.parametrize("name", some(MODELS, MORE))
def test_models(name, tmp_path):
    model, args = MODELS[name]
    plan = exported(name)
    path = tmp_path / "model.taper"
    plan.save(path)
    want = torchs(model, args)
    session = taper_runtime.InferenceSession(path)
    inputs = dict(zip(plan.inputs, map(np.asarray, args), strict=True))
    for _ in range(2):
        assert_close(session.run(None, inputs), want)
    assert_close(InterpretedExecutor.compile(plan).run(list(inputs.values())), want)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_plan_takes_both_branches(sign):
    model, _ = MODELS["branch taken"]
    session = taper_runtime.InferenceSession(exported("branch taken"))
    x = sign * X.abs()
    assert_close(session.run(None, {"x": x.numpy()}), torchs(model, (x,)))


@pytest.mark.parametrize(
    ("model", "shapes", "dims"),
    [
        (Branches(), [(6, WIDTH)], {"x": {0: "n"}}),
        (BySize(), [(6, WIDTH)], {"x": {0: "n"}}),
        (Integers(), [(6, WIDTH)], {"x": {0: "n"}}),
        (Items(), [(6, WIDTH), (WIDTH,)], {"x": {0: "n"}, "y": None}),
        (
            GRU(),
            [(7, 2, WIDTH), (2, 2 * WIDTH)],
            {"x": {0: "steps", 1: "batch"}, "h": {0: "batch"}},
        ),
    ],
    ids=["cond", "by size", "while", "map", "scan"],
)
def test_sizes_vary(model, shapes, dims):
    args = tuple(seeded(*shape) for shape in shapes)
    plan = taper_frontend.export(model, args, dynamic_shapes=dims)
    session = taper_runtime.InferenceSession(plan)
    assert plan.sizes
    for size in (2, 3, 9):
        shape = (size, *shapes[0][1:])
        changed = (seeded(*shape), *args[1:])
        inputs = dict(zip(plan.inputs, map(np.asarray, changed), strict=True))
        assert_close(session.run(None, inputs), torchs(model, changed))


@STATE
def test_a_state_is_read_by_a_branch():
    model, x = Buffer(), X
    session = taper_runtime.InferenceSession(taper_frontend.export(model, (x,)))
    model = Buffer()
    for _ in range(4):
        assert_close(session.run(None, {"x": x.numpy()}), torchs(model, (x,)))


def test_random_numbers_continue_one_sequence():
    model = Noise().eval()
    plan = taper_frontend.export(model, (X,))
    options = taper_runtime.SessionOptions()
    options.seed = 3
    session = taper_runtime.InferenceSession(plan, options)
    torch.manual_seed(3)
    for _ in range(2):
        assert_close(session.run(None, {"x": X.numpy()}), torchs(model, (X,)))


def test_a_weight_used_inside_and_outside_is_stored_once():
    plan = exported("weights inside and outside")
    weights = [array for array in plan.constants.values() if array.size >= WIDTH * WIDTH]
    assert len(weights) == 1


class Steps(torch.nn.Module):
    """How often a tensor can be doubled: an integer that values decide."""

    def forward(self, x):
        return while_loop(lambda i, x: x.sum() < 50, lambda i, x: (i + 1, x * 2), (0, x.abs()))


def test_an_integer_that_a_loop_gives_is_a_scalar():
    plan = taper_frontend.export(Steps(), (X,))
    got = taper_runtime.InferenceSession(plan).run(None, {"x": X.numpy()})
    assert (got[0].dtype, got[0].shape) == (np.int64, ())
    assert_close(got, torchs(Steps(), (X,)))
