"""Checks of a model on sizes that values decide: proven at export, or compared in each run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from function_module import Function
from marks import NARROWED
from taper_runtime.base.errors import InputError

torch.set_num_threads(1)

X = torch.arange(6.0)


def numbers(n, most=6):
    """Two sizes out of a tensor."""
    first, second = n[0].item(), n[1].item()
    for size in (first, second):
        torch._check(size >= 0)
        torch._check(size <= most)
    return first, second


def between(x, n):
    first, last = numbers(n)
    torch._check(first <= last)
    return 2 * x[first:last], torch.ones(last - first)


def behind(x, n):
    first, last = numbers(n)
    torch._check(last > first)
    return x[:first].exp(), x[first:last].sum() / (last - first)


def equal(x, n):
    first, second = numbers(n)
    torch._check(first == second)
    return torch.ones(first) + x[:second]


def parted(x, n):
    first, second = numbers(n)
    torch._check(first + second == 6)
    head, tail = torch.split(x, [first, second])
    return 2 * head, 3 * tail, torch.cat([torch.ones(first), torch.zeros(second)]) + x


def in_fours(x, n):
    count = n[0].item()
    torch._check(count >= 4)
    torch._check(count <= 100)
    torch._check(count % 4 == 0)
    return torch.ones(count).view(4, -1).cumsum(1) + n[1]


def as_many(x, n):
    small, large = torch.nonzero(x < n[0]).squeeze(1), torch.nonzero(x > n[1]).squeeze(1)
    torch._check(small.shape[0] == large.shape[0])
    return small + large


def with_inputs(x, n):
    """A relation to the size of an input."""
    first, second = n[0].item(), n[1].item()
    torch._check(first >= 0)
    torch._check(second >= 0)
    torch._check(first + second == x.shape[0])
    head, tail = torch.split(x, [first, second])
    return head.exp(), tail.sin()


def run(session, pair):
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, (X.numpy(), np.array(pair)), strict=True)))


CASES = {
    between: ([(2, 4), (0, 6), (3, 3), (0, 0), (6, 6)], [(4, 2), (1, 7)], "u1_minus_u0"),
    behind: ([(2, 4), (0, 6), (5, 6)], [(4, 4), (4, 2)], "u1_minus_u0"),
    equal: ([(3, 3), (1, 1), (6, 6)], [(3, 4), (4, 3)], "u1_minus_u0"),
    parted: ([(2, 4), (0, 6), (6, 0)], [(2, 3), (3, 4), (6, 6)], "u1_minus_6_minus_u0"),
    in_fours: ([(8, 1), (4, 2), (100, 0)], [(6, 0), (99, 0), (102, 0)], "u0_"),
    as_many: ([(2, 3), (1, 4), (6, -1)], [(1, 1), (5, 4)], "u1_minus_u0"),
    with_inputs: ([(2, 4), (0, 6), (6, 0)], [(2, 3), (5, 2)], "u1_minus_"),
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_relations(function, tmp_path):
    """Runs are torch's where the check holds, and end where torch's would."""
    right, wrong, name = CASES[function]
    module = Function(function)
    dynamic = {"dynamic_shapes": (({0: "n"}, None),)} if function is with_inputs else {}
    plan = taper_frontend.export(module, (X, torch.tensor(right[0])), **dynamic)
    plan.save(tmp_path / "m.taper")
    for executor in ("compiled", "interpreted"):
        options = taper_runtime.SessionOptions()
        options.executor = executor
        session = taper_runtime.InferenceSession(tmp_path / "m.taper", options)
        for pair in right:
            wants = module(X, torch.tensor(pair))
            wants = wants if isinstance(wants, tuple) else (wants,)
            for got, want in zip(run(session, pair), wants, strict=True):
                np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
        for pair in wrong:
            with pytest.raises(RuntimeError):
                module(X, torch.tensor(pair))
            with pytest.raises(InputError, match=r"size u\d.* that it computes: expected"):
                run(session, pair)
        with pytest.raises(InputError, match=f"size {name}"):
            run(session, wrong[0])


def test_a_check_of_what_nothing_needs_is_made():
    """No shape depends on the sizes that the model compares."""

    def compared(x, n):
        first, second = numbers(n)
        torch._check(first == second)
        return x * second + first

    plan = taper_frontend.export(Function(compared), (X, torch.tensor([2, 2])))
    session = taper_runtime.InferenceSession(plan)
    np.testing.assert_array_equal(run(session, (4, 4))[0], 4 * X.numpy() + 4)
    with pytest.raises(InputError, match="u1_minus_u0 that it computes: expected 0, got 1"):
        run(session, (3, 4))


class AllOfARange(torch.nn.Module):
    """Slices without an end, or a beginning, of sizes that are quotients less a number."""

    def forward(self, x):
        y = x[:, ::4][:, 3:]
        return y[:, 1:] + 1, y[:, : 2**63 - 1] + y[:, -(2**62) :], y[:, -(2**61) : 2]


@NARROWED
def test_slices_that_end_where_int64_does():
    model = AllOfARange()
    plan = taper_frontend.export(model, (torch.randn(2, 40),), dynamic_axes={"x": {1: "n"}})
    x = torch.randn(2, 61)
    got = taper_runtime.InferenceSession(plan).run(None, {"x": x.numpy()})
    for mine, want in zip(got, model(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), want)
