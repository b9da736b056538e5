"""A pass does the same work for each node in a deep graph as in a shallow one."""

import sys
from collections import Counter

import numpy as np
import pytest

from graph_checks import Builder
from marks import thinned
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.planning import make_plan

#: Blocks of the graphs. What walked every path to the input would take 2**64 steps in the second.
DEPTHS = (8, 32)


def norm(b, x, size):
    last = (len(b.graph.tensors[x].shape) - 1,)
    centred = b.op("SUB", x, b.op("MEAN", x, axes=last, keepdim=True))
    variance = b.op("MEAN", b.op("SQUARE", centred), axes=last, keepdim=True)
    scaled = b.op("MUL", centred, b.op("RSQRT", b.op("ADD", variance, 1e-5)))
    return b.op("ADD", b.op("MUL", scaled, b.weight(size)), b.weight(size))


def linear(b, x, inputs, outputs):
    return b.op("ADD", b.op("MATMUL", x, b.weight(inputs, outputs)), b.weight(outputs))


def heads(b, x):
    return b.transpose(b.reshape(x, 2, 16, 2, 4), 1, 2)


def relative_attention(b, x):
    """A transformer's block whose mask is made of the queries, as SAM's."""
    y = norm(b, x, 8)
    q, k, v = (heads(b, linear(b, y, 8, 8)) for _ in range(3))
    bias = b.op("MATMUL", q, b.weight(4, 16))
    y = b.op("ATTENTION", q, k, v, bias, scale=0.5)
    y = linear(b, b.reshape(b.transpose(y, 1, 2), 2, 16, 8), 8, 8)
    x = b.op("ADD", x, y)
    y = linear(b, b.op("GELU", linear(b, norm(b, x, 8), 8, 16)), 16, 8)
    return b.op("ADD", x, y)


def written_out(b, x):
    """A causal decoder's block, of which everything is written out."""
    y = norm(b, x, 8)
    q, k, v = (heads(b, linear(b, y, 8, 8)) for _ in range(3))
    scores = b.op("MUL", b.op("MATMUL", q, b.transpose(k, 2, 3)), 0.5)
    allowed = b.op("LE", b.op("ARANGE", stop=16), b.reshape(b.op("ARANGE", stop=16), 16, 1))
    scores = b.op("WHERE", allowed, scores, -np.inf)
    weights = b.softmax_by_hand(scores, 3)
    y = b.reshape(b.transpose(b.op("MATMUL", weights, v), 1, 2), 32, 8)
    x = b.op("ADD", x, b.reshape(linear(b, y, 8, 8), 2, 16, 8))
    gate = linear(b, norm(b, x, 8), 8, 16)
    y = b.op("MUL", b.op("MUL", gate, b.op("SIGMOID", gate)), linear(b, x, 8, 16))
    return b.op("ADD", x, linear(b, y, 16, 8))


def windows(b, x):
    """A block that mixes positions within windows of the image, as Swin's."""
    image, parts = b.reshape(x, 2, 4, 4, 8), (2, 2, 2, 2, 2, 8)
    y = b.op("PERMUTE", b.reshape(norm(b, image, 8), *parts), axes=(0, 1, 3, 2, 4, 5))
    y = linear(b, b.op("MATMUL", b.weight(4, 4), b.reshape(y, 8, 4, 8)), 8, 8)
    y = b.op("PERMUTE", b.reshape(y, *parts), axes=(0, 1, 3, 2, 4, 5))
    x = b.op("ADD", x, b.reshape(y, 2, 16, 8))
    y = linear(b, b.op("GELU", linear(b, norm(b, x, 8), 8, 16)), 16, 8)
    return b.op("ADD", x, y)


def keeping(b, x):
    """A decoder's block that keeps its keys and values across runs, and gives what it made."""
    y = norm(b, x, 8)
    q, k, v = (linear(b, y, 8, 8) for _ in range(3))
    for new in (k, v):
        state = b.graph.add_state("kept", np.zeros((2, 16, 8), np.float32))
        b.graph.set_next(state, b.op("ADD", b.op("MUL", state, 0.5), new))
    y = b.op("ATTENTION", q, k, v, scale=0.5)
    x = b.op("ADD", x, linear(b, y, 8, 8))
    b.outputs.append(x)
    return x


def cross_attention(b, x):
    """A decoder's block that reads what an encoder made."""
    q = heads(b, linear(b, norm(b, x, 8), 8, 8))
    k, v = (heads(b, b.op("MATMUL", "memory", b.weight(8, 8, seed=i))) for i in b.seeds())
    y = b.op("ATTENTION", q, k, v, scale=0.5)
    return b.op("ADD", x, linear(b, b.reshape(b.transpose(y, 1, 2), 2, 16, 8), 8, 8))


def product(b, x):
    """Factors without end."""
    for _ in range(4):
        x = b.op("MUL", x, b.memory)
    return x


def shapes(b, x):
    """Shapes and orders that cancel: what is left of them meets at the input."""
    x = b.transpose(b.reshape(x, 2, 4, 4, 8), 1, 2)
    return b.reshape(b.op("TANH", x), 2, 16, 8)


class Counting(Listener):
    """Counts the calls of Python functions of each pass."""

    def __init__(self):
        super().__init__()
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


class Layers(Builder):
    def __init__(self):
        super().__init__()
        self.outputs, self._seed = [], 1
        self.memory = self.input("memory", 2, 16, 8)

    def seeds(self):
        self._seed += 2
        return self._seed, self._seed + 1


def deep(block, depth):
    b = Layers()
    x = b.input("x", 2, 16, 8)
    for _ in range(depth):
        x = block(b, x)
    return b.done(*b.outputs, x) if x not in b.outputs else b.done(*b.outputs)


BLOCKS = [relative_attention, written_out, windows, keeping, cross_attention, product, shapes]


@pytest.mark.parametrize("block", thinned(2, BLOCKS))
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


def test_number_of_rounds_does_not_grow():
    runs = [Counter(r.name for r in compile_graph(deep(shapes, depth))) for depth in DEPTHS]
    assert runs[0] == runs[1]
