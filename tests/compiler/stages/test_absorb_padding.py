"""Constant borders become the padding of the windows that slide over them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, op_counts
from taper_frontend.compiler.stages import Group, absorb_padding
from taper_runtime.ops import REGISTRY

absorb = Group(absorb_padding)


class Padded(Builder):
    """``padded`` is ``x`` [2, 6, 7, 3] with one line before and two behind along an axis."""

    def __init__(self, axis=1, value=0.0):
        super().__init__()
        self.x = self.input("x", 2, 6, 7, 3)
        self.padded = self.border(self.x, axis, 1, 2, value)

    def border(self, x, axis, before, after, value=0.0):
        shape = list(self.graph.tensors[x].shape)
        filled = []
        for width in (before, after):
            shape[axis] = width
            filled.append(self.op("EXPAND", self.constant(value), shape=tuple(shape)))
        return self.op("CAT", filled[0], x, filled[1], axis=axis)

    def slide(self, op, x, **attrs):
        window = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0, 0, 1)}
        if op == "CONV":
            return self.op(op, x, self.weight(3, 2, 3, 4), **window, dilation=(1, 1))
        attrs |= {"counted": (1, 0, 0, 0)} if op == "AVG_POOL" else {"dilation": (1, 1)}
        return self.op(op, x, **window, **attrs)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    ("op", "value"), [("CONV", 0.0), ("AVG_POOL", 0.0), ("MAX_POOL", -math.inf)]
)
def test_one_axis(op, value, axis):
    b = Padded(axis, value)
    graph = check_fires(absorb, b.done(b.slide(op, b.padded)))
    assert op_counts(graph) == {op: 1}


def test_both_axes():
    b = Padded()
    graph = check_fires(absorb, b.done(b.slide("CONV", b.border(b.padded, 2, 3, 1))))
    assert op_counts(graph) == {"CONV": 1}


def of_bytes(padding=(0, 0, 0, 0), border=0):
    b = Builder()
    x = b.input("x", 2, 6, 7, 3, dtype="uint8")
    for axis, shape in ((1, (2, 1, 7, 3)), (2, (2, 7, 2, 3))):
        x = b.op("CAT", x, b.constant(np.full(shape, 9, "uint8"), f"border{axis}"), axis=axis)
    weight = b.constant(np.arange(36, dtype="int8").reshape(3, 2, 3, 2), "w")
    attrs = {"kernel": (3, 2), "stride": (1, 1), "dilation": (1, 1), "accumulate": "int32"}
    return b.done(b.op("CONV", x, weight, padding=padding, border=border, **attrs))


@pytest.mark.parametrize(("padding", "border"), [((0, 0, 0, 0), 0), ((1, 0, 0, 0), 9)])
def test_border_of_bytes(padding, border):
    graph = check_fires(absorb, of_bytes(padding, border))
    assert op_counts(graph) == {"CONV": 1}
    (conv,) = graph.order()
    assert conv.attrs["border"] == 9


def test_another_border_of_bytes_stays():
    check_keeps(absorb, of_bytes((1, 0, 0, 0), 8))


def test_through_a_permutation():
    b = Builder()
    x = b.input("x", 2, 3, 6, 7)
    zeros = b.op("EXPAND", b.constant(0.0), shape=(2, 3, 6, 2))
    moved = b.op("PERMUTE", b.op("CAT", x, zeros, axis=3), axes=(0, 2, 3, 1))
    attrs = {"kernel": (3, 2), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    y = b.op("CONV", moved, b.weight(3, 2, 3, 4), **attrs)
    assert op_counts(check_fires(absorb, b.done(y))) == {"CONV": 1, "PERMUTE": 1}


def test_op_from_outside(monkeypatch):
    pool = REGISTRY["MAX_POOL"]
    fields = {"name": "MIN_POOL", "border": math.inf, "native": False}
    fields["evaluate"] = lambda x, attrs: -pool.evaluate([-x[0]], attrs)
    monkeypatch.setitem(REGISTRY, "MIN_POOL", pool._replace(**fields))
    b = Padded(2, math.inf)
    graph = check_fires(absorb, b.done(b.slide("MIN_POOL", b.padded)))
    assert op_counts(graph) == {"MIN_POOL": 1}


class TestStays:
    def test_channels(self):
        b = Padded(3)
        attrs = {"kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1)}
        check_keeps(absorb, b.done(b.op("CONV", b.padded, b.weight(1, 1, 6, 4), **attrs)))

    def test_batch(self):
        b = Padded(0)
        check_keeps(absorb, b.done(b.slide("CONV", b.padded)))

    @pytest.mark.parametrize(("op", "value"), [("CONV", 1.0), ("MAX_POOL", 0.0)])
    def test_another_value(self, op, value):
        b = Padded(value=value)
        check_keeps(absorb, b.done(b.slide(op, b.padded)))

    def test_values_on_both_sides(self):
        b = Padded()
        check_keeps(absorb, b.done(b.slide("CONV", b.op("CAT", b.x, b.x, axis=1))))
