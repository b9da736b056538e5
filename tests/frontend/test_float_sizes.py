"""Sizes that a program computes with floats, or by comparing two sizes, beside torch."""

import math

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

import taper_frontend
import taper_runtime
from marks import some
from taper_frontend import ExportWarning, UnsupportedNodesError
from taper_frontend.lowering.float_sizes import convert_rounding
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.sizes import UNBOUNDED, Size, variable

torch.set_num_threads(1)

N = sympy.Symbol("n", integer=True, positive=True)
ROUNDINGS = {FloorToInt: np.floor, CeilToInt: np.ceil, RoundToInt: np.rint, TruncToInt: np.trunc}

#: Small sizes, sizes around powers of 2, where doubles change their precision, and random ones.
TRIED = np.unique(
    np.concatenate(
        [
            np.arange(1, 60_000),
            *(np.arange(-500, 500) + (1 << power) for power in range(17, 31)),
            np.arange(-2000, 0) + UNBOUNDED,
            np.random.default_rng(0).integers(1, UNBOUNDED, 20_000),
        ]
    )
)


def value(size, n):
    """Compute a size for many values of n."""
    if not isinstance(size, Size):
        return np.full(n.shape, size)
    total = np.zeros(n.shape, np.int64)
    for atoms, factor in size.terms:
        product = np.full(n.shape, factor)
        for atom in atoms:
            if not atom.function:
                product *= n
                continue
            a, b = (value(arg, n) for arg in atom.args)
            calls = {"floordiv": np.floor_divide, "min": np.minimum, "max": np.maximum}
            product *= calls[atom.function](a, b)
        total += product
    return total


def rounded(function, expr, low=1, high=UNBOUNDED):
    sizes = {N: variable("n", low, high)}

    def convert(integer):
        constant, terms = integer.as_coeff_add()
        return sum((int(t.coeff(N)) * sizes[N] for t in terms), int(constant))

    return convert_rounding(function.__name__, expr, convert)


FLOAT = ToFloat(N)
COMPUTED = {
    "1.7 n": (1.7 * FLOAT, lambda n: n * 1.7),
    "0.6 n": (0.6 * FLOAT, lambda n: n * 0.6),
    "1.05 n": (1.05 * FLOAT, lambda n: n * 1.05),
    "n / 3": (IntTrueDiv(N, 3), lambda n: n / 3),
    "n / 4": (IntTrueDiv(N, 4), lambda n: n / 4),
    "n / 49": (IntTrueDiv(N, 49), lambda n: n / 49),
    "n / 1.5": (FloatTrueDiv(FLOAT, 1.5), lambda n: n / 1.5),
    "n / 0.3": (FloatTrueDiv(FLOAT, 0.3), lambda n: n / 0.3),
    "0.5 n / 0.5": (FloatTrueDiv(0.5 * FLOAT, 0.5), lambda n: n * 0.5 / 0.5),
    "1.7 n + 0.5": (1.7 * FLOAT + 0.5, lambda n: n * 1.7 + 0.5),
    "1.7 (n - 1) + 1": (1.7 * ToFloat(N - 1) + 1.0, lambda n: (n - 1) * 1.7 + 1.0),
    "n (1 / 3)": ((1 / 3) * FLOAT, lambda n: n * (1 / 3)),
    "-0.6 n": (-0.6 * FLOAT, lambda n: n * -0.6),
    "9 - 0.6 n": (9.0 - 0.6 * FLOAT, lambda n: 9.0 - n * 0.6),
}


@pytest.mark.parametrize("function", ROUNDINGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", COMPUTED)
def test_sizes_are_those_of_doubles(name, function):
    """A size is what doubles give for the whole range."""
    expr, compute = COMPUTED[name]
    np.testing.assert_array_equal(
        value(rounded(function, expr), TRIED), ROUNDINGS[function](compute(TRIED))
    )


def test_factors_are_exact_or_refused():
    """Of many factors no size differs from torch's, and none is refused that would not."""
    for percent in range(1, 420, 3):
        factor = percent / 100
        doubles = np.floor(TRIED * factor)
        try:
            size = rounded(FloorToInt, factor * FLOAT)
        except OpError:
            size = None
        exact = TRIED * percent // 100 if size is None else value(size, TRIED)
        assert np.array_equal(exact, doubles) == (size is not None), factor


def test_a_range_may_be_short_enough():
    """``floor(0.7 * n)`` is 7n // 10 below 90, where doubles give 62."""
    low = np.arange(1, 90)
    size = rounded(FloorToInt, 0.7 * FLOAT, 1, 89)
    np.testing.assert_array_equal(value(size, low), np.floor(low * 0.7))
    with pytest.raises(OpError, match=r"62 for n = 90.*gives 63.*7\*n // 10.*at most 89"):
        rounded(FloorToInt, 0.7 * FLOAT, 1, 90)


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *others):
        return self.function(x, *others)


def exported(function, args, dims, tmp_path):
    """Export, save and open a model."""
    plan = taper_frontend.export(
        Call(function), args, dynamic_shapes=(dims[0], *([tuple(dims[1:])] if dims[1:] else ()))
    )
    assert plan.metadata["verified"]["trials"] >= 3
    plan.save(tmp_path / "plan.taper")
    return taper_runtime.InferenceSession(tmp_path / "plan.taper")


def check(function, session, *args):
    want = function(*args)
    got = session(*(x.numpy() for x in args))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


MODES = ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize(
    ("mode", "recompute"),
    some(
        [*((mode, False) for mode in MODES), ("bilinear", True)],
        [("nearest", False), ("bicubic", False), ("bilinear", False)],
    ),
)
def test_interpolate_by_a_factor(mode, recompute, tmp_path):
    def model(x):
        return F.interpolate(
            x, scale_factor=(1.7, 0.55), mode=mode, recompute_scale_factor=recompute
        )

    session = exported(model, (torch.randn(1, 2, 20, 30),), ({2: "h", 3: "w"},), tmp_path)
    for h, w in [(7, 9), (10, 20), (33, 50), (3, 64), (30, 20)]:
        check(model, session, torch.randn(1, 2, h, w))


SLICES = {
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 3)],
    "round": lambda x: x[: round(x.shape[0] / 3)],
    "round to even": lambda x: x[: round(x.shape[0] / 4)],
    "trunc": lambda x: x[: math.trunc(x.shape[0] * 0.6 + 0.5)],
    "remainder": lambda x: x[: x.shape[0] % 3 + 1],
    "float ends": lambda x: torch.arange(0, x.shape[0] * 0.5, 0.5) + x[:, 0],
    "float start and step": lambda x: torch.arange(0.25, x.shape[0], 0.3),
    "step": lambda x: torch.arange(1, 1 + 3 * x.shape[0], x.shape[0]),
    "full": lambda x: torch.full((3,), x.shape[0]),
    "full of a fraction": lambda x: torch.full((3,), x.shape[0] * 0.5),
    "full_like": lambda x: torch.full_like(x, x.shape[0]),
    "new_full": lambda x: x.new_full((2,), x.shape[0]),
    "fill_": lambda x: x.clone().fill_(x.shape[0]),
    "index_fill": lambda x: torch.zeros(4).index_fill(0, torch.tensor([1]), x.shape[0]),
    "scatter": lambda x: torch.zeros(4).scatter(0, torch.tensor([1]), x.shape[0]),
    "linspace": lambda x: torch.linspace(0, x.shape[0] - 1, 5),
}
#: Of a kind with others.
MORE = ("round to even", "trunc", "full of a fraction", "full_like", "fill_", "scatter", "linspace")


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize("name", some(SLICES, MORE))
def test_one_size(name, tmp_path):
    session = exported(SLICES[name], (torch.randn(20, 5),), ({0: "n"},), tmp_path)
    for n in (8, 9, 10, 11, 12, 13, 14, 29, 30, 31, 90):
        check(SLICES[name], session, torch.randn(n, 5))


PAIRS = {
    "x[n - m:]": lambda x, y: x[x.shape[0] - y.shape[0] :] + y,
    "x[:, -m:]": lambda x, y: x.T[:, -y.shape[0] :],
    "x[:m]": lambda x, y: x[: y.shape[0]] * y,
    "x[m:]": lambda x, y: torch.softmax(x[y.shape[0] :], 0) * 2,
    "x[:-m]": lambda x, y: x[: -y.shape[0]] + 1,
    "rest": lambda x, y: torch.cat([y, x[y.shape[0] :] * 2]),
}


@pytest.mark.parametrize("name", some(PAIRS, ["x[:m]", "x[m:]", "x[:-m]"]))
def test_two_sizes(name, tmp_path):
    """A size that must not exceed another varies as far as that one."""
    with pytest.warns(
        ExportWarning, match=r"\(m\) varies only from [01] to n, because of test_float"
    ):
        session = exported(
            PAIRS[name], (torch.randn(20, 5), torch.randn(7, 5)), ({0: "n"}, {0: "m"}), tmp_path
        )
    for n, m in [(20, 7), (7, 7), (8, 7), (3, 1), (2, 2)]:
        check(PAIRS[name], session, torch.randn(n, 5), torch.randn(m, 5))
    with pytest.raises(InputError, match=r"m of at most 5 \(n\), got 6"):
        session(np.zeros((5, 5), "f4"), np.zeros((6, 5), "f4"))


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_sizes_limit_each_other(tmp_path):
    """Cached positions: t + s positions of a table, t rows of a third tensor, none left over."""
    table = torch.randn(64, 5)

    def model(x, memory, k):
        t, s = x.shape[0], memory.shape[0]
        return torch.cat([memory, x]) + table[: t + s], k[:t] * 2, k[t:].amax(0)

    args = torch.randn(20, 5), torch.randn(7, 5), torch.randn(30, 5)
    plan = taper_frontend.export(
        Call(model), args, dynamic_shapes={"x": {0: "t"}, "others": ({0: "s"}, {0: "k"})}
    )
    plan.save(tmp_path / "plan.taper")
    session = taper_runtime.InferenceSession(tmp_path / "plan.taper")
    for t, s, k in [(4, 5, 10), (10, 1, 12), (2, 3, 4), (40, 24, 41)]:
        rows = torch.randn(t, 5), torch.randn(s, 5), torch.randn(k, 5)
        for got, want in zip(session(*(x.numpy() for x in rows)), model(*rows), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="expected t of at most 3"):  # nothing would be left
        session(*(np.zeros((n, 5), "f4") for n in (4, 5, 4)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[: math.floor(x.shape[0] * 0.7)], r"floor\(length\*0.7\).*7\*length // 10"),
        (lambda x: x[: math.floor(x.shape[0] ** 0.5)], r"floor\(length \*\* 0.5\).*with a power"),
        (lambda x: x[: math.floor(x.shape[0] * 0.7 * 10.0)], r"floats give 20 for length = 3"),
        (lambda x: torch.arange(0.0, x.shape[0] * 0.1, 0.1), r"whole numbers, as length, or let"),
        (lambda x: x[: math.ceil(x.shape[0] * 1.1)], r"as -\(-11\*length // 10\), or let"),
        (lambda x: F.interpolate(x.T[None], scale_factor=1.4), r"at most \d+"),
    ],
)
def test_a_refusal_names_the_size_and_the_line(function, message):
    """The message has the size's name, the line, and what to write; it is given once."""
    with pytest.raises(UnsupportedNodesError, match=message) as caught:
        taper_frontend.export(
            Call(function),
            (torch.randn(20, 5),),
            dynamic_shapes=({0: "length"},),
        )
    (node,) = caught.value.nodes
    assert node.category == "dynamic shape"
    assert "test_float_sizes.py" in node.source
