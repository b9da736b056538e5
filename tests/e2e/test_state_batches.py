"""Modules whose buffers have a row for each item of a batch: a state for each row."""

import threading

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import taper_frontend
import taper_runtime
from marks import NUMPY, STATE, some
from taper_frontend import ExportError
from taper_frontend.compiler.planning import join_plans
from taper_frontend.verify.trials import VerificationError
from taper_runtime import InputError
from taper_runtime.base.errors import RunTimeoutError
from taper_runtime.plan.rows import find_batch
from taper_runtime.reports.profile import profile_plan

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
        return self.total + torch.randn_like(self.total)


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


def exported(kind, rows=2):
    _, _, axis, states = MODELS[kind]
    return taper_frontend.export(
        made(kind, rows),
        (example(kind, rows),),
        input_names=["input"],
        dynamic_axes={"input": {axis: "batch"}, **states},
    )


#: Which sequences run together: they join and leave, in any order, so that all are elsewhere.
BATCHES = [(0,), (0, 1), (0, 1), (1, 0, 2), (2,), (3, 1, 2, 0), (3, 1, 2, 0), (2, 0)]


@pytest.mark.parametrize(
    ("kind", "rows"),
    some(
        [*((kind, 2) for kind in MODELS), ("decoder", 1), ("listener", 1)],
        [
            *(("decoder, time first", 2), ("decoder, where", 2), ("decoder, scatter", 2)),
            ("decoder", 1),
        ],
    ),
)
def test_rows_of_a_batch_are_sequences_by_themselves(kind, rows):
    """To torch's module of one row within rounding; to single runs too, with bits where told."""
    plan = exported(kind, rows)
    assert {*plan.states} == {*MODELS[kind][3]}
    if kind in ("decoder", "decoder, time first"):
        assert all(map(plan.is_in_place, CACHES)), "no cache is copied"
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


def test_a_file_keeps_what_each_row_begins_with(tmp_path):
    plan = exported("recurrent", 3)
    plan.save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession(tmp_path / "m.taper")
    states = [session.new_state() for _ in range(4)]
    first = made("recurrent", 1).hidden.numpy()
    for state in states:
        np.testing.assert_array_equal(state.get("hidden"), first)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    session.run(None, {"input": x}, state=states)
    assert not np.array_equal(states[0].get("hidden"), first)
    states[0].reset()
    np.testing.assert_array_equal(states[0].get("hidden"), first)
    for executor in ("compiled", "interpreted"):
        profile = profile_plan(plan, {"input": x}, runs=1, threads=1, executor=executor)
        assert profile.plan.first_value("hidden").shape == (4, 8)


def test_random_rows_need_a_seed_of_the_run():
    module = Draws(2).eval()
    plan = taper_frontend.export(
        module, (torch.ones(2, 3),), dynamic_axes={"x": ROW, "total": ROW}, verify="deep"
    )
    session = taper_runtime.InferenceSession(plan)
    states = [session.new_state() for _ in range(3)]
    options = taper_runtime.RunOptions()
    options.seed = 1
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    session.run(None, {"x": x}, options, state=states)
    np.testing.assert_array_equal(states[2].get("total"), x[2:])


class Prompt(torch.nn.Module):
    """Write a prompt of any length to the caches of a decoder."""

    def __init__(self, decoder):
        super().__init__()
        self.embed, self.layers = decoder.embed, decoder.layers
        self.register_buffer("position", decoder.position)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        x = self.embed(ids)
        for layer in self.layers:
            _, k, v = layer.qkv(layer.norm(x)).view(*ids.shape, 3, HEADS, -1).unbind(2)
            layer.keys.index_copy_(2, places, k.transpose(1, 2))
            layer.values.index_copy_(2, places, v.transpose(1, 2))
        self.position.copy_((places[-1:] + 1).expand(ids.shape[0]))
        return x.sum((1, 2))


def test_entries_of_two_modules_share_rows():
    """A prompt for one row joins a batch of others that are in the middle."""
    decoder = made("decoder", 2)
    states = {**CACHES, "position": ROW}
    step = taper_frontend.export(
        decoder, (example("decoder", 2),), dynamic_axes={"ids": ROW, **states}
    )
    prompt = taper_frontend.export(
        Prompt(decoder).eval(),
        (torch.tensor([[1, 2, 3], [4, 5, 6]]),),
        dynamic_axes={"ids": {0: "batch", 1: "length"}, **states},
    )
    session = taper_runtime.InferenceSession(join_plans({"step": step, "prompt": prompt}))
    together, single = ([session.new_state() for _ in range(3)] for _ in range(2))
    for number, members in enumerate([(0,), (1, 0), (2, 1, 0)]):
        new = members[0]
        ids = {"ids": np.arange(number + 2)[None]}
        for states in (together, single):
            session.run(None, ids, state=[states[new]], entry="prompt")
        feed = np.array([7, 8, 9])[: len(members)]
        got = session.run(None, {"ids": feed}, state=[together[row] for row in members])[0]
        for place, row in enumerate(members):
            alone = session.run(None, {"ids": feed[[place]]}, state=single[row])[0]
            np.testing.assert_allclose(got[[place]], alone, rtol=1e-5, atol=1e-6)
    assert [int(state.get("position")[0]) for state in together] == [5, 5, 5]


class Written(torch.nn.Module):
    """Buffers that are written, read or shared in ways that a test chooses."""

    def __init__(self, **buffers):
        super().__init__()
        self.forms = buffers
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        y = x
        for name, value in self.forms.items():
            if name != "table":
                getattr(self, name).add_(x if value.dim() == 2 else 1)
            y = y + getattr(self, name)
        return y


class Viewed(Written):
    """A buffer that is read through a view too."""

    def __init__(self):
        super().__init__(a=torch.zeros(2, 3))
        view = self.a[:, :1]
        self.read = lambda: view

    def forward(self, x):
        self.a.add_(x)
        return self.a + self.read()


def zeros(*shape):
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("module", "dims", "message"),
    [
        (
            Written(a=zeros(2, 3)),
            {"b": ROW},
            r"of buffers that the module writes to \(a\), got 'b'",
        ),
        (Written(a=zeros(2, 3)), {"a": {2: "batch"}}, "state 'a': expected axes of 0 to 1, got 2"),
        (
            Written(a=zeros(2, 3)),
            {"a": {0: "batch", 1: "n"}},
            r"state 'a': expected one dimension, .* got \[0, 1\]",
        ),
        (Written(a=zeros(3, 3)), {"a": ROW}, "both called 'batch': expected equal sizes"),
        (Written(a=torch.eye(2, 3)), {"a": ROW}, "state 'a' varies .* expected equal rows"),
        (Written(a=zeros(2, 3), table=zeros(2, 3)), {"a": ROW, "table": ROW}, "only reads"),
        (Written(a=zeros(2, 3), steps=zeros()), {"a": ROW}, "state 'steps': expected a dimension"),
        (
            Viewed(),
            {"a": ROW},
            "state 'a': expected a buffer that the module reads only as an attribute",
        ),
        (
            Written(a=zeros(2, 3)),
            {"a": {0: torch.export.Dim("batch", min=2)}},
            "state 'a': expected a batch of 1 or more",
        ),
    ],
)
def test_states_that_cannot_be_rows(module, dims, message):
    x = dims["a"] if "min=2" in repr(dims) else ROW
    with pytest.raises(ExportError, match=message):
        taper_frontend.export(module, (torch.ones(2, 3),), dynamic_shapes={"x": x, **dims})


def test_a_state_of_one_row_is_refused_for_its_reason():
    """Not captured again with a batch that does not vary, as examples of one row else are."""
    module = Written(a=zeros(1, 3), steps=zeros())
    with pytest.raises(ExportError, match="state 'steps': expected a dimension"):
        taper_frontend.export(module, (torch.ones(1, 3),), dynamic_axes={"x": ROW, "a": ROW})


def test_an_unknown_name_is_no_output_either():
    with pytest.raises(ExportError, match=r"inputs \(x\), states \(a\) or outputs .*, got 'c'"):
        taper_frontend.export(
            Written(a=zeros(2, 3)), (torch.ones(2, 3),), dynamic_axes={"x": ROW, "a": ROW, "c": ROW}
        )


@pytest.mark.parametrize("depth", some(["outputs", True, "deep"], ["outputs", "deep"]))
def test_verification_finds_a_wrong_row(depth):
    """A pass that lets all rows begin again with the first one's value."""

    def break_rows(graph):
        (state,) = graph.states
        made = graph.nodes.get(state.next)
        if made is None or made.op == "EXPAND":
            return False
        shape = graph.tensors[state.name].shape
        one = graph.add_node("SLICE", [state.next], {"axis": 0, "start": 0, "stop": 1})
        graph.set_next("hidden", graph.add_node("EXPAND", [one], {"shape": shape}))
        return True

    module = made("recurrent", 2)
    options = {"dynamic_axes": {"x": ROW, "hidden": ROW}, "verify": depth}
    args = (example("recurrent", 2),)
    taper_frontend.export(module, args, **options, passes=())
    with pytest.raises(VerificationError, match="output 'output' differs"):
        taper_frontend.export(module, args, **options, passes=[break_rows])


def test_wrong_lists_of_states_of_an_exported_plan():
    plan = exported("recurrent")
    session, other = (taper_runtime.InferenceSession(plan) for _ in range(2))
    a, b = session.new_state(), session.new_state()
    feed = {"input": np.ones((2, 6), np.float32)}
    for given, message in (
        ([a], "expected 2 states"),
        (a, "expected 2 states"),
        (None, "expected 2 states"),
        ([a, a], "one or more states, each once, got 2"),
        ([a, other.new_state()], "of this session"),
    ):
        with pytest.raises(InputError, match=message):
            session.run(None, feed, state=given)
    held = threading.Event(), threading.Event()

    def hold():
        with a.take(None):
            held[0].set()
            held[1].wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held[0].wait(60)
    options = taper_runtime.RunOptions()
    options.timeout_s = 0.05
    with pytest.raises(RunTimeoutError):  # a run over a state that another run has
        session.run(None, feed, options, state=[b, a])
    held[1].set()
    thread.join()
    session.run(None, feed, state=[b, a])
