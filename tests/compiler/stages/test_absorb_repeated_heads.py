"""Key and value heads repeated for grouped queries are read in place."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import absorb_repeated_heads, remove_noops


class Grouped(Builder):
    def __init__(self, heads=6):
        super().__init__()
        self.q = self.input("q", 2, heads, 5, 4)

    def source(self, name, heads=2, dim=4):
        return self.input(name, 2, heads, 7, dim)

    def repeated(self, x, group=3):
        batch, heads, length, dim = self.graph.tensors[x].shape
        x = self.reshape(x, batch, heads, 1, length, dim)
        x = self.op("EXPAND", x, shape=(batch, heads, group, length, dim))
        return self.reshape(x, batch, heads * group, length, dim)

    def attention(self, k, v, *mask):
        return self.done(self.op("ATTENTION", self.q, k, v, *mask, scale=0.5))


@pytest.mark.parametrize("masked", [False, True])
def test_repeated_heads(masked):
    b = Grouped()
    mask = [b.input("mask", 5, 7, dtype="bool")] if masked else []
    k, v = b.repeated(b.source("k")), b.repeated(b.source("v", dim=3))
    graph = check_fires(absorb_repeated_heads, b.attention(k, v, *mask))
    while remove_noops(graph):
        pass
    assert op_counts(graph) == {"ATTENTION": 1}
    assert only(graph, "ATTENTION").inputs == ["q", "k", "v", *mask]


def test_multi_query():
    b = Grouped()
    k, v = (b.repeated(b.source(name, heads=1), group=6) for name in "kv")
    check_fires(absorb_repeated_heads, b.attention(k, v))


def test_one_tensor_for_both():
    b = Grouped()
    kv = b.repeated(b.source("kv"))
    check_fires(absorb_repeated_heads, b.attention(kv, kv))


def test_tiled_heads_stay():
    # heads 0 1 0 1 0 1 instead of 0 0 0 1 1 1
    b = Grouped()
    names = []
    for name in "kv":
        x = b.reshape(b.source(name), 2, 1, 2, 7, 4)
        x = b.op("EXPAND", x, shape=(2, 3, 2, 7, 4))
        names.append(b.reshape(x, 2, 6, 7, 4))
    check_keeps(absorb_repeated_heads, b.attention(*names))


def test_only_one_of_both_repeated_stays():
    b = Grouped()
    check_keeps(absorb_repeated_heads, b.attention(b.repeated(b.source("k")), b.source("v", 6)))


def test_different_groups_stay():
    b = Grouped()
    k, v = b.repeated(b.source("k")), b.repeated(b.source("v", heads=3), group=2)
    check_keeps(absorb_repeated_heads, b.attention(k, v))


def test_expanded_batch_stays():
    b = Grouped()
    names = []
    for name in "kv":
        x = b.op("EXPAND", b.input(name, 1, 6, 7, 4), shape=(2, 6, 7, 4))
        names.append(x)
    check_keeps(absorb_repeated_heads, b.attention(*names))
