"""Reductions, scans, norms and tensors made from numbers."""

from __future__ import annotations

import pytest
import torch

from lowering import check_lowering, lower_model, ops_of

X = torch.linspace(-3, 4, 24).reshape(2, 3, 4)
N = torch.arange(24).reshape(2, 3, 4) - 11


def test_axes_are_normalised():
    (node,) = check_lowering(lambda x: x.sum((-1, 0)), X).order()
    assert node.complete_attrs() == {"axes": (0, 2), "keepdim": False}
    (node,) = check_lowering(lambda x: x.mean(), X).order()
    assert node.complete_attrs()["axes"] == (0, 1, 2)


def test_integers_and_bools_are_counted_in_int64():
    for x in (N, N.int(), N > 0):
        graph = check_lowering(lambda x: (x.sum(), x.sum(1), x.prod(), x.cumsum(-1)), x)
        assert {graph.tensors[name].dtype for name in graph.outputs} == {"int64"}


def test_dtype_argument():
    def model(n):
        return [
            n.sum(dtype=torch.float32),
            n.mean(dtype=torch.float32),
            n.cumsum(0, dtype=torch.int32),
        ]

    check_lowering(model, N)


def test_product_of_bools():
    flags = torch.tensor([[1, 2, 0], [3, 1, 1]])
    check_lowering(lambda x: [x.prod(1, dtype=torch.bool), x.prod(dtype=torch.bool)], flags)


def test_reductions_of_every_form():
    def model(x, n):
        return [
            x.amax((0, 2), keepdim=True), x.amin(), x.max(), *x.max(1, keepdim=True), n.amax(1),
            (n > 0).amax(0), (n > 0).any(), n.any(1), (n > 0).all(2, keepdim=True), x.all(),
            x.var(), x.var(1, unbiased=False), x.std((0, 1), correction=2), *torch.var_mean(x, 2),
            x.norm(), x.norm(1, -1), x.norm(float("inf"), 0), x.norm(3, 1), x.norm(0, 2),
            x.logsumexp(1), x.prod(2), *torch.aminmax(x),
        ]  # fmt: skip

    check_lowering(model, X, N)


def test_nan_wins():
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    check_lowering(lambda x: [x.amax(1), x.amin(0), x.argmax(1), *x.max(1), x.sum(1)], x)


def test_scalars():
    x = torch.tensor(2.5)
    check_lowering(lambda x: [x.sum(), x.sum(0), x.mean(-1), x.amax(), x.any(), x.argmax()], x)
    check_lowering(lambda x: [x.var(correction=0), x.norm(), *x.min(0), x.cumsum(0)], x)


def test_nothing_to_reduce():
    check_lowering(lambda x: [x.sum(), x.sum(0), x.prod(1), x.any(), x.all(0)], X[:0])


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine):
    net = torch.nn.LayerNorm((3, 4), eps=1e-3, elementwise_affine=affine).eval()
    (node,) = check_lowering(net, X).order()
    assert (node.op, node.attrs["dims"]) == ("LAYER_NORM", 2)
    assert len(node.inputs) == (3 if affine else 1)


def test_norms():
    x = X.reshape(1, 6, 2, 2)
    for net in (
        torch.nn.LayerNorm(2, bias=False),
        torch.nn.RMSNorm(2),
        torch.nn.RMSNorm((2, 2), eps=1e-3, elementwise_affine=False),
        torch.nn.BatchNorm2d(6),
        torch.nn.GroupNorm(3, 6),
        torch.nn.GroupNorm(2, 6, affine=False),
    ):
        check_lowering(net.eval(), x)


def test_native_layer_norm_gives_no_statistics():
    native = torch.native_layer_norm
    check_lowering(lambda x: native(x, (4,), None, None, 1e-5)[0], X)


def test_softmax():
    (node,) = check_lowering(lambda x: x.softmax(-2), X).order()
    assert (node.op, node.attrs["axis"]) == ("SOFTMAX", 1)
    check_lowering(lambda x, n: [x.log_softmax(0), n.softmax(1, torch.float32)], X, N)


def test_creation():
    def model(x):
        return [
            torch.arange(5), torch.arange(1, 2, 0.25), torch.arange(3, -1, -1, dtype=torch.int32),
            torch.zeros(2, 3), torch.ones(3, dtype=torch.int64), torch.full((2,), -7),
            torch.full((), 2.5), torch.eye(3, 2), torch.linspace(0, 1, 5), torch.tensor([1, 2]),
            x.new_zeros(2), torch.zeros_like(x), torch.full_like(x, 3), torch.ones_like(x) > 0,
            torch.scalar_tensor(4.0), torch.tril(x), torch.triu(x, 1), torch.tril_indices(3, 3),
        ]  # fmt: skip

    check_lowering(model, X)


def test_equal_steps_between_tensors():
    """Of integers, torch rounds the ends first; its decomposition at export does not."""

    def model(start, end):
        return [
            *(torch.linspace(start, end, n, dtype=torch.int64) for n in (0, 1, 2, 50)),
            *(torch.linspace(start, 7, n) for n in (1, 5)),
            torch.linspace(4.3, end, 9, dtype=torch.float64),
            torch.logspace(4.3, -3, 6),
        ]

    check_lowering(model, torch.tensor(4.3), torch.tensor(-3))


def test_uninitialised_tensors_have_the_right_type():
    def model(x):
        strided = torch.empty_strided((3, 2), (1, 3), dtype=torch.int64)
        return torch.empty(2, 3), torch.empty_like(x), strided, x.new_empty_strided((2,), (1,))

    graph = lower_model(model, X).graph
    types = [graph.tensors[name].type[:2] for name in graph.outputs]
    assert types == [
        ("float32", (2, 3)),
        ("float32", (2, 3, 4)),
        ("int64", (3, 2)),
        ("float32", (2,)),
    ]


def test_large_constants_are_one_element_expanded():
    graph = check_lowering(lambda x: x + torch.ones(1000, 1000)[:1, :4], X)
    assert "EXPAND" in ops_of(graph)
    assert sum(array.nbytes for array in graph.constants.values()) == 4


@pytest.mark.parametrize("x", [X, X[:, :0], torch.full((3,), 2.0), X.round()])
@pytest.mark.parametrize(("bins", "low", "high"), [(5, -3, 4), (7, -1, 2), (4, 0, 0), (1, 9, 10)])
def test_histogram(x, bins, low, high):
    check_lowering(lambda x: x.histc(bins, low, high), x)
