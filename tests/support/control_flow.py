"""Small modules with branches and loops, in every form that torch.export 2.13 takes."""

import torch
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

WIDTH = 4


def seeded(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


class WithLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)


class Branches(WithLayers):
    """Two branches, each with weights."""

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x), (x,))


class NestedResults(WithLayers):
    """Branches that give a dict, written in place."""

    def forward(self, x, y):
        def then(x, y):
            z = x.clone()
            z.add_(1)
            return {"sum": z + y, "pair": (self.a(y), x.argmax(-1))}

        def otherwise(x, y):
            return {"sum": x - y, "pair": (self.b(x), y.argmax(-1))}

        return torch.cond(x.sum() > y.sum(), then, otherwise, (x, y))


class BySize(torch.nn.Module):
    """A branch that a size decides."""

    def forward(self, x):
        return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Counting(WithLayers):
    """Several carries, a limit in a buffer, and a condition on data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(5))

    def forward(self, x):
        def more(i, x, total):
            return (i < self.limit) & (total < 100)

        def step(i, x, total):
            x = torch.tanh(self.a(x)) + x
            return i + 1, x, total + x.abs().sum()

        return while_loop(more, step, (torch.tensor(0), x, torch.zeros(())))


class Integers(torch.nn.Module):
    """Integers as carries, which choose a row, and are used after the loop."""

    def forward(self, x):
        def more(i, n, x):
            return (i < x.shape[0]) & (n < 40)

        def step(i, n, x):
            y = x.clone()
            y[i] = y[i] * 2
            return i + 1, n * 2 + 1, y + x[i] * (i // 2)

        i, n, y = while_loop(more, step, (0, 1, x))
        return y * i + n


class NoSteps(torch.nn.Module):
    """A loop whose condition does not hold at first."""

    def forward(self, x):
        return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x.exp()), (0, x))[1]


class LoopInLoop(torch.nn.Module):
    """As many inner steps as the outer counter says."""

    def forward(self, x):
        def outer(i, x):
            inner = while_loop(lambda j, x: j < i, lambda j, x: (j + 1, x + j), (0, x))
            return i + 1, inner[1]

        return while_loop(lambda i, x: i < 4, outer, (0, x))[1]


class BranchInLoop(WithLayers):
    """A branch in each step, and a loop's result decides another branch."""

    def forward(self, x):
        def step(i, x):
            def shrink(x):
                return x * 0.5

            return i + 1, torch.cond(x.sum() > 5, shrink, lambda x: self.a(x) + 1.0, (x,))

        _, x = while_loop(lambda i, x: i < 5, step, (torch.zeros((), dtype=torch.int64), x))
        return torch.cond(x.mean() > 0, lambda x: x + 1, lambda x: self.b(x), (x,))


class GRU(torch.nn.Module):
    """torch's own cell, stepped along an axis."""

    def __init__(self, dim=0, reverse=False):
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(WIDTH, 2 * WIDTH)
        self.dim, self.reverse = dim, reverse

    def forward(self, x, h):
        def step(h, x):
            h = self.cell(x, h)
            return h, h.clone()

        return scan(step, h, x, dim=self.dim, reverse=self.reverse)


class Nested(torch.nn.Module):
    """Carries and slices in dicts, one carry an integer; results that are not the carry."""

    def forward(self, x):
        def step(carry, now):
            new = {"total": carry["total"] + now["x"], "count": carry["count"] + 1}
            return new, (carry["total"] * 2, carry["count"].clone())

        first = {"total": torch.zeros(WIDTH), "count": torch.tensor(0)}
        return scan(step, first, {"x": x})


class BranchInScan(WithLayers):
    def forward(self, x, h):
        def step(h, x):
            h = torch.cond(
                x.sum() > 0, lambda h, x: self.a(h) + x, lambda h, x: self.b(h) - x, (h, x)
            )
            return h, h.clone()

        return scan(step, h, x)


class Halves(torch.nn.Module):
    """Carries in bfloat16, rounded by every step."""

    def forward(self, x):
        first = torch.zeros(WIDTH, dtype=torch.bfloat16)
        total, products = scan(lambda c, t: (c + t, c * t), first, x.bfloat16())
        return total.float(), products.float()


class Items(WithLayers):
    """A network and a tensor that all items share, mapped over a batch."""

    def forward(self, x, y):
        return map_(lambda x, y: self.a(x).relu() + y, x, y)


class Buffer(torch.nn.Module):
    """A buffer that is written before a branch reads it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return torch.cond(self.calls > 2, lambda x: x + self.calls, lambda x: x - self.calls, (x,))


class Shared(WithLayers):
    """One weight inside and outside a loop, and what every step computes alike."""

    def forward(self, x, y):
        def step(i, x):
            return i + 1, torch.tanh(self.a(x) + self.a(y))

        return self.a(while_loop(lambda i, x: i < 3, step, (0, x))[1])


class Noise(torch.nn.Module):
    """Random numbers in a loop, in one branch, and after both."""

    def forward(self, x):
        def step(i, x):
            return i + 1, x + torch.randn_like(x)

        _, x = while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))
        x = torch.cond(x.sum() > 1e9, lambda x: x + torch.rand_like(x), lambda x: x * 2, (x,))
        _, ys = scan(lambda c, t: (c + torch.rand_like(c), c * t), x[0].clone(), x)
        return x + torch.rand_like(x), ys


class Rotating(torch.nn.Module):
    """A complex carry."""

    def forward(self, x):
        z = torch.complex(x, x.flip(0))

        def turn(i, z):
            return i + 1, z * torch.complex(x, -x) + z.conj()

        return while_loop(lambda i, z: i < 3, turn, (0, z))[1].abs()


X = seeded(6, WIDTH)

#: Name -> module and arguments.
MODELS = {
    "branch taken": (Branches(), (X.abs(),)),
    "branch not taken": (Branches(), (-X.abs(),)),
    "nested results": (NestedResults(), (X, -X)),
    "while with a buffer": (Counting(), (X,)),
    "while with integers": (Integers(), (X,)),
    "while of no steps": (NoSteps(), (X,)),
    "while in while": (LoopInLoop(), (X,)),
    "cond in while": (BranchInLoop(), (X,)),
    "scan": (GRU(), (seeded(7, 2, WIDTH), torch.zeros(2, 2 * WIDTH))),
    "scan backwards along another axis": (
        GRU(dim=1, reverse=True),
        (seeded(2, 7, WIDTH), torch.zeros(2, 2 * WIDTH)),
    ),
    "scan with nested carries": (Nested(), (X,)),
    "cond in scan": (BranchInScan(), (seeded(7, 2, WIDTH), torch.zeros(2, WIDTH))),
    "scan in bfloat16": (Halves(), (X,)),
    "map": (Items(), (X, seeded(WIDTH))),
    "complex carry": (Rotating(), (X,)),
    "weights inside and outside": (Shared(), (X, X + 1)),
}
