"""What a pass does for each node is the same in a deep graph as in a shallow one."""

import sys
from collections import Counter

import numpy as np
import pytest

from graph_checks import Builder
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.planning import make_plan

#: Blocks of the graphs. What walked every path to the input would take 2**64 steps in the second.
DEPTHS = (8, 32)


def norm(b, x, size):
    centred = b.op("SUB", x, b.op("MEAN", x, axes=(2,), keepdim=True))
    variance = b.op("MEAN", b.op("SQUARE", centred), axes=(2,), keepdim=True)
    scaled = b.op("MUL", centred, b.op("RSQRT", b.op("ADD", variance, 1e-5)))
    return b.op("ADD", b.op("MUL", scaled, b.weight(size)), b.weight(size))


def linear(b, x, inputs, outputs):
    return b.op("ADD", b.op("MATMUL", x, b.weight(inputs, outputs)), b.weight(outputs))


def heads(b, x):
    return b.transpose(b.reshape(x, 2, 5, 2, 4), 1, 2)


def relative_attention(b, x):
    """A transformer's block whose mask is made of the queries, as SAM's."""
    y = norm(b, x, 8)
    q, k, v = (heads(b, linear(b, y, 8, 8)) for _ in range(3))
    bias = b.op("MATMUL", q, b.weight(4, 5))
    y = b.op("ATTENTION", q, k, v, bias, scale=0.5)
    y = linear(b, b.reshape(b.transpose(y, 1, 2), 2, 5, 8), 8, 8)
    x = b.op("ADD", x, y)
    y = linear(b, b.op("GELU", linear(b, norm(b, x, 8), 8, 16)), 16, 8)
    return b.op("ADD", x, y)


def written_out(b, x):
    """A causal decoder's block, of which everything is written out."""
    y = norm(b, x, 8)
    q, k, v = (heads(b, linear(b, y, 8, 8)) for _ in range(3))
    scores = b.op("MUL", b.op("MATMUL", q, b.transpose(k, 2, 3)), 0.5)
    allowed = b.op("LE", b.op("ARANGE", stop=5), b.reshape(b.op("ARANGE", stop=5), 5, 1))
    scores = b.op("WHERE", allowed, scores, -np.inf)
    weights = b.softmax_by_hand(scores, 3)
    y = b.reshape(b.transpose(b.op("MATMUL", weights, v), 1, 2), 10, 8)
    x = b.op("ADD", x, b.reshape(linear(b, y, 8, 8), 2, 5, 8))
    gate = linear(b, norm(b, x, 8), 8, 16)
    y = b.op("MUL", b.op("MUL", gate, b.op("SIGMOID", gate)), linear(b, x, 8, 16))
    return b.op("ADD", x, linear(b, y, 16, 8))


class Counting(Listener):
    """Counts the calls of Python functions of each pass."""

    def __init__(self):
        self.counts = Counter()
        self.name = ""

    def enter(self, stage, pass_):
        self.name = f"{stage}: {pass_}"
        sys.setprofile(self)

    def leave(self):
        sys.setprofile(None)

    def __call__(self, frame, event, arg):
        if event == "call":
            self.counts[self.name] += 1


def deep(block, depth):
    b = Builder()
    x = b.input("x", 2, 5, 8)
    for _ in range(depth):
        x = block(b, x)
    return b.done(x)


@pytest.mark.parametrize("block", [relative_attention, written_out])
def test_calls_of_each_pass_grow_with_the_nodes(block):
    counts = []
    for depth in DEPTHS:
        graph = deep(block, depth)
        graph.listener = counting = Counting()
        compile_graph(graph)
        counting.enter("", "plan")
        make_plan(graph)
        counting.leave()
        counts.append(counting.counts)
    few, many = counts
    growth = {name: many[name] / few[name] for name in many if few[name] > 1000}
    steep = {name: round(times, 1) for name, times in growth.items() if times > 1.5 * 4}
    assert growth
    assert not steep
