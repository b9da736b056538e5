"""Modules whose buffers have a row for each item of a batch: a state for each row."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import taper_frontend
import taper_runtime
from marks import NUMPY, STATE
from taper_frontend import ExportError
from taper_runtime.plan.rows import find_batch

torch.set_num_threads(1)

pytestmark = [STATE, NUMPY]

WIDTH, HEADS, LENGTH, VOCABULARY = 16, 2, 12, 20


class Layer(torch.nn.Module):
    """Self-attention over a cache, whose rows are at positions of their own."""

    def __init__(self, rows, layout):
        super().__init__()
        self.layout = layout
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 32), torch.nn.Linear(32, WIDTH)
        head = WIDTH // HEADS
        shape = (rows, LENGTH, HEADS, head) if layout == "time" else (rows, HEADS, LENGTH, head)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def write(self, cache, position, new):
        """Write [rows, HEADS, head] at the position of each row."""
        each = torch.arange(new.shape[0])
        if self.layout == "time":
            cache[each, position] = new
        elif self.layout == "heads":
            cache[each, :, position] = new
        elif self.layout == "scatter":
            index = position[:, None, None, None].expand(-1, HEADS, 1, new.shape[-1])
            cache.scatter_(2, index, new[:, :, None])
        else:
            here = (torch.arange(LENGTH) == position[:, None])[:, None, :, None]
            cache.copy_(torch.where(here, new[:, :, None], cache))

    def forward(self, x, position):
        h = self.norm(x)
        q, k, v = self.qkv(h).view(x.shape[0], 3, HEADS, -1).unbind(1)
        self.write(self.keys, position, k)
        self.write(self.values, position, v)
        keys, values = self.keys, self.values
        if self.layout == "time":
            keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        seen = (torch.arange(LENGTH) <= position[:, None])[:, None, None]
        h = F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen)
        x = x + self.out(h.reshape(x.shape[0], WIDTH))
        return x + self.down(F.gelu(self.up(x)))


class Decoder(torch.nn.Module):
    """Token ids [rows] to logits, at positions that are state too."""

    def __init__(self, rows, layout="heads"):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(rows, layout) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("position", torch.zeros(rows, dtype=torch.int64))

    def forward(self, ids):
        x = self.embed(ids) + self.places(self.position)
        for layer in self.layers:
            x = layer(x, self.position)
        self.position += 1
        return self.head(x)


class Recurrent(torch.nn.Module):
    """A hidden state that each call replaces, by assignment or in place."""

    def __init__(self, rows, assigned=False):
        super().__init__()
        self.assigned = assigned
        self.cell = torch.nn.GRUCell(6, 8)
        # not zeros: each row begins with these
        self.register_buffer("hidden", torch.linspace(-1, 1, 8).repeat(rows, 1))

    def forward(self, x):
        hidden = self.cell(x, self.hidden)
        if self.assigned:
            self.hidden = hidden
        else:
            self.hidden.copy_(hidden)
        return hidden.sum(-1)


class Listener(torch.nn.Module):
    """An LSTM's state in a plain attribute, its batch the second axis."""

    def __init__(self, rows):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, num_layers=2)
        self.hidden = (torch.zeros(2, rows, 5), torch.full((2, rows, 5), 0.25))

    def forward(self, chunk):
        result, self.hidden = self.lstm(chunk, self.hidden)
        return result


class Filter(torch.nn.Module):
    """A causal convolution over chunks of 3, and what it keeps of the last ones."""

    def __init__(self, rows):
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 6, 5)
        self.register_buffer("tail", torch.zeros(rows, 4, 4))
        self.register_buffer("peak", torch.full((rows, 4), -torch.inf))

    def forward(self, x):
        whole = torch.cat([self.tail, x], -1)
        self.tail.copy_(whole[:, :, -4:])
        self.peak.copy_(torch.maximum(self.peak, x.amax(-1)))
        return self.conv(whole), self.peak + 0


class Ring(torch.nn.Module):
    """The last values of each row in a ring, whose place is the row's own."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("ring", torch.zeros(rows, 5, 3))
        self.register_buffer("count", torch.zeros(rows, dtype=torch.int32))

    def forward(self, x):
        place = torch.remainder(self.count, 5).long()
        self.ring[torch.arange(x.shape[0]), place] = x
        self.count.add_(1)
        seen = torch.clamp(self.count, max=5)
        return self.ring.sum(1) / seen[:, None], seen


class Cache:
    """What a module hands to its parts: the tensors are the module's buffers."""

    def __init__(self, rows):
        self.layers = [{"sum": torch.zeros(rows, 3)}, {"sum": torch.ones(rows, 3)}]


class Holder(torch.nn.Module):
    """Buffers that lie in an object too, as those of a static cache of transformers do."""

    def __init__(self, rows):
        super().__init__()
        self.cache = Cache(rows)
        self.scale = torch.nn.Linear(3, 3)
        for number, layer in enumerate(self.cache.layers):
            self.register_buffer(f"sum_{number}", layer["sum"], persistent=False)

    def forward(self, x):
        for layer in self.cache.layers:
            layer["sum"].add_(self.scale(x))
            x = layer["sum"].tanh()
        return x


class Spectrum(torch.nn.Module):
    """Complex numbers, flags and halves as state."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("turn", torch.full((rows, 3), 1 + 1j))
        self.register_buffer("loud", torch.zeros(rows, dtype=torch.bool))
        self.register_buffer("level", torch.zeros(rows, 3, dtype=torch.float16))

    def forward(self, x):
        self.turn.mul_(torch.polar(torch.ones_like(x), x))
        self.loud.logical_or_((x > 1).any(-1))
        self.level.copy_(0.5 * self.level + x.half())
        return self.turn * x, self.loud.clone(), self.level.float()


class Draws(torch.nn.Module):
    """A state beside random numbers."""

    def __init__(self, rows):
        super().__init__()
        self.register_buffer("total", torch.zeros(rows, 3))

    def forward(self, x):
        self.total += x
        return F.dropout(self.total, 0.5, training=True)


def floats(*shape):
    return lambda rng, rows: rng.standard_normal([rows if n is None else n for n in shape])


def ids(rng, rows):
    return rng.integers(0, VOCABULARY, rows)


#: Module, what draws its input, the axis of the batch there, states with theirs.
ROW = {0: "batch"}
CACHES = {f"layers.{i}.{name}": ROW for i in range(2) for name in ("keys", "values")}
MODELS = {
    "decoder": (Decoder, ids, 0, {**CACHES, "position": ROW}),
    "decoder, time first": (lambda n: Decoder(n, "time"), ids, 0, {**CACHES, "position": ROW}),
    "decoder, scatter": (lambda n: Decoder(n, "scatter"), ids, 0, {**CACHES, "position": ROW}),
    "decoder, where": (lambda n: Decoder(n, "where"), ids, 0, {**CACHES, "position": ROW}),
    "recurrent": (Recurrent, floats(None, 6), 0, {"hidden": ROW}),
    "recurrent, assigned": (lambda n: Recurrent(n, True), floats(None, 6), 0, {"hidden": ROW}),
    "listener": (
        Listener,
        floats(2, None, 4),
        1,
        {"hidden_0": {1: "batch"}, "hidden_1": {1: "batch"}},
    ),
    "filter": (Filter, floats(None, 4, 3), 0, {"tail": ROW, "peak": ROW}),
    "ring": (Ring, floats(None, 3), 0, {"ring": ROW, "count": ROW}),
    "holder": (Holder, floats(None, 3), 0, {"sum_0": ROW, "sum_1": ROW}),
    "spectrum": (Spectrum, floats(None, 3), 0, {"turn": ROW, "loud": ROW, "level": ROW}),
}


def made(kind, rows):
    torch.manual_seed(0)
    return MODELS[kind][0](rows).eval()


def example(kind, rows, seed=0):
    drawn = MODELS[kind][1](np.random.default_rng(seed), rows)
    return torch.from_numpy(drawn if drawn.dtype == np.int64 else drawn.astype(np.float32))


def exported(kind, rows=2, verify="deep"):
    _, _, axis, states = MODELS[kind]
    module = made(kind, rows)
    (argument,) = [name for name in ("ids", "x", "chunk") if name in module.forward.__code__.co_varnames[:2]]
    return taper_frontend.export(
        module,
        (example(kind, rows),),
        dynamic_shapes={argument: {axis: "batch"}, **states},
        verify=verify,
    )


#: Which sequences run together: they join and leave, in any order, so that all are elsewhere.
BATCHES = [(0,), (0, 1), (0, 1), (1, 0, 2), (2,), (3, 1, 2, 0), (3, 1, 2, 0), (2, 0)]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_a_batch_are_sequences_by_themselves(kind, rows):
    """To torch's module of one row within rounding; to single runs too, with bits where told."""
    plan = exported(kind, rows)
    assert [*plan.states] == [*MODELS[kind][3]] or {*plan.states} == {*MODELS[kind][3]}
    axis = MODELS[kind][2]
    apart = find_batch(plan).apart
    session = taper_runtime.InferenceSession(plan)
    together, single = ([session.new_state() for _ in range(4)] for _ in range(2))
    modules = [made(kind, 1) for _ in range(4)]
    (name,) = plan.inputs
    for number, members in enumerate(BATCHES):
        x = {row: example(kind, 1, seed=10 * row + number) for row in members}
        feed = {name: np.concatenate([x[row].numpy() for row in members], axis)}
        got = session.run(None, feed, state=[together[row] for row in members])
        for place, row in enumerate(members):
            alone = session.run(None, {name: x[row].numpy()}, state=single[row])
            with torch.no_grad():
                want = modules[row](x[row])
            want = want if isinstance(want, tuple) else (want,)
            for output, mine, other, torchs in zip(plan.outputs, got, alone, want, strict=True):
                mine = mine.take([place], axis)
                np.testing.assert_allclose(mine, torchs.numpy(), rtol=1e-4, atol=1e-5)
                if output in apart:
                    np.testing.assert_array_equal(mine, other)
                else:
                    np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(together, single, strict=True):
        for state in plan.states:
            np.testing.assert_allclose(one.get(state), other.get(state), rtol=1e-5, atol=1e-6)
