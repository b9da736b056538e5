"""Lower-triangular constant masks become attrs, in whatever format; masks that say more stay."""

import math

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import absorb_causal_mask

MIN = float(np.finfo(np.float32).min)


def attention(b, mask, queries=5, keys=5, heads=2, **attrs):
    q, k, v = (
        b.input(n, 2, heads, length, 4)
        for n, length in zip("qkv", (queries, keys, keys), strict=False)
    )
    return b.op("ATTENTION", q, k, v, mask, **{"scale": 0.5, **attrs})


def as_float(allowed, fill):
    return np.where(allowed, 0, fill).astype(np.float32)


FORMATS = {
    "bool": lambda allowed: allowed,
    "-inf": lambda allowed: as_float(allowed, -np.inf),
    "min": lambda allowed: as_float(allowed, MIN),
    "-1e9": lambda allowed: as_float(allowed, -1e9),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("leading", [(), (1,), (1, 1), (2, 1), (1, 2), (2, 2)])
def test_formats_and_leading_dimensions(format_, leading):
    b = Builder()
    mask = FORMATS[format_](np.tri(5, dtype=bool))
    mask = np.broadcast_to(mask, (*leading, 5, 5))
    graph = check_fires(absorb_causal_mask, b.done(attention(b, b.constant(mask))))
    node = only(graph, "ATTENTION")
    assert node.inputs == ["q", "k", "v"]
    assert node.attrs == {"scale": 0.5, "causal": True, "diagonal": 0}
    assert not graph.constants


@pytest.mark.parametrize("format_", ["bool", "-inf"])
@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 6), (6, 1)])
@pytest.mark.parametrize("diagonal", range(-8, 9))
def test_every_diagonal(format_, safe, queries, keys, diagonal):
    b = Builder()
    allowed = np.tri(queries, keys, diagonal, dtype=bool)
    mask = b.constant(FORMATS[format_](allowed))
    graph = b.done(attention(b, mask, queries, keys, safe_softmax=safe))
    check_fires(absorb_causal_mask, graph)
    node = only(graph, "ATTENTION")
    assert len(node.inputs) == 3
    if allowed.all():
        assert "causal" not in node.attrs
    else:
        got = np.tri(queries, keys, node.attrs["diagonal"], dtype=bool)
        np.testing.assert_array_equal(got, allowed)


@pytest.mark.parametrize("format_", ["min", "-1e9"])
def test_low_number_with_a_fully_masked_row_stays(format_):
    # such a row attends to every key alike; with a causal mask it would attend to none
    b = Builder()
    mask = b.constant(FORMATS[format_](np.tri(5, 5, -1, dtype=bool)))
    check_keeps(absorb_causal_mask, b.done(attention(b, mask)))


def test_joins_the_causal_attr():
    for diagonal, expected in ((-1, -1), (2, 1)):
        b = Builder()
        mask = b.constant(np.tri(5, 5, 1, dtype=bool))
        graph = b.done(attention(b, mask, causal=True, diagonal=diagonal))
        check_fires(absorb_causal_mask, graph)
        assert only(graph, "ATTENTION").attrs["diagonal"] == expected


def test_mask_that_is_computed_from_constants_only():
    b = Builder()
    positions = b.constant(np.arange(5))
    mask = b.op("GE", b.reshape(positions, 5, 1), positions)
    graph = check_fires(absorb_causal_mask, b.done(attention(b, mask)))
    assert op_counts(graph) == {"ATTENTION": 1}


@pytest.mark.parametrize(
    "mask",
    [
        np.triu(np.ones((5, 5), bool)),
        np.tri(5, dtype=bool) & ~np.tri(5, 5, -3, dtype=bool),  # a sliding window
        np.arange(25).reshape(5, 5) != 10,  # all but one
        np.tri(5, dtype=bool)[:, ::-1],
        np.array([True, True, True, True, False]),  # padding
        np.stack([np.tri(5, dtype=bool), np.ones((5, 5), bool)])[:, None],  # batches differ
        np.tri(5, dtype=np.float32),  # adds 1
        as_float(np.tri(5, dtype=bool), -100),
        as_float(np.tri(5, dtype=bool), np.inf),
        as_float(np.tri(5, dtype=bool), np.nan),
        np.where(np.tri(5, 5, -1), -0.5, as_float(np.tri(5, dtype=bool), -np.inf)).astype("f4"),
    ],
)
def test_other_constant_masks_stay(mask):
    b = Builder()
    check_keeps(absorb_causal_mask, b.done(attention(b, b.constant(mask))))


def test_mask_from_outside_stays():
    b = Builder()
    check_keeps(absorb_causal_mask, b.done(attention(b, b.input("mask", 5, 5, dtype="bool"))))


def test_no_mask_stays():
    b = Builder()
    q = b.input("q", 2, 2, 5, 4)
    check_keeps(absorb_causal_mask, b.done(b.op("ATTENTION", q, q, q, scale=0.5)))


class TestPartly:
    """A constant causal mask beside another mask: the other one stays."""

    @pytest.mark.parametrize("op", ["LOGICAL_AND", "BITWISE_AND"])
    @pytest.mark.parametrize("first", [True, False])
    def test_and(self, op, first):
        b = Builder()
        causal = b.constant(np.tri(5, dtype=bool)[None, None])
        padding = b.input("padding", 2, 1, 1, 5, dtype="bool")
        mask = b.op(op, causal, padding) if first else b.op(op, padding, causal)
        graph = check_fires(absorb_causal_mask, b.done(attention(b, mask)))
        node = only(graph, "ATTENTION")
        assert node.inputs == ["q", "k", "v", "padding"]
        assert node.attrs["causal"]
        assert op_counts(graph) == {"ATTENTION": 1}

    def test_sum(self):
        b = Builder()
        causal = b.constant(as_float(np.tri(5, dtype=bool), -np.inf))
        bias = b.input("bias", 2, 1, 5, 5)
        graph = check_fires(absorb_causal_mask, b.done(attention(b, b.op("ADD", bias, causal))))
        assert only(graph, "ATTENTION").inputs == ["q", "k", "v", "bias"]

    def test_where(self):
        b = Builder()
        causal, bias = b.constant(np.tri(5, dtype=bool)), b.input("bias", 2, 1, 5, 5)
        mask = b.op("WHERE", causal, bias, -math.inf)
        graph = check_fires(absorb_causal_mask, b.done(attention(b, mask)))
        assert only(graph, "ATTENTION").inputs == ["q", "k", "v", "bias"]

    def test_mask_that_allows_all_is_dropped(self):
        b = Builder()
        everything = b.constant(np.ones((5, 5), bool))
        padding = b.input("padding", 2, 1, 1, 5, dtype="bool")
        graph = b.done(attention(b, b.op("LOGICAL_AND", everything, padding)))
        check_fires(absorb_causal_mask, graph)
        assert "causal" not in only(graph, "ATTENTION").attrs

    def test_low_number_beside_another_mask_stays(self):
        # two low numbers add up to another value than one
        b = Builder()
        causal = b.constant(as_float(np.tri(5, dtype=bool), MIN))
        bias = b.input("bias", 2, 1, 5, 5)
        check_keeps(absorb_causal_mask, b.done(attention(b, b.op("ADD", bias, causal))))

    def test_or_stays(self):
        b = Builder()
        causal = b.constant(np.tri(5, dtype=bool))
        other = b.input("other", 5, 5, dtype="bool")
        for op in ("LOGICAL_OR", "ADD"):  # of bools both are or
            b2 = Builder()
            causal = b2.constant(np.tri(5, dtype=bool))
            other = b2.input("other", 5, 5, dtype="bool")
            check_keeps(absorb_causal_mask, b2.done(attention(b2, b2.op(op, causal, other))))
