"""Graphs whose peak depends much on the order of their nodes, from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graph_checks import Builder, floats

if TYPE_CHECKING:
    from taper_frontend.compiler.graph import Graph


def branching(seed: int, count: int) -> Graph:
    """A graph of about ``count`` nodes: products between vectors of other widths, and sums."""
    b, rng = Builder(), np.random.default_rng(seed)
    x = b.input("x", 1, 256)
    made: list[tuple[str, int]] = []
    unread: dict[str, int] = {}

    def add(op: str, *operands: str, width: int) -> None:
        for name in operands:
            unread.pop(name, None)
        made.append((b.op(op, *operands), width))
        unread[made[-1][0]] = width

    def product(name: str, width: int, new: int) -> None:
        add("MATMUL", name, b.constant(floats(width, new)), width=new)

    product(x, 256, 256)
    while len(made) + 2 * len(unread) < count:
        name, width = made[-1 - min(int(rng.geometric(0.3)) - 1, len(made) - 1)]
        others = [other for other, its in made[-12:] if its == width and other != name]
        if others and rng.random() < 0.4:
            add("ADD", name, str(rng.choice(others)), width=width)
        else:
            product(name, width, int(rng.choice([64, 256, 1024, 4096])))
    ends = []
    for name, width in [*unread.items()]:
        product(name, width, 64)
        ends.append(made[-1][0])
    while len(ends) > 1:
        add("ADD", ends.pop(0), ends.pop(0), width=64)
        ends.append(made[-1][0])
    return b.done(b.op("MATMUL", ends[0], b.constant(floats(64, 16))))


def skips(seed: int, count: int) -> Graph:
    """Products over a chain with skips: none computes in place, so that its memory is its own."""
    b, rng = Builder(), np.random.default_rng(seed)
    x = b.input("x", 1, 512)
    made = [(b.op("MATMUL", x, b.constant(floats(512, 64))), 64)]
    while len(made) < count - 1:
        name, width = made[-1]
        new = int(rng.choice([16, 64, 256, 1024]))
        y = b.op("MATMUL", name, b.constant(floats(width, new)))
        if rng.random() < 0.4 and len(made) > 2:
            other, its = made[int(rng.integers(len(made) - 1))]
            column = b.reshape(y, new, 1)
            y = b.op("MATMUL", column, b.op("MATMUL", other, b.constant(floats(its, 4))))
            y = b.reshape(y, 1, 4 * new)
            new *= 4
        made.append((y, new))
    name, width = made[-1]
    return b.done(b.op("MATMUL", name, b.constant(floats(width, 16))))


def nested_skips(seed: int, count: int) -> Graph:
    """About ``count`` products down and up again: wide tensors are read late, the first one last.

    None computes in place, so that its memory is its own.
    """
    b, rng = Builder(), np.random.default_rng(seed)
    y = b.input("x", 1, 2)
    wide = []
    for width in map(int, rng.choice([512, 640, 768, 896, 1024], count // 4)):
        wide.append((b.op("MATMUL", y, b.constant(floats(2, width))), width))
        y = b.op("MATMUL", wide[-1][0], b.constant(floats(width, 2)))
    for name, width in reversed(wide):
        y = b.op("MATMUL", y, b.constant(floats(2, 2 * width)))
        y = b.op("MATMUL", name, b.reshape(y, width, 2))
    return b.done(y)
