"""Programs that torch's functional form would not keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import taper_frontend
from function_module import Function
from taper_frontend.errors import ExportError
from taper_runtime import InferenceSession

torch.set_num_threads(1)


def same_shape(x):
    y = x * 1e8
    y.expand(4, 4).fill_(1e-3)
    return y


def same_shape_as(x):
    y = x / 0
    y.expand_as(x).copy_(x)
    return y


def leading_ones(x):
    y = x * 1e8
    y.expand(1, 1, 4, 4)[0].copy_(x[None])
    return y


def repeated(x):
    y = x * 1
    y.expand(3, 4, 4)[0].add_(1)
    return y


def windows_side_by_side(x):
    y = x * 1
    y.unfold(0, 2, 2).mul_(3)
    return y


def read_through_windows(x):
    y = x * 1
    windows = y.unfold(1, 1, 3)
    y.add_(1)
    return windows * 2, y


@pytest.mark.parametrize(
    "function",
    [
        same_shape,
        same_shape_as,
        leading_ones,
        repeated,
        windows_side_by_side,
        read_through_windows,
    ],
)
def test_writes_through_views_that_repeat_nothing(function):
    check(function, torch.randn(4, 4))


def gaps(x):
    y = x * 1
    y.unfold(1, 1, 3).add_(1)
    return y


def last_row(x):
    y = x * 1
    y.unfold(-2, 3, 3)[:, 0].add_(1)
    return y


@pytest.mark.parametrize("function", [gaps, last_row])
def test_writes_through_windows_that_leave_something_out_are_refused(function):
    with pytest.raises(ExportError, match=r"(?s)unfold.*index_copy.*function_module.py"):
        taper_frontend.export(Function(function), (torch.randn(4, 4),))


class SharedBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[1:])

    def forward(self, x):
        self.whole.add_(x)
        return self.part * 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (SharedBuffers(), "buffer that shares its memory"),
        (Function(lambda x: torch.linalg.lstsq(x[None].T, x[None].T).solution), "before a run"),
    ],
    ids=["buffers", "least squares"],
)
def test_what_torch_refuses_in_words_of_its_own(model, words):
    with pytest.raises(ExportError, match=words):
        taper_frontend.export(model, (torch.randn(4),))


def branches_of_views(x, y):
    return torch.cond(
        x.sum() > 0,
        lambda x, y: (x @ y.T).relu() + x.sum(),
        lambda x, y: (y @ x.T).neg(),
        [x, y],
    )


def loop_over_what_it_captures(x, y):
    return while_loop(
        lambda i, a, b: i < 3,
        lambda i, a, b: (i + 1, a + x, b * y),
        (torch.tensor(0), x, y),
    )


@pytest.mark.parametrize("function", [branches_of_views, loop_over_what_it_captures])
def test_bodies_that_are_given_a_tensor_twice(function):
    check(function, torch.randn(4, 4), torch.randn(4, 4))


def test_body_of_a_module_without_a_file():
    names = {"torch": torch, "nn": nn}
    exec(  # noqa: S102
        "class Model(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, [x])\n",
        names,
    )
    check(names["Model"](), torch.randn(3))


def check(model, *args):
    """Compare a plan's results with the model's, to one part in a million of each."""
    module = model if isinstance(model, nn.Module) else Function(model)
    session = InferenceSession(taper_frontend.export(module, args))
    results = session(*(x.numpy() for x in args))
    wanted = module(*args)
    if isinstance(wanted, torch.Tensor):
        results, wanted = [results], [wanted]
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, want.numpy(), rtol=1e-6)
