"""Elementwise handlers: scalars, type promotion, special forms."""

from __future__ import annotations

import itertools

import pytest
import torch

from lowering import check_each, check_lowering, lower_model, ops_of
from marks import REFERENCE

X = torch.tensor([[-2.5, -1.0, -0.0], [0.0, 0.5, 3.0]])
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40])


NUMBERS = [
    (lambda x: x + 2, "ADD", 2.0, 1),
    (lambda x: 1 - x, "SUB", 1.0, 0),
    (lambda x: x * 0.1, "MUL", 0.1, 1),
    (lambda x: x / 3, "DIV", 3.0, 1),
    (lambda x: 2.0**x, "POW", 2.0, 0),
    (lambda x: x.masked_fill(x > 0, -1.0), "WHERE", -1.0, 1),
    (lambda x: torch.where(x > 0, x, 7), "WHERE", 7.0, 2),
    (lambda x: torch.nn.functional.leaky_relu(x, 0.2), "LEAKY_RELU", 0.2, 1),
    (lambda x: x.clamp(min=0.25), "MAXIMUM", 0.25, 1),
]


def test_a_number_stays_an_attr():
    for (_, op, scalar, index), nodes in check_each(NUMBERS, X):
        assert nodes[-1].op == op
        assert nodes[-1].attrs == {"scalar": scalar, "scalar_index": index}
        assert type(nodes[-1].attrs["scalar"]) is float


def test_numbers_of_integers_stay_integers():
    node = check_lowering(lambda x: x + 2, torch.arange(3)).order()[-1]
    assert node.attrs == {"scalar": 2, "scalar_index": 1}
    assert type(node.attrs["scalar"]) is int


def test_overloads_only_other_programs_call():
    aten = torch.ops.aten

    def model(x, n):
        return [
            aten.bitwise_and.Scalar(n, 6),
            aten.bitwise_or.Scalar(n, 9),
            aten.bitwise_xor.Scalar(n, 5),
            aten.div.Scalar(n, 2),
            aten.div.Scalar_mode(n, 2, rounding_mode="floor"),
            aten.sub.Scalar(x, 3, 2),
            aten.remainder.Scalar_Tensor(7, n),
        ]

    check_lowering(model, X, torch.tensor([1, -2, 12]))


def test_shifts_as_operators():
    shift = torch.tensor([1, 0, 3])
    check_lowering(lambda n, b: (n << 2, n >> 2, n << b, n >> b, 3 << b, 30 >> b), shift * 7, shift)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_shifts_beyond_the_width(dtype):
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, 1, limits.max // 3], dtype=dtype)
    for count in (0, limits.bits - 1, limits.bits, limits.bits + 1, limits.max):
        check_lowering(lambda n, b: (n << b, n >> b), x, torch.full_like(x, min(count, limits.max)))


def test_rrelu_outside_training_has_one_slope():
    assert ops_of(check_lowering(torch.nn.RReLU(0.1, 0.4).eval(), X)) == ["LEAKY_RELU"]


def test_alpha_is_a_product_of_its_own():
    assert ops_of(check_lowering(lambda x, y: torch.add(x, y, alpha=2), X, X)) == ["MUL", "ADD"]
    assert ops_of(check_lowering(lambda x, y: torch.sub(x, y, alpha=3), X, X)) == ["MUL", "SUB"]
    (node,) = check_lowering(lambda x: torch.add(x, 5, alpha=2), X).order()
    assert node.attrs["scalar"] == 10


def test_powers_are_what_torch_makes_of_them():
    cases = [
        (lambda x: x**2, "SQUARE"),
        (lambda x: x**0.5, "SQRT"),
        (lambda x: x**-0.5, "RSQRT"),
        (lambda x: x**-1, "RECIPROCAL"),
        (lambda x: x**3, "POW"),
        (lambda x: x**0, "POW"),
    ]
    for (_, op), nodes in check_each(cases, torch.tensor([0.25, 1.5, 3.0])):
        assert [node.op for node in nodes] == [op]


@REFERENCE
def test_type_promotion_of_every_pair():
    tensors = [
        torch.tensor([1.5, -2.0, 3.0]),
        torch.tensor([1, -2, 3]),
        torch.tensor([1, -2, 3], dtype=torch.int32),
        torch.tensor([True, False, True]),
        torch.tensor(2.5),
        torch.tensor(2),
        torch.tensor(2.5, dtype=torch.float64),
    ]

    def model(*tensors):
        results = []
        for a, b in itertools.product(tensors, repeat=2):
            results += [a + b, a * b, a / b, a < b, a == b, torch.maximum(a, b)]
            results.append(torch.where(a > 1, a, b))
            if a.dtype != torch.bool or b.dtype != torch.bool:
                results.append(torch.remainder(a, torch.where(b == 0, 1, b)))
        for a, b in itertools.product(tensors, [2, 2.5, True]):
            results += [a + b, a * b, a / b, b / (a * a + 1), a < b, a == b]
        return results

    check_lowering(model, *tensors)


def test_same_dtype_casts_nothing():
    def model(x):
        y = x.to(torch.float32).contiguous().clone().detach()
        return torch.nn.functional.dropout(y, 0.5, training=False)

    graph = check_lowering(model, X)
    assert not graph.nodes
    assert graph.outputs == graph.inputs


def test_casts():
    def model(x, n):
        return [
            x.to(dtype)
            for x in (x, n, n > 1)
            for dtype in (torch.float32, torch.int64, torch.int32, torch.bool, torch.float64)
        ]

    check_lowering(model, X, torch.tensor([0, 2, -3]))


def test_special_values():
    def model(x, y):
        return [
            *[f(x) for f in (torch.isnan, torch.isinf, torch.sign, torch.relu, torch.abs)],
            torch.maximum(x, y),
            torch.minimum(x, y),
            x.clamp(-1, 1),
            x.clamp(1, -1),
            torch.clamp(x, max=y),
            torch.nan_to_num(x),
            x == y,
            x < y,
            torch.logical_and(x, y),
        ]

    check_lowering(model, SPECIAL[:, None], SPECIAL)


def test_integers_have_no_nan_and_round_to_themselves():
    n = torch.tensor([3, -4])
    graph = check_lowering(lambda n: (n.isnan(), n.isinf(), n.round(), n.floor()), n)
    assert set(ops_of(graph)) == {"EXPAND"}


def test_division_rounds_as_asked():
    def model(x, y, n, m):
        return [
            torch.div(a, b, rounding_mode=mode)
            for a, b in ((x, y), (n, m))
            for mode in (None, "floor", "trunc")
        ] + [n // 2, n % 3, torch.fmod(n, 3), x // 0.5, x % -2]

    x, y = torch.tensor([7.5, -7.5, 2.0]), torch.tensor([2.0, 2.0, -0.5])
    check_lowering(model, x, y, torch.tensor([7, -7, 5]), torch.tensor([2, 2, -3]))


def test_activations_with_parameters():
    F = torch.nn.functional

    def model(x):
        return [
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.softplus(x),
            F.softplus(x, beta=2, threshold=3),
            F.elu(x, 0.5),
            F.selu(x),
            F.celu(x, 2.0),
            torch.ops.aten.elu(x, 1.5, 2.0, 0.5),
            F.hardtanh(x, -1, 2),
            F.relu6(x * 4),
            torch.round(x * 3.14159, decimals=2),
            torch.round(x * 314.159, decimals=-1),
        ]

    ops = ops_of(check_lowering(model, X))
    assert {"GELU", "GELU_TANH", "SOFTPLUS", "ELU"} <= set(ops)


def test_assertions_of_the_model_emit_nothing():
    def model(x):
        torch._assert_async((x < 10).all(), "too large")
        return x + 1

    graph = lower_model(model, X).graph
    assert graph.producers.get(graph.outputs[0]).inputs == graph.inputs


def test_a_number_read_to_be_asserted_is_not_needed():
    def model(x):
        torch._check((x < 10).sum().item() >= 0)
        return x + 1

    assert ops_of(check_lowering(model, X)) == ["ADD"]
