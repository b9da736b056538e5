"""A layer of a decoder and its static cache, for one token: as a torch module and as a program."""

import numpy as np
import torch
from torch.nn import functional as F

import taper_openinfer

WIDTH, HEADS, CACHE, HIDDEN = 256, 8, 512, 688
HEAD = WIDTH // HEADS
HALF = HEAD // 2
WEIGHTS = {
    "n1": (WIDTH,),
    "wq": (WIDTH, WIDTH),
    "wk": (WIDTH, WIDTH),
    "wv": (WIDTH, WIDTH),
    "wo": (WIDTH, WIDTH),
    "n2": (WIDTH,),
    "gate": (WIDTH, HIDDEN),
    "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
}


class DecoderLayer(torch.nn.Module):
    """x [1, WIDTH] at a position, attending to all of the cache, to its successor."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in WEIGHTS.items():
            weight = torch.randn(shape, generator=generator) / 16
            setattr(self, name, torch.nn.Parameter(weight))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, CACHE, HEADS, HEAD))

    def forward(self, x, position, cos, sin):
        h = F.rms_norm(x, (WIDTH,), self.n1, 1e-5)
        q, k = (
            self.rotated((h @ weight).view(HEADS, HEAD), cos, sin) for weight in (self.wq, self.wk)
        )
        self.keys.index_copy_(1, position, k.view(1, 1, HEADS, HEAD))
        self.values.index_copy_(1, position, (h @ self.wv).view(1, 1, HEADS, HEAD))
        attended = F.scaled_dot_product_attention(
            q.view(1, HEADS, 1, HEAD), self.keys.transpose(1, 2), self.values.transpose(1, 2)
        )
        x = x + attended.reshape(1, WIDTH) @ self.wo
        h = F.rms_norm(x, (WIDTH,), self.n2, 1e-5)
        return x + (F.silu(h @ self.gate) * (h @ self.up)) @ self.down

    @staticmethod
    def rotated(x, cos, sin):
        half = torch.cat([-x[:, HALF:], x[:, :HALF]], -1)
        return x * cos + half * sin


_ROTATED = """
  op taper.SLICE({0}, axis=1, start=0, stop=HALF) >> low;
  op taper.SLICE({0}, axis=1, start=HALF, stop=HEAD) >> high;
  op neg(high) >> high;
  op taper.CAT(high, low, axis=1) >> turned;
  op mul(turned, sin) >> turned;
  op mul({0}, cos) >> {0};
  op add({0}, turned) >> {0};
"""

#: To the next row of the cache.
_MOVE = "  cache.increment position;\n"

PROGRAM = f"""
dynamic {{ x: f32[1, WIDTH]; cos: f32[HEAD]; sin: f32[HEAD]; }}
volatile {{ y: f32[1, WIDTH]; }}
constant {{
  n1: f32[WIDTH]; wq: f32[WIDTH, WIDTH]; wk: f32[WIDTH, WIDTH]; wv: f32[WIDTH, WIDTH];
  wo: f32[WIDTH, WIDTH]; n2: f32[WIDTH]; gate: f32[WIDTH, HIDDEN]; up: f32[WIDTH, HIDDEN];
  down: f32[HIDDEN, WIDTH];
}}
persistent {{
  position: i64 @init(0);
  K(t): f32[HEADS, HEAD] @table @fixed(t={CACHE});
  V(t): f32[HEADS, HEAD] @table @fixed(t={CACHE});
}}
block entry {{
  assign h: f32[1, WIDTH];
  assign row: f32[1, WIDTH];
  assign q: f32[HEADS, HEAD];
  assign k: f32[HEADS, HEAD];
  assign v: f32[HEADS, HEAD];
  assign low: f32[HEADS, HALF];
  assign high: f32[HEADS, HALF];
  assign turned: f32[HEADS, HEAD];
  op taper.RMS_NORM(x, n1, dims=1, eps=0.00001) >> h;
  op matmul(h, wq) >> row;
  op taper.RESHAPE(row, shape=[{HEADS}, {HEAD}]) >> q;
  op matmul(h, wk) >> row;
  op taper.RESHAPE(row, shape=[{HEADS}, {HEAD}]) >> k;
  op matmul(h, wv) >> row;
  op taper.RESHAPE(row, shape=[{HEADS}, {HEAD}]) >> v;
{_ROTATED.format("q")}{_ROTATED.format("k")}
  cache.write k >> K[position];
  cache.write v >> V[position];
{_MOVE}  assign keys: f32[CACHE, HEADS, HEAD];
  assign values: f32[CACHE, HEADS, HEAD];
  cache.read K[0..{CACHE}] >> keys;
  cache.read V[0..{CACHE}] >> values;
  assign query: f32[1, HEADS, 1, HEAD];
  assign whole: f32[1, CACHE, HEADS, HEAD];
  assign by_head: f32[1, HEADS, CACHE, HEAD];
  assign values_by_head: f32[1, HEADS, CACHE, HEAD];
  assign g: f32[1, HIDDEN];
  assign u: f32[1, HIDDEN];
  op taper.RESHAPE(q, shape=[1, {HEADS}, 1, {HEAD}]) >> query;
  op taper.RESHAPE(keys, shape=[1, {CACHE}, {HEADS}, {HEAD}]) >> whole;
  op taper.PERMUTE(whole, axes=[0, 2, 1, 3]) >> by_head;
  op taper.RESHAPE(values, shape=[1, {CACHE}, {HEADS}, {HEAD}]) >> whole;
  op taper.PERMUTE(whole, axes=[0, 2, 1, 3]) >> values_by_head;
  op taper.ATTENTION(query, by_head, values_by_head, scale={HEAD**-0.5}) >> query;
  op taper.RESHAPE(query, shape=[1, {WIDTH}]) >> row;
  op matmul(row, wo) >> row;
  op add(x, row) >> y;
  op taper.RMS_NORM(y, n2, dims=1, eps=0.00001) >> h;
  op matmul(h, gate) >> g;
  op matmul(h, up) >> u;
  op taper.SILU(g) >> g;
  op mul(g, u) >> g;
  op matmul(g, down) >> row;
  op add(y, row) >> y;
}}
"""

_SIZES = {
    "WIDTH": WIDTH,
    "HEADS": HEADS,
    "HEAD": HEAD,
    "HALF": HALF,
    "HIDDEN": HIDDEN,
    "CACHE": CACHE,
}


def simulated(layer, device, moves=True):
    """The layer's program with the module's weights, its caches empty.

    With ``moves=False`` every step writes the first row of the caches, so that any number of them
    can run.
    """
    program = PROGRAM if moves else PROGRAM.replace(_MOVE, "")
    weights = {name: getattr(layer, name).detach().numpy() for name in WEIGHTS}
    sizes = {name: taper_openinfer.SizeVar(size) for name, size in _SIZES.items()}
    model = taper_openinfer.Model.of({**sizes, **weights})
    return taper_openinfer.Simulator(model, taper_openinfer.parse(program), device)


def step(executor, x, cos, sin):
    """Run one token through the program."""
    for name, value in (("x", x), ("cos", cos), ("sin", sin)):
        executor.insert_dynamic(name, value)
    executor.step()
    return executor.fetch("y")


def arguments(position):
    """What the module takes at a position."""
    generator = torch.Generator().manual_seed(position)
    angle = torch.arange(HEAD) * 0.1 * position
    x = torch.randn(1, WIDTH, generator=generator)
    return x, torch.tensor([position]), torch.cos(angle), torch.sin(angle)


def feed_of(position):
    """The arrays that a step takes at a position."""
    x, _, cos, sin = arguments(position)
    return [np.asarray(each) for each in (x, cos, sin)]
