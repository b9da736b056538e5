"""Models with branches and loops of their own: torch.cond, while_loop, scan, map."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F

from tools.zoo.architecture import Architecture, Inputs

WIDTH = 32


class Expert(nn.Module):
    """One of two networks, chosen by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 1)
        self.small = nn.Linear(WIDTH, WIDTH)
        self.large = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            return self.large(x) + x

        return torch.cond(self.gate(x).mean() > 0, large, lambda x: self.small(x).relu(), (x,))


class GRU(nn.Module):
    """A gated recurrent cell of its own, stepped over time."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.candidate = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            reset, update = torch.sigmoid(self.gates(torch.cat([h, x], -1))).chunk(2, -1)
            candidate = torch.tanh(self.candidate(torch.cat([reset * h, x], -1)))
            h = torch.lerp(h, candidate, update)
            return h, h.clone()

        last, states = scan(step, x.new_zeros(x.shape[0], WIDTH), x, dim=1)
        return last, self.head(states)


class Mamba(nn.Module):
    """Selective state spaces: a linear recurrence whose coefficients the input decides."""

    def __init__(self, states: int = 8, width: int = 2 * WIDTH) -> None:
        super().__init__()
        self.states = states
        self.norm = nn.RMSNorm(WIDTH)
        self.enter = nn.Linear(WIDTH, 2 * width, bias=False)
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.project = nn.Linear(width, 2 * states + 1, bias=False)
        self.time = nn.Linear(1, width)
        self.log_a = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Linear(width, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.enter(self.norm(x)).chunk(2, -1)
        inner = F.silu(self.conv(inner.mT)[..., : x.shape[1]]).mT
        time, b, c = self.project(inner).split([1, self.states, self.states], -1)
        delta = F.softplus(self.time(time))
        a = -torch.exp(self.log_a)

        def step(h: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            x, delta, b, c = now
            decay = torch.exp(delta[..., None] * a)
            h = decay * h + (delta * x)[..., None] * b[:, None, :]
            return h, (h @ c[..., None])[..., 0]

        first = x.new_zeros(x.shape[0], *self.log_a.shape)
        _, y = scan(step, first, (inner, delta, b, c), dim=1)
        return x + self.leave((y + self.skip * inner) * F.silu(gate))


class RWKV(nn.Module):
    """Attention as a recurrence: sums with a decay, kept in range by their largest exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.key, self.value, self.gate, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.decay = nn.Parameter(torch.linspace(-3, 1, WIDTH))
        self.bonus = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        decay = -torch.exp(self.decay)

        def step(
            carry: tuple[Tensor, ...], now: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], Tensor]:
            top, bottom, most = carry
            k, v = now
            high = torch.maximum(most, self.bonus + k)
            old, new = torch.exp(most - high), torch.exp(self.bonus + k - high)
            y = (old * top + new * v) / (old * bottom + new)
            high = torch.maximum(most + decay, k)
            old, new = torch.exp(most + decay - high), torch.exp(k - high)
            return (old * top + new * v, old * bottom + new, high), y

        empty = x.new_zeros(x.shape[0], WIDTH)
        first = (empty, empty.clone(), torch.full_like(empty, -1e30))
        _, y = scan(step, first, (self.key(h), self.value(h)), dim=1)
        return x + self.out(torch.sigmoid(self.gate(h)) * y)


class LinearRecurrence(nn.Module):
    """A recurrence that is computed by halves, as S5 and linear attention do."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.enter = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        def combine(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return a[0] * b[0], a[1] * b[0] + b[1]

        pair = torch.sigmoid(self.decay(x)), self.enter(x)
        return associative_scan(combine, pair, dim=1, combine_mode="generic")[1]


class PerItem(nn.Module):
    """A network that takes one item, mapped over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(WIDTH, 1)
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        def pool(item: Tensor) -> Tensor:
            return self.out(torch.softmax(self.attention(item), 0).mT @ item)[0]

        return map_(pool, x)


class Adaptive(nn.Module):
    """Steps over time, where each input decides whether the state is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.cond(x.mean() > 0, lambda h, x: self.cell(x, h), lambda h, x: h * 0.9, (h, x))
            return h, h.clone()

        return scan(step, x.new_zeros(x.shape[1], WIDTH), x)


class Equilibrium(nn.Module):
    """A layer that is repeated until what it gives stays."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.repeat = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x)

        def moves(step: Tensor, z: Tensor, change: Tensor) -> Tensor:
            return (step < 50) & (change > 1e-3)

        def again(step: Tensor, z: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            new = torch.tanh(0.3 * self.repeat(z) + x)
            return step + 1, new, (new - z).abs().max()

        first = torch.zeros((), dtype=torch.int64), torch.zeros_like(x), torch.ones(())
        steps, z, _ = while_loop(moves, again, first)
        return z, steps


class UNet(nn.Module):
    """Two levels, told how much noise there is."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.time = nn.Linear(channels, channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.leave = nn.Conv2d(2 * channels, 3, 3, padding=1)
        self.register_buffer("rates", torch.exp(-torch.arange(channels // 2) / 2.0))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time * self.rates
        told = self.time(torch.cat([angles.sin(), angles.cos()]))[:, None, None]
        first = F.silu(self.enter(x) + told)
        inner = F.silu(self.norm(self.middle(F.silu(self.down(first)))))
        return self.leave(torch.cat([F.silu(self.up(inner)), first], 1))


class Sampler(nn.Module):
    """Denoising in a loop: DDIM without noise of its own."""

    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.steps, self.unet = steps, UNet()
        kept = torch.cos(torch.linspace(0, 0.98, steps + 1) * math.pi / 2) ** 2
        self.register_buffer("kept", kept.flip(0))

    def forward(self, noise: Tensor) -> Tensor:
        def more(i: Tensor, x: Tensor) -> Tensor:
            return i < self.steps

        def denoise(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            now = self.kept.index_select(0, i.view(1))
            after = self.kept.index_select(0, i.view(1) + 1)
            guess = torch.tanh(self.unet(x, i.to(torch.float32)))
            image = (x - (1 - now).sqrt() * guess) / now.sqrt()
            return i + 1, after.sqrt() * image.clamp(-1, 1) + (1 - after).sqrt() * guess

        return while_loop(more, denoise, (torch.zeros((), dtype=torch.int64), noise))[1]


class Layer(nn.Module):
    """Attention over a cache that is written in place, and a perceptron."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 3, self.heads, 1, -1).unbind(1)
        keys = keys.index_copy(2, at.view(1), k)
        values = values.index_copy(2, at.view(1), v)
        mask = torch.arange(keys.shape[2]) <= at
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None])
        x = x + self.out(mixed.reshape(len(x), WIDTH))
        return x + self.down(F.silu(self.up(self.norm2(x)))), keys, values


class Greedy(nn.Module):
    """A small language model and its greedy decoding, up to an end token, as one program."""

    def __init__(self, vocabulary: int = 64, length: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.length, self.end = length, 0
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, start: Tensor) -> tuple[Tensor, Tensor]:
        rows = start.shape[0]

        def more(at: Tensor, last: Tensor, *rest: Tensor) -> Tensor:
            return (at < self.length - 1) & (last != self.end).any()

        def decode(at: Tensor, last: Tensor, tokens: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
            x = self.embed(last) + self.place(at)
            new = []
            for layer, keys, values in zip(self.layers, caches[::2], caches[1::2], strict=True):
                x, keys, values = layer(x, at, keys, values)
                new += [keys, values]
            after = self.head(self.norm(x)).argmax(-1)
            tokens = tokens.index_copy(1, (at + 1).view(1), after[:, None])
            return at + 1, after, tokens, *new

        tokens = torch.full((rows, self.length), self.end)
        tokens = torch.cat([start[:, None], tokens[:, 1:]], 1)
        shape = rows, 4, self.length, WIDTH // 4
        caches = [torch.zeros(shape) for _ in range(2 * len(self.layers))]
        first = torch.zeros((), dtype=torch.int64), start.clone(), tokens, *caches
        count, _, tokens, *_ = while_loop(more, decode, first)
        return tokens, count


def _floats(name: str, *shape: int) -> Inputs:
    return lambda module: {name: torch.randn(shape)}


_SEQUENCE = _floats("x", 2, 12, WIDTH)

CONTROL_FLOW = {
    "cond: one of two experts": Architecture(Expert, _SEQUENCE),
    "scan: gated recurrent cell": Architecture(GRU, _SEQUENCE),
    "scan: Mamba's selective scan": Architecture(Mamba, _SEQUENCE),
    "scan: RWKV's weighted sums": Architecture(RWKV, _SEQUENCE),
    "scan, cond: steps that may be skipped": Architecture(Adaptive, _floats("x", 12, 2, WIDTH)),
    "associative_scan: linear recurrence": Architecture(LinearRecurrence, _SEQUENCE),
    "map: a network for one item": Architecture(PerItem, _floats("x", 4, 12, WIDTH)),
    "while_loop: until it converges": Architecture(Equilibrium, _SEQUENCE),
    "while_loop: diffusion sampler": Architecture(Sampler, _floats("noise", 1, 3, 16, 16)),
    "while_loop: greedy decoding": Architecture(
        Greedy, lambda module: {"start": torch.randint(1, 64, (2,))}
    ),
}
