"""Programs that are decomposed call by call, and those that have to be traced again."""

import random

import pytest
import torch
from torch.export import ExportedProgram
from torch.nn import functional as F

import taper_runtime
from marks import NUMPY, STATE, thinned
from taper_frontend import export
from taper_frontend.capture import capture, decompose
from tools.zoo.decompositions import differences

torch.manual_seed(0)


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(3, 4, 8))

    def forward(self, x):
        return self.function(self, x)


def layers(m, x):
    """Composites of all kinds, one of them twice."""
    y = F.relu(m.norm(m.conv(x)), inplace=True)
    y = F.dropout(y, 0.5, training=False).transpose(1, 2).contiguous().flatten(1)
    first, second = y.unflatten(1, (8, 4)).chunk(2, dim=-1)
    first = first.softmax(-1) + first.to(torch.float64).to(torch.float32).type_as(x)
    steps = torch.arange(8) * torch.ones(8).new_full((1,), 2.0)
    return torch.stack([first, second * steps[:, None]]).reshape(2, -1), torch.tril(x.mT)


def spectrogram(m, x):
    """Made of a write to what it has made itself."""
    parts = torch.stft(x[:, 0], 4, 2, window=torch.hann_window(4), return_complex=True)
    return torch.view_as_real(parts)


def respelled(m, x):
    """What is one other call."""
    weight, bias = torch.ones(2, 3, 3), torch.arange(2.0)
    image, kernel = x[:, None].to(torch.float32), torch.arange(1, 10).view(1, 1, 3, 3).to(x.dtype)
    convolved = F.conv1d(x[:, :3], weight, bias, 2, 1), F.conv2d(image, kernel, padding=1)
    volume = F.conv3d(image[:, None], kernel[None], bias[:1], padding=(1, 2, 1), dilation=(1, 2, 1))
    normal = F.group_norm(x, 2, bias.new_ones(4)), F.group_norm(image, 1)
    mask = (x > 0) & (x < 1)
    sums = F.log_softmax(x, 1) + F.softmax(x, 2, dtype=x.dtype)
    filled = x.new_zeros(2), torch.zeros(2, dtype=torch.bool), x.new_ones(2, dtype=torch.int32)
    moved = x.transpose(0, 2).contiguous(), x.contiguous().to("cpu", torch.float64)
    return *convolved, volume, *normal, mask, sums, *filled, *moved


def add_to_sum(m, x):
    y = x * 2
    y += x
    y.mul_(3).clamp_(min=-1)
    return y - x


def write_power(m, x):
    y = x * 2
    y **= 2
    return y.floor_divide_(0.5).transpose_(0, 1)


def put_into_new(m, x):
    y = torch.zeros(3, 4, 8)
    y[torch.tensor([0, 2])] = x[1:]
    y.masked_fill_(x > 1, -1.0)
    return y


def write_part(m, x):
    y = x * 2
    y[:, 1] += 1
    return y


def write_rows(m, x):
    """Each from those before it, as forward substitution does."""
    y = x.double() * 2
    for i in range(1, 4):
        row = y[..., i, :i].clone()
        y[..., i, :i] = row + (row[..., None] * y[..., :i, :i]).sum(-2).float()
    y[:, ::2, 1:-1].clamp_(max=1)
    y[:, :, 2:] = 5
    return y


def write_to_view(m, x):
    """Of what nobody reads any more."""
    y = torch.einsum("bij,bkj->bik", x, x)
    y /= 2
    z = (x * 2).flatten(1).unflatten(1, (8, 4)).transpose(1, 2)
    z[:, 1:] += y[:, 1:, :1]
    return y, z.flatten(1)


def write_through_view(m, x):
    y = x * 2
    z = y.flatten(1)
    z += 1
    z[:, 3] = 0
    return y, z


def write_to_argument(m, x):
    y = x.clone().view(3, 32)
    m.seen.view(3, 32).mul_(2).add_(y)
    return m.seen + 1


def write_part_again(m, x):
    """What reads a write reads what the next write left."""
    y = x * 2
    part = y[:, 1].add_(1)
    part[:, 3] = 7
    return y, part.mul_(2)


def write_beside_part(m, x):
    y = x * 2
    row, other = y[:, 0], y[:, 1]
    y[:, 0, 1:] = 5
    return y, row, other[:, 0]


def write_past_result(m, x):
    y = x * 2
    part = y[:, 1].add_(1)
    y[:, 1:3] -= 3
    return y, part


def write_beside_view(m, x):
    y = x * 2
    row = y[0]
    y += 1
    return y, row


def write_behind_reader(m, x):
    y = x * 2
    z = y + 1
    y += 1
    return y * z


def write_to_copy(m, x):
    y = x * 2
    z = y.to(torch.float32, copy=True)
    z += 1
    w = y.transpose(0, 1).contiguous()
    w += 1
    return y, z, w


def write_to_other_layout(m, x):
    y = x[None] * 2
    z = y.to(memory_format=torch.channels_last)
    z += 1
    return y, z


def write_to_same(m, x):
    y = x * 2
    z = y.to(torch.float32)
    z += 1
    w = y.contiguous()
    w -= 3
    return y, z, w


def write_to_dropped(m, x):
    y = x * 2
    F.dropout(y, 0.5, False).add_(1)
    return y


def write_to_row_of_what_is_read(m, x):
    """Qwen's positions: a view is taken, written to and read, and the tensor is read between."""
    y = x * 2
    row, other = y[:, 0], y[..., 0].unsqueeze(0)
    for i in (1, 2):
        row[:, i : 4 * i : 2] = y[:, i, i : 4 * i : 2]
        row[:, :i] += other[0, :, 1:2]
    return torch.cat([row, row * other[0, :, :1]], -1), y.sum(0), other * 2


def write_wider(m, x):
    y = x * 2
    y += x.double() / 3
    return y


def write_unread(m, x):
    y = x * 2
    y.add_(1)
    F.dropout(x.softmax(-1), 0.5, False)  # nobody reads it
    return y


def shares(m, x):
    """Sizes that values decide, and what the program checks of them."""
    first = (x[:, 0, 0] > 0).sum()
    kept = x[x[:, 1, 0] > 0]
    low, high = x.split(torch.stack([first, x.shape[0] - first]).tolist())
    return torch.diff(low, dim=-1), torch.logaddexp(high, high * 2), torch.tril(kept.mT)


def write_to_buffer(m, x):
    m.seen += x
    return m.seen * 2


COMPUTING = [
    layers,
    add_to_sum,
    respelled,
    shares,
    spectrogram,
    write_behind_reader,
    write_part,
    write_power,
    write_rows,
    write_beside_part,
    write_beside_view,
    write_part_again,
    write_past_result,
    write_to_dropped,
    write_to_row_of_what_is_read,
    write_to_view,
    write_unread,
]
WRITING = [
    put_into_new,
    write_through_view,
    write_to_argument,
    write_to_copy,
    write_to_other_layout,
    write_to_same,
    write_wider,
    write_to_buffer,
]


@pytest.fixture
def whole(monkeypatch):
    """The programs that were decomposed as a whole."""
    made = []
    original = ExportedProgram.run_decompositions

    def run_decompositions(self, *args, **kwargs):
        made.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", run_decompositions)
    return made


def check(function, model, rows, **options):
    plan = export(model, (torch.randn(3, 4, 8),), **options)
    session = taper_runtime.InferenceSession(plan)
    model.seen.zero_()
    x = torch.randn(rows, 4, 8)
    want = model(x)
    want = want if isinstance(want, tuple) else (want,)
    for mine, each in zip(session.run(None, {"x": x.numpy()}), want, strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), each.detach())


@pytest.mark.parametrize(
    ("function", "rows"), thinned(2, COMPUTING, (3, 5)), ids=lambda f: getattr(f, "__name__", f)
)
def test_programs_that_only_compute_are_not_traced_again(function, rows, whole):
    varying = {} if rows == 3 else {"dynamic_axes": {"x": {0: "batch"}}}
    check(function, Module(function).eval(), rows, **varying)
    assert not whole


@STATE
@pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
def test_writes_that_others_see(function):
    check(function, Module(function).eval(), 3)


def test_training_mode_is_no_reason_to_trace_again(whole):
    model = Module(add_to_sum).train()
    model.norm.eval()  # no warning
    check(add_to_sum, model, 3)
    assert not whole


@STATE
@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize("whole_module", [True, False])
def test_statistics_that_training_moves_are_states(whole_module, whole):
    """The schema of batch_norm does not tell that it writes to them."""
    model = Module(layers).train(whole_module)
    model.norm.train()
    plan = export(model, (torch.randn(3, 4, 8),), verify="outputs")
    assert whole
    assert {"norm.running_mean", "norm.running_var"} <= {*plan.states}


def test_a_program_of_the_user_stays_as_it_is():
    program = torch.export.export(Module(add_to_sum).eval(), (torch.randn(3, 4, 8),))
    before = str(program.graph)
    capture.capture(program)
    assert str(program.graph) == before


@NUMPY
def test_draws_are_kept(whole):
    """A draw that nobody reads is one: what comes after it is torch's next number."""

    def draw(m, x):
        torch.rand(3)
        return x + torch.rand(3, 4, 8)

    plan = export(Module(draw).eval(), (torch.zeros(3, 4, 8),), verify=False)
    assert whole
    options = taper_runtime.SessionOptions()
    options.seed = 7
    (got,) = taper_runtime.InferenceSession(plan, options).run(
        None, {"x": torch.zeros(3, 4, 8).numpy()}
    )
    torch.manual_seed(7)
    torch.rand(3)
    torch.testing.assert_close(torch.from_numpy(got), torch.rand(3, 4, 8))


@pytest.fixture
def traced(monkeypatch):
    """The ops of the calls that were traced."""
    targets = []
    original = decompose._trace_call

    def trace(target, *rest):
        targets.append(str(target))
        return original(target, *rest)

    monkeypatch.setattr(decompose, "_trace_call", trace)
    return targets


def test_a_call_that_is_one_other_call_is_not_traced(traced):
    export(Module(respelled).eval(), (torch.randn(3, 4, 8),))
    assert not traced


def test_a_call_that_is_traced_twice_is_traced_once(traced):
    def twice(m, x):
        return torch.tril(torch.tril(x) + 1), torch.tril(x[:, :2])

    export(Module(twice).eval(), (torch.randn(3, 4, 8),))
    assert traced.count("aten.tril.default") == 2


def glu(x):
    return F.glu(torch.cat([x, 2 - x], -1))


#: Calls that are traced, or whose results enter such calls: [4, 4] -> [4, 4], of one matrix...
ONE = [
    glu,
    torch.tril,
    lambda x: torch.triu(x, 1),
    F.mish,
    F.softplus,
    lambda x: F.normalize(x, dim=0),
    lambda x: torch.rot90(x, 1),
    lambda x: torch.roll(x, 1, 0),
    lambda x: torch.logcumsumexp(x, 1),
    lambda x: x.unfold(0, 2, 1).sum(-1).repeat(2, 1)[:4],
    lambda x: F.layer_norm(x, (4,)),
    lambda x: torch.fft.fft(x, dim=0).real,
]
#: ... and of two.
TWO = [
    lambda x, y: torch.einsum("ic,jc->ij", x, y),
    torch.cdist,
    lambda x, y: torch.kron(x, y)[::4, 1::4],
    lambda x, y: torch.tensordot(x, y, dims=([1], [1])),
    lambda x, y: torch.block_diag(x, y)[2:6, 2:6],
    lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None])[0],
    lambda x, y: torch.outer(x[0], y[1]),
    lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=-1),
    lambda x, y: F.huber_loss(x, y, reduction="none"),
    lambda x, y: F.bilinear(x, y, torch.ones(4, 4, 4, dtype=x.dtype) / 4),
    lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: torch.lerp(x, y, 0.25),
    lambda x, y: torch.complex(x, y).conj().mul(torch.complex(y, x)).imag,
]


class RandomCalls(torch.nn.Module):
    """Calls of few kinds over few values, so that equal ones meet in one, and one meets itself."""

    def __init__(self, seed, steps=12):
        super().__init__()
        draw = random.Random(seed)
        one, two = [glu, *draw.sample(ONE[1:], 1)], [*draw.sample(TWO[:4], 2), draw.choice(TWO[4:])]
        self.steps = []
        for step in range(steps):
            function = draw.choice(one if draw.random() < 0.5 else two)
            count = 1 if function in one else 2
            places = [draw.randrange(max(0, step - 2), step + 3) for _ in range(count)]
            self.steps.append((function, places[:1] * count if draw.random() < 0.3 else places))

    def forward(self, x, y, z):
        values = [x, y, z]
        for function, places in self.steps:
            value = function(*[values[place] for place in places])
            values.append(value if len(places) == 1 else value.tanh())  # which stays bounded
        return values[-1]


#: torch.export copies its own specs in a way that it has deprecated itself.
TORCHS_OWN = pytest.mark.filterwarnings(r"ignore:.*isinstance\(treespec, LeafSpec\):FutureWarning")


@TORCHS_OWN
@pytest.mark.parametrize("seed", range(4))
def test_each_value_of_equal_calls_is_that_of_the_program(seed):
    """As torch captured them, decomposed call by call and by torch: one value each."""
    matrices = tuple(torch.randn(3, 4, 4, dtype=torch.float64))
    with torch.no_grad():
        program = torch.export.export(RandomCalls(seed).eval(), matrices)
    complete, found = differences(program)
    assert complete
    assert found == []


@NUMPY
@pytest.mark.parametrize("function", TWO[:4])
def test_two_equal_calls_into_one(function):
    def equal(m, x):
        a, b = x.double()[0], x.double()[1]
        return function(glu(a[:, :4]), glu(b[:, :4])), function(a[:, :4], a[:, 4:])

    check(equal, Module(equal).eval(), 3)


@NUMPY
@pytest.mark.parametrize("function", TWO[:4])
def test_one_value_twice_and_then_two_values(function):
    def twice(m, x):
        a, b = x.double()[0, :, :4], x.double()[1, :, :4]
        return function(a, a), function(a, b), function(b, a), function(b, b)

    check(twice, Module(twice).eval(), 3)


class InvertedAttention(torch.nn.Module):
    """An iTransformer's block: variates are tokens, attention by two einsums."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 96)
        self.ff = torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.GLU(), torch.nn.Linear(32, 8)
        )
        self.gate = torch.nn.Linear(8, 64)
        self.out = torch.nn.Linear(32, 8)

    def forward(self, x):  # [B, variates, 8]
        q, k, v = (
            each.unflatten(-1, (2, 16)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1)
        )
        weights = torch.einsum("bhid,bhjd->bhij", F.normalize(q, dim=-1), F.normalize(k, dim=-1))
        mixed = torch.einsum("bhij,bhjd->bhid", weights.softmax(-1), v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed * F.glu(self.gate(x)))
        return x + self.ff(x)


class DeltaRule(torch.nn.Module):
    """DeltaNet: a state that each step reads by its key before it writes."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 12)
        self.beta = torch.nn.Linear(8, 1)

    def forward(self, x):  # [B, 4, 8]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, beta = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1), self.beta(x)
        state, outputs = x.new_zeros(x.shape[0], 4, 4), []
        for step in range(4):
            old = torch.einsum("bkv,bk->bv", state, k[:, step])
            new = beta[:, step].sigmoid() * (v[:, step] - old)
            state = state + torch.einsum("bk,bv->bkv", k[:, step], new)
            outputs.append(torch.einsum("bkv,bk->bv", state, q[:, step]))
        return torch.stack(outputs, 1)


class TriangleMultiplication(torch.nn.Module):
    """AlphaFold's, outgoing and incoming."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)

    def forward(self, x):  # [N, N, 8]
        left, right = F.glu(self.left(x)), F.glu(self.right(x))
        outgoing = torch.einsum("ikc,jkc->ijc", left, right)
        return outgoing + torch.einsum("kic,kjc->ijc", left, right)


class ClickModel(torch.nn.Module):
    """A DLRM: every pair of embeddings by a product of the stack with itself."""

    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(5, 6, mode="sum") for _ in range(2))
        self.dense = torch.nn.Linear(8, 6)

    def forward(self, x):  # [B, 4, 8]
        ids = x[..., :3].abs().long().clamp(max=4)
        bags = [table(ids[:, at]) for at, table in enumerate(self.tables)]
        vectors = torch.stack([self.dense(x[:, 0]), *bags], 1)
        pairs = torch.einsum("bic,bjc->bij", vectors, vectors)
        places = torch.tril_indices(3, 3, -1)
        return torch.cat([vectors[:, 0], pairs[:, places[0], places[1]]], 1)


@pytest.mark.parametrize(
    ("make", "varies"),
    thinned(2, (InvertedAttention, DeltaRule, TriangleMultiplication, ClickModel), (False, True)),
)
def test_models_of_equal_calls(make, varies):
    sizes = {0: "n", 1: "n"} if make is TriangleMultiplication else {0: "n"}
    model = make().eval()
    plan = export(model, (torch.randn(4, 4, 8),), dynamic_axes={"x": sizes} if varies else None)
    x = 3 * torch.randn(*(5 if varies and axis in sizes else 4 for axis in range(2)), 8)
    (got,) = taper_runtime.InferenceSession(plan).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x).detach())
