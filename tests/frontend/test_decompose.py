"""Programs that are decomposed call by call, and those that have to be traced again."""

import pytest
import torch
from torch.export import ExportedProgram
from torch.nn import functional as F

import taper_runtime
from marks import NUMPY, STATE
from taper_frontend import capture, decompose, export

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
    row, other = y[0], y[1]
    y[0, 1:] = 5
    return y, row, other[0]


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


def write_wider(m, x):
    y = x * 2
    y += x.double() / 3
    return y


def write_unread(m, x):
    y = x * 2
    y.add_(1)
    F.dropout(x.softmax(-1), 0.5, False)  # nobody reads it
    return y


def write_to_buffer(m, x):
    m.seen += x
    return m.seen * 2


COMPUTING = [
    layers,
    add_to_sum,
    respelled,
    spectrogram,
    write_behind_reader,
    write_part,
    write_power,
    write_rows,
    write_to_dropped,
    write_to_view,
    write_unread,
]
WRITING = [
    put_into_new,
    write_beside_part,
    write_part_again,
    write_past_result,
    write_through_view,
    write_to_argument,
    write_beside_view,
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


@pytest.mark.parametrize("function", COMPUTING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [3, 5])
def test_programs_that_only_compute_are_not_traced_again(function, rows, whole):
    varying = {} if rows == 3 else {"dynamic_axes": {"x": {0: "batch"}}}
    check(function, Module(function).eval(), rows, **varying)
    assert not whole


@STATE
@pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
def test_writes_that_others_see(function):
    check(function, Module(function).eval(), 3)


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
