"""Random graphs that passes have something to do with, from a seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from graph_checks import Builder, floats

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.graph import Graph


class RandomGraph(Builder):
    """Grows by fragments: each takes tensors made before and adds one, often a pattern's formula.

    Values stay of order one, and comparisons only see inputs, so that rounding decides nothing.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.batch, self.length = (int(self.rng.integers(1, 4)) for _ in range(2))
        self.heads, self.dim = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 6))
        self.width = self.heads * self.dim
        shape = (self.batch, self.length, self.width)
        self.pool = [self.input(f"x{i}", *shape) for i in range(2)]
        self.ids = self.input("ids", self.batch, self.length, dtype="int64")

    def pick(self) -> str:
        """A tensor [batch, length, width], late ones more often."""
        index = int(len(self.pool) * math.sqrt(self.rng.random()))
        return self.pool[index]

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def number(self) -> float:
        return float(self.rng.choice([0.5, 1.0, 0.125, -1.0, 0.75]))

    def matrix(self, rows: int, columns: int) -> str:
        seed = int(self.rng.integers(3))  # equal weights occur
        if self.chance():
            return self.transpose(self.weight(columns, rows, seed=seed), 0, 1)
        return self.weight(rows, columns, seed=seed)

    # -- fragments --------------------------------------------------------------------------------

    def unary(self) -> str:
        op = self.rng.choice(["TANH", "SIGMOID", "RELU", "SIN", "GELU", "NEG", "ABS", "ERF"])
        return self.op(str(op), self.pick())

    def binary(self) -> str:
        op = str(self.rng.choice(["ADD", "SUB", "MUL", "MAXIMUM"]))
        y = self.op(op, self.op("TANH", self.pick()), self.op("TANH", self.pick()))
        return self.op(op, y, self.number()) if self.chance() else self.op(op, self.number(), y)

    def broadcast(self) -> str:
        shapes = [(self.width,), (self.length, 1), (self.batch, 1, self.width), (), (1, 1, 1)]
        c = self.constant(floats(*shapes[self.rng.integers(len(shapes))], seed=3))
        if self.chance(0.3):
            c = self.op("EXPAND", c, shape=(self.batch, self.length, self.width))
        return self.op("ADD", self.op("TANH", c), self.pick())

    def move(self) -> str:
        x = self.pick()
        b, n, w = self.batch, self.length, self.width
        match int(self.rng.integers(6)):
            case 0:
                return self.reshape(self.reshape(x, b * n, w), b, n, w)
            case 1:
                return self.transpose(self.op("TANH", self.transpose(x, 0, 2)), 0, 2)
            case 2:
                moved = self.op("PERMUTE", x, axes=(2, 0, 1))
                return self.op("PERMUTE", moved, axes=(1, 2, 0))
            case 3:
                cut = int(self.rng.integers(w + 1))
                parts = [
                    self.op("SLICE", x, axis=2, start=s, stop=e) for s, e in ((cut, w), (0, cut))
                ]
                rolled = self.op("CAT", *parts, axis=2)
                if cut % 2 == 0:
                    return rolled
                # and back, as parts of the rolled one
                parts = [
                    self.op("SLICE", rolled, axis=2, start=s, stop=e)
                    for s, e in ((w - cut, w), (0, w - cut))
                ]
                return self.op("CAT", *parts, axis=2)
            case 4:
                wide = self.op("CAST", x, dtype="float64")
                return self.op("CAST", wide, dtype="float32")
            case _:
                rows = self.reshape(
                    self.op("EXP", self.op("TANH", self.reshape(x, b * n, w))), b, n, w
                )
                return self.op("MUL", rows, self.number())

    def rotary(self, x: str) -> str:
        """Exchange halves along the second axis, which has two elements."""
        cosine, sine = (self.constant(floats(2, 1, seed=i)) for i in (8, 9))
        first, second = (self.op("SLICE", x, axis=1, start=i, stop=i + 1) for i in (0, 1))
        turned = self.op("CAT", self.op("NEG", second), first, axis=1)
        return self.op("ADD", self.op("MUL", x, cosine), self.op("MUL", turned, sine))

    def masked(self) -> str:
        keep = self.op("GT", self.ids, int(self.rng.integers(4)))
        keep = self.reshape(keep, self.batch, self.length, 1)
        if self.chance():
            as_float = self.op("CAST", keep, dtype="float32")
            return self.op("MUL", self.pick(), self.op("SUB", 1.0, as_float))
        return self.op("WHERE", keep, self.pick(), self.number())

    def linear(self) -> str:
        x = self.pick()
        flat = self.chance(0.3)
        if flat:
            x = self.reshape(x, self.batch * self.length, self.width)
        if self.chance(0.3):
            x = self.op("MUL", x, self.number())
        y = self.op("MATMUL", x, self.matrix(self.width, self.width))
        if self.chance(0.3):
            y = self.op("DIV", y, 2.0)
        if self.chance():
            y = self.op("ADD", y, self.constant(floats(self.width, seed=4)))
        if self.chance():
            y = self.op("TANH", y)
        if flat:
            y = self.reshape(y, self.batch, self.length, self.width)
        return self.op("ADD", y, self.pick()) if self.chance() else y

    def gelu(self) -> str:
        x = self.op("MUL", self.pick(), self.number()) if self.chance() else self.pick()
        if self.chance():
            erf = self.op("ERF", self.op("DIV", x, math.sqrt(2)))
            return self.op("MUL", self.op("MUL", x, 0.5), self.op("ADD", erf, 1.0))
        cube = self.op("POW", x, 3.0) if self.chance() else self.op("MUL", x, self.op("MUL", x, x))
        inner = self.op("ADD", x, self.op("MUL", cube, 0.044715))
        tanh = self.op("TANH", self.op("MUL", inner, math.sqrt(2 / math.pi)))
        return self.op("MUL", self.op("MUL", 0.5, x), self.op("ADD", 1.0, tanh))

    def silu(self) -> str:
        x = self.pick()
        return self.op("MUL", x, self.op("SIGMOID", x if self.chance(0.8) else self.pick()))

    def norm(self) -> str:
        x = self.pick()
        axes = (2,) if self.chance(0.8) else (1,)
        if self.chance():
            x = self.op("SUB", x, self.op("MEAN", x, axes=axes, keepdim=True))
        mean = self.op("MEAN", self.op("POW", x, 2.0), axes=axes, keepdim=True)
        root = self.op("SQRT", self.op("ADD", mean, 0.1))
        y = self.op("DIV", x, root)
        if self.chance():
            y = self.op("MUL", y, self.constant(floats(self.width, seed=5)))
        return self.op("ADD", y, self.constant(floats(self.width, seed=6))) if self.chance() else y

    def softmax(self) -> str:
        return self.softmax_by_hand(self.pick(), int(self.rng.integers(3)))

    def attention(self) -> str:
        b, n, h, d = self.batch, self.length, self.heads, self.dim
        x = self.pick()
        same = self.chance(0.7)
        q, k, v = (
            self.op("MATMUL", x if same else self.pick(), self.matrix(self.width, self.width))
            for _ in range(3)
        )
        q, k, v = (self.transpose(self.reshape(t, b, n, h, d), 1, 2) for t in (q, k, v))
        bmm = self.chance(0.3)
        if bmm:
            q, k, v = (self.reshape(t, b * h, n, d) for t in (q, k, v))
        scores = self.op("MATMUL", q, self.transpose(k, *((1, 2) if bmm else (2, 3))))
        scores = self.op("MUL", scores, d**-0.5)
        if bmm and self.chance():
            scores = self.reshape(scores, b, h, n, n)
        rank = len(self.graph.tensors[scores].shape)
        match int(self.rng.integers(4)):
            case 0:
                mask = self.constant(np.tri(n, dtype=bool))
                scores = self.op("WHERE", mask, scores, -math.inf)
            case 1:
                mask = np.where(np.tri(n), 0, np.finfo(np.float32).min).astype(np.float32)
                scores = self.op("ADD", scores, self.constant(mask[None]))
            case 2 if rank == 4:
                keep = self.reshape(self.op("LT", self.ids, 3), b, 1, 1, n)
                scores = self.op("WHERE", self.op("LOGICAL_NOT", keep), -1e9, scores)
            case _:
                pass
        if self.chance():
            weights = self.softmax_by_hand(scores, rank - 1)
        else:
            weights = self.op("SOFTMAX", scores, axis=rank - 1)
        if bmm and rank == 4:
            weights = self.reshape(weights, b * h, n, n)
        y = self.op("MATMUL", weights, v)
        if bmm:
            y = self.reshape(y, b, h, n, d)
        return self.reshape(self.transpose(y, 1, 2), b, n, h * d)

    def grouped_attention(self) -> str:
        """One key and value head, repeated for all query heads."""
        b, n, h, d = self.batch, self.length, self.heads, self.dim
        q = self.transpose(self.reshape(self.pick(), b, n, h, d), 1, 2)
        repeated = []
        for _ in range(2):
            head = self.op("MATMUL", self.pick(), self.matrix(self.width, d))
            head = self.transpose(self.reshape(head, b, n, 1, d), 1, 2)
            head = self.op("EXPAND", self.reshape(head, b, 1, 1, n, d), shape=(b, 1, h, n, d))
            repeated.append(self.reshape(head, b, h, n, d))
        if self.chance():  # a cache of 16 bits
            narrow = [self.op("CAST", x, dtype="bfloat16") for x in repeated]
            repeated = [self.op("CAST", x, dtype="float32") for x in narrow]
        y = self.op("ATTENTION", q, *repeated, scale=d**-0.5, causal=self.chance())
        return self.reshape(self.transpose(y, 1, 2), b, n, h * d)

    def talking_heads(self) -> str:
        """Scores that a small matrix mixes over the heads."""
        b, n, h, d = self.batch, self.length, self.heads, self.dim
        q = self.transpose(self.reshape(self.pick(), b, n, h, d), 1, 2)
        scores = self.op("MATMUL", q, self.transpose(q, 2, 3))
        mixed = self.op("MATMUL", self.op("PERMUTE", scores, axes=(0, 2, 3, 1)), self.matrix(h, h))
        mixed = self.op("ADD", mixed, self.constant(floats(h, seed=8)))
        y = self.op("MATMUL", self.op("PERMUTE", mixed, axes=(0, 3, 1, 2)), q)
        return self.reshape(self.transpose(y, 1, 2), b, n, h * d)

    def reduced(self) -> str:
        op = str(self.rng.choice(["MEAN", "AMAX"]))
        x = self.pick()
        return self.op(
            "SUB", self.pick(), self.op(op, x, axes=(int(self.rng.integers(3)),), keepdim=True)
        )

    def folded(self) -> str:
        positions = self.constant(np.arange(self.length))
        angle = self.op("MUL", self.op("CAST", positions, dtype="float32"), 0.3)
        return self.op("ADD", self.pick(), self.reshape(self.op("COS", angle), self.length, 1))

    def repeated(self) -> str:
        """The same again, node by node."""
        x = self.pick()
        again = [self.op("MUL", self.op("TANH", x), 0.5) for _ in range(2)]
        return self.op("SUB", again[0], self.op("SIN", again[1]))

    def convolution(self) -> str:
        """As lowering leaves it: permuted before and after, with a batch norm behind."""
        x = self.transpose(self.op("ABS", self.pick()), 1, 2)
        if self.chance():
            zeros = self.op("EXPAND", self.constant(0.0), shape=(self.batch, self.width, 2))
            x, padding = self.op("CAT", zeros, x, axis=2), (0, 0)
        else:
            padding = (1, 1)
        weight = self.weight(3, self.width, self.width)
        attrs = {"kernel": (3,), "stride": (1,), "dilation": (1,), "padding": padding}
        y = self.transpose(self.op("CONV", self.transpose(x, 1, 2), weight, **attrs), 1, 2)
        for op, seed in (("SUB", 7), ("MUL", 8), ("ADD", 9)):
            y = self.op(op, y, self.constant(floats(self.width, 1, seed=seed)))
        return self.transpose(self.op("TANH", y), 1, 2)

    def selected(self) -> str:
        """Rows reversed and reversed again, wide enough to be followed."""
        x = self.pick()
        shape = self.graph.tensors[x].shape
        count = math.prod(shape)
        rows = self.op("EXPAND", self.reshape(x, count, 1), shape=(count, 16))
        back = self.constant(np.arange(count)[::-1].copy())
        rows = self.op("ABS", rows) if self.chance() else rows
        for _ in range(2):
            rows = self.op("INDEX_SELECT", rows, back, axis=0)
        return self.reshape(self.op("MEAN", rows, axes=(1,)), *shape)

    def image(self) -> str:
        """Two convolutions of many pixels, their weights of few; squeeze, excite and project."""
        x = self.pool[-1]
        shape = self.graph.tensors[x].shape
        count = math.prod(shape)
        image = self.op("EXPAND", self.reshape(x, 1, count, 1, 1), shape=(1, count, 64, 16))
        attrs = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1, 1, 1)}
        image = self.op("TANH", image)
        y = self.op("CONV", image, self.weight(3, 3, 16, 16), **attrs)
        y = self.op("ADD", y, self.op("MATMUL", image, self.weight(16, 16)))
        factors = self.op("SIGMOID", self.reshape(self.op("MEAN", y, axes=(1, 2)), 1, 1, 1, 16))
        y = self.op("MATMUL", self.op("MUL", y, factors), self.weight(16, 8))
        return self.reshape(self.op("MEAN", y, axes=(2, 3)), *shape)

    def quantized(self) -> str:
        """A weight of integers, a scale for each 32 of a column."""
        x = self.pool[-1]
        shape = self.graph.tensors[x].shape
        count = math.prod(shape)
        integers = self.constant(np.random.default_rng(9).integers(-128, 128, (512, 64), np.int8))
        levels = self.reshape(self.op("CAST", integers, dtype="float32"), 512, 2, 32)
        weight = self.op("MUL", levels, self.constant(floats(512, 2, 1, seed=9)))
        weight = self.transpose(self.reshape(weight, 512, 64), 0, 1)
        rows = self.op("EXPAND", self.reshape(x, count, 1), shape=(count, 64))
        return self.reshape(self.op("MEAN", self.op("MATMUL", rows, weight), axes=(1,)), *shape)

    def quantized_product(self) -> str:
        """A product of padded, quantized activations with a quantized weight, quantized again."""
        x = self.pool[-1]
        shape = self.graph.tensors[x].shape
        count = math.prod(shape)
        rows = self.op("EXPAND", self.reshape(x, count, 1), shape=(count, 20))
        zeros = self.op("EXPAND", self.constant(0.0), shape=(count, 4))
        rows = self.op("CAT", zeros, self.op("TANH", rows), axis=1)
        rows = self.quantize(rows, 1 / 127)
        levels = self.constant(np.random.default_rng(3).integers(-128, 128, (24, 8), np.int8))
        weight = self.op("DEQUANTIZE", levels, self.constant(np.abs(floats(8, seed=3)) + 0.01))
        y = self.quantize(self.op("MATMUL", rows, weight), 64.0)
        return self.reshape(self.op("MEAN", y, axes=(1,)), *shape)

    def pooled_bytes(self) -> str:
        """The largest of quantized images that are joined, and quantized again."""
        x = self.pool[-1]
        shape = self.graph.tensors[x].shape
        count = math.prod(shape)
        image = self.op("EXPAND", self.reshape(x, 1, count, 1, 1), shape=(1, count, 3, 4))
        parts = [self.quantize(self.op(op, image), 1 / 99, "uint8") for op in ("SIN", "COS")]
        joined = self.op("CAT", *parts, axis=int(self.rng.choice([2, 3])))
        attrs = {"kernel": (1, 2), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 1, 0)}
        y = self.op("MAX_POOL", joined, **attrs)
        y = self.quantize(y, 1 / 99, "uint8") if self.chance() else self.op("TANH", y)
        return self.reshape(self.op("MEAN", y, axes=(2, 3)), *shape)

    def quantize(self, x: str, scale: float, dtype: str = "int8") -> str:
        """Quantize to bytes, and back."""
        factor, limits = self.constant(np.float32(scale)), np.iinfo(dtype)
        bounds = {"low": int(limits.min), "high": int(limits.max)}
        levels = self.op("QUANTIZE", x, factor, dtype=dtype, **bounds)
        return self.op("DEQUANTIZE", levels, factor)

    def grow(self, fragments: int) -> Graph:
        kinds: list[Callable[[], str]] = [
            self.unary, self.binary, self.broadcast, self.move, self.masked, self.linear,
            self.linear, self.gelu, self.silu, self.norm, self.softmax, self.attention,
            self.attention, self.grouped_attention, self.reduced, self.folded, self.repeated,
            self.convolution, self.selected,
        ]  # fmt: skip
        for _ in range(fragments):
            made = kinds[self.rng.integers(len(kinds))]()
            self.pool.append(made)
        if self.length == 3:
            self.pool.append(self.image())
        if self.length == 2:
            self.pool.append(self.talking_heads())
            self.pool.append(self.quantized())
            self.pool.append(self.quantized_product())
            self.pool.append(self.pooled_bytes())
        count = int(self.rng.integers(1, 4))
        outputs = [self.pool[-1], *(self.pick() for _ in range(count - 1))]
        if self.chance(0.2):
            outputs.append(self.op("EXP", self.constant(floats(3, seed=7))))
        if self.length == 2:
            outputs.append(self.rotary(self.pool[-2]))
        return self.done(*outputs)


def random_graph(seed: int, fragments: int = 8) -> Graph:
    """A valid graph with inputs, constants, shared values and one to four outputs."""
    return RandomGraph(seed).grow(fragments)
