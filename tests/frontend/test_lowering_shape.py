"""Handlers that move elements: which ops they emit, and where nothing is to be done."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from lowering import check_each, check_lowering

X = torch.arange(24.0).reshape(2, 3, 4)


#: Where the elements lie follows from sizes.
_DIAGONAL = ["RESHAPE", "ARANGE", "MUL", "ADD", "INDEX_SELECT"]

CASES = [
    (lambda x: x.permute(0, 2, 1), ["TRANSPOSE"]),
    (lambda x: x.permute(2, 1, 0), ["TRANSPOSE"]),
    (lambda x: x.permute(-1, 0, 1), ["PERMUTE"]),
    (lambda x: x.permute(0, 1, 2), []),
    (lambda x: x.transpose(0, -1), ["TRANSPOSE"]),
    (lambda x: x[0].t(), ["SLICE", "RESHAPE", "TRANSPOSE"]),
    (lambda x: x.reshape(6, 4), ["RESHAPE"]),
    (lambda x: x.view(2, -1), ["RESHAPE"]),
    (lambda x: x.flatten(), ["RESHAPE"]),
    (lambda x: x.unsqueeze(1), ["RESHAPE"]),
    (lambda x: x[:1].squeeze(), ["SLICE", "RESHAPE"]),
    (lambda x: x.view(2, 3, 4), []),
    (lambda x: x[:, 1:], ["SLICE"]),
    (lambda x: x[:, :99], []),
    (lambda x: x[:, -9:], []),
    (lambda x: x[:, -9:2], ["SLICE"]),
    (lambda x: x[:, -9:-1], ["SLICE"]),
    (lambda x: x[:, :-9], ["SLICE"]),
    (lambda x: x[..., ::2], ["SLICE"]),
    (lambda x: x[:, -1], ["SLICE", "RESHAPE"]),
    (lambda x: x[:, 2:1], ["SLICE"]),
    (lambda x: x[:, :1].expand(5, 2, 3, 4), ["SLICE", "EXPAND"]),
    (lambda x: x.expand(2, 3, -1), []),
    (lambda x: x.repeat(1, 1, 1), []),
    (lambda x: x.repeat(3, 1, 2, 1), ["RESHAPE", "EXPAND", "RESHAPE"]),
    (lambda x: torch.cat([x]), []),
    (lambda x: torch.cat([x, x, x], -1), ["CAT"]),
    (lambda x: torch.stack([x, x], 1), ["CAT", "RESHAPE"]),
    (lambda x: x.flip(0, -1), ["FLIP"]),
    (lambda x: torch.nn.functional.pad(x, (-1, -1)), ["SLICE"]),
    (lambda x: torch.nn.functional.pad(x, (0, 0)), []),
    (lambda x: x.roll((1, -5), (1, 2)), ["INDEX_SELECT", "SLICE", "SLICE", "CAT"]),
    (lambda x: x.roll((2, 6), (0, 1)), []),
    (lambda x: x.roll(7), ["RESHAPE", "SLICE", "SLICE", "CAT", "RESHAPE"]),
    (lambda x: x.diagonal(1, 0, 2), ["TRANSPOSE", *_DIAGONAL]),
    (lambda x: x.diagonal(-1, 1, 2), _DIAGONAL),
    (lambda x: x.diagonal(9, 1, 2), _DIAGONAL),
]


def test_ops():
    for (_, ops), nodes in check_each(CASES, X):
        assert [node.op for node in nodes] == ops


def test_parts_are_slices_of_their_own():
    def model(x):
        return [
            *x.split(2, 1),
            *x.split([1, 2], -2),
            *x.chunk(3, 2),
            *x.unbind(0),
            *torch.tensor_split(x, 2, 2),
        ]

    graph = check_lowering(model, X)
    slices = [node for node in graph.order() if node.op == "SLICE"]
    assert len(slices) == 10
    assert {node.inputs[0] for node in slices} == set(graph.inputs)


def test_padding():
    def model(x):
        pad = torch.nn.functional.pad
        return [
            pad(x, (1, 2, 0, 3), value=1.5),
            pad(x, (-1, 2)),
            pad(x.long(), (2, 0), value=7),
            pad(x, (1, 2), mode="reflect"),
            pad(x, (1, 2), mode="replicate"),
            pad(x, (3, 2), mode="circular"),
            pad(x, (-1, 1, 1, -2), mode="circular"),
        ]

    check_lowering(model, X)


def test_any_dtype():
    def model(x):
        y = torch.cat([x, x.flip(1)], 2).permute(2, 0, 1)
        return y[1::2, :, 1:].expand(2, *y[1::2, :, 1:].shape)

    for dtype in (torch.bool, torch.int32, torch.int64, torch.uint8, torch.float64, torch.float16):
        check_lowering(model, (X % 2).to(dtype))


def test_cat_promotes_and_skips_legacy_empty_vectors():
    def model(x, n, empty):
        return torch.cat([x, n, empty], 1), torch.cat([empty, empty])

    check_lowering(model, X[0], torch.arange(6).reshape(3, 2), torch.empty(0))


def test_empty_dimensions():
    def model(x):
        return [x[:, :0], x[:0].reshape(4, 0), torch.cat([x[:0], x]), x[:0].expand(0, 3, 4)]

    check_lowering(model, X)


def test_scalars():
    def model(x):
        return [x.reshape(1, 1), x.expand(3), x.permute(()), x.flip(()), x.repeat(2), x.squeeze()]

    check_lowering(model, torch.tensor(2.5))


def test_strided_and_unfolded():
    def model(x):
        return [
            x.as_strided((2, 5), (3, 2), 1),
            x.unfold(2, 2, 1),
            x.unfold(1, 3, 2),
            x.unfold(2, 3, 3),
            x.unfold(-1, 2, 2),
            x.unfold(2, 2, 3),
        ]

    check_lowering(model, X)


STRIDED = {
    "transposed": lambda x: x.T.as_strided((3, 2), (2, 5)),
    "rows": lambda x: x[1:].as_strided((2, 5), (3, 1)),
    "before the view": lambda x: x[1:].as_strided((2, 5), (3, 1), 0),
    "between columns": lambda x: x[:, 2:4].as_strided((3, 3), (6, 1)),
    "computed": lambda x: (x * 2)[1:, 1:].as_strided((2, 5), (3, 1)),
    "reshaped": lambda x: x.reshape(6, 4)[1:].as_strided((2, 5), (3, 1)),
    "reshaped rows": lambda x: x[:, :4].reshape(4, 2, 2)[1:].as_strided((2, 5), (3, 1)),
    "copied by a reshape": lambda x: x.T.reshape(4, 6).view(2, 12).as_strided((3, 8), (4, 1)),
    "copied": lambda x: x.T.contiguous()[1:].as_strided((2, 5), (3, 1)),
    "expanded": lambda x: x[0].expand(3, 6).as_strided((2, 5), (3, 1)),
    "cast": lambda x: x.to(torch.float64)[1:].as_strided((2, 5), (3, 1)),
    "twice": lambda x: x.as_strided((2, 4), (6, 1), 3).as_strided((2, 2), (1, 6)),
    "written": lambda x: x.clone()[1:].mul_(2).as_strided((2, 5), (3, 1), 2),
    "unfolded": lambda x: x.unfold(1, 3, 1).as_strided((2, 5), (3, 1)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided_views(name):
    """Strides lead through the memory of the tensor that owns it."""
    check_lowering(STRIDED[name], torch.arange(24.0).reshape(4, 6))


def test_a_write_through_strides():
    def model(x):
        y = x.clone()
        y[1:].as_strided((2, 2), (3, 1)).zero_()
        y.as_strided((2,), (7,), 1).copy_(x[0, :2] + 50)
        return y

    check_lowering(model, torch.arange(24.0).reshape(4, 6))


def test_windows_whose_size_and_step_have_a_common_divisor():
    """They are taken in runs of the divisor; what is behind the last window is in none."""

    def model(x):
        windows = [(6, 4), (4, 6), (9, 3), (20, 4), (22, 2), (23, 23)]
        return [x.unfold(1, size, step) for size, step in windows]

    check_lowering(model, torch.arange(138.0).reshape(2, 23, 3))


def test_roll_along_a_varying_axis():
    """Whether a shift is shorter than the axis may be known, or not."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.roll(2, 0), x.roll(-1, 0), x.roll(9, 0), x.roll(x.shape[0] // 2, 0)

    sizes = ({0: torch.export.Dim("n", min=3, max=40)},)
    plan = taper_frontend.export(Model(), (X.flatten(),), dynamic_shapes=sizes)
    session = taper_runtime.InferenceSession(plan)
    for n in (3, 8, 9, 24):
        x = torch.arange(float(n))
        for got, want in zip(session.run(None, {"x": x.numpy()}), Model()(x), strict=True):
            np.testing.assert_array_equal(got, want)
