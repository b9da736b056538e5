"""Verification: errors that stop an export, others that do not, the module afterwards."""

from __future__ import annotations

import random
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed

import taper_frontend
from marks import ARGUMENTS, STATE
from taper_frontend.compiler.stages import PIPELINE
from taper_frontend.errors import ExportError, ExportWarning
from taper_frontend.verify.draw import draw
from taper_frontend.verify.ties import Jitter, rests_on_ties
from taper_frontend.verify.trials import VerificationError
from taper_runtime.plan.compare import difference
from taper_runtime.reports.report import describe_plan


def verified(module, *args, **options):
    """What the metadata of an exported module says."""
    return taper_frontend.export(module.eval(), args, **options).metadata["verified"]


def scaling(factor):
    """A pass that is wrong: it scales the first output."""

    def scale_output(graph):
        output, *others = graph.outputs
        scaled = graph.add_node("MUL", [output], {"scalar": factor, "scalar_index": 1})
        graph.set_outputs([scaled, *others])
        return True

    return [scale_output, *PIPELINE]


def rolling(graph):
    """A pass that is wrong: the last value of the first output comes first."""
    output, *others = graph.outputs
    (size,) = graph.tensors[output].shape
    last = graph.add_node("SLICE", [output], {"axis": 0, "start": size - 1, "stop": size})
    rest = graph.add_node("SLICE", [output], {"axis": 0, "start": 0, "stop": size - 1})
    graph.set_outputs([graph.add_node("CAT", [last, rest], {"axis": 0}), *others])
    return True


# -- inputs that the module takes ------------------------------------------------------------------


class TwoVocabularies(torch.nn.Module):
    """Ids of two kinds, packed along the middle axis: attacut's."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Embedding(5, 4)
        self.second = torch.nn.Embedding(500, 4)

    def forward(self, ids):
        return self.first(ids[:, 0]) + self.second(ids[:, 1])


class Patches(torch.nn.Module):
    """Rows and columns stand beside the pixels, in floats: Pix2Struct's."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(4, 3)
        self.columns = torch.nn.Embedding(5, 3)

    def forward(self, patches):
        rows, columns = patches[..., 0].long(), patches[..., 1].long()
        return patches[..., 2:] + self.rows(rows) + self.columns(columns)


class ImageTokens(torch.nn.Module):
    """As many special tokens as there are image features: LLaVA's."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)

    def forward(self, ids, features):
        special = ids == 9
        torch._assert_async((special.sum() == features.shape[0]).all())
        return self.embed(ids).masked_scatter(special[..., None], features)


def two_vocabularies():
    torch.manual_seed(0)
    ids = torch.stack([torch.randint(5, (1, 12)), torch.randint(400, 500, (1, 12))], 1)
    return TwoVocabularies(), (ids,)


def patches():
    torch.manual_seed(0)
    place = torch.stack([torch.arange(20) // 5, torch.arange(20) % 5], 1)
    return Patches(), (torch.cat([place, 100 * torch.randn(20, 3)], 1)[None],)


def image_tokens():
    torch.manual_seed(0)
    ids = torch.randint(9, (1, 12))
    ids[0, 3:7] = 9
    return ImageTokens(), (ids, torch.randn(4, 4))


@pytest.mark.parametrize("make", [two_vocabularies, patches, image_tokens])
def test_random_inputs_are_such_as_the_module_takes(make):
    module, args = make()
    given = verified(module, *args)
    assert given["trials"] == 3
    assert "refused" not in given


def test_what_is_drawn_keeps_what_other_axes_hold():
    rng = np.random.default_rng(1)
    boxes = np.sort(rng.integers(0, 99, (2, 30, 4)), -1)
    ids = np.arange(60).reshape(2, 30)
    mask = np.where(np.arange(30) < 20, 0.0, -np.inf).astype(np.float32)
    shapes = [boxes.shape, ids.shape, mask.shape]
    new_boxes, new_ids, new_mask = draw([boxes, ids, mask], shapes, rng)
    assert not np.array_equal(new_ids, ids)
    np.testing.assert_array_equal(np.sort(new_ids, 1), ids)
    np.testing.assert_array_equal(np.sort(new_boxes, -1), new_boxes)
    order = new_ids[0]
    np.testing.assert_array_equal(new_boxes, boxes[:, order])
    np.testing.assert_array_equal(new_mask, mask[order])
    longer, shorter, _ = draw([boxes, ids, mask], [(2, 31, 4), (2, 7), (30,)], rng)
    assert longer.shape == (2, 31, 4)
    np.testing.assert_array_equal(np.sort(longer, -1), longer)
    assert set(shorter[0]) <= set(ids[0])


def test_draws_rise_where_the_example_does():
    begins = np.array([0, 2, 2, 7])
    for shape in ((4,), (9,)):
        for timid in (False, True):
            (drawn,) = draw([begins], [shape], np.random.default_rng(0), timid=timid)
            assert (np.diff(drawn) >= 0).all()
            assert set(drawn) == {0, 2, 7}
    places = np.arange(20)
    (drawn,) = draw([places], [(20,)], np.random.default_rng(0))
    assert set(drawn) == set(places)
    assert (np.diff(drawn) < 0).any()


@pytest.mark.parametrize("count", [6, 7, 9])
def test_bags_of_words_where_offsets_are_an_argument(count):
    words, offsets = torch.arange(count) % 5, torch.tensor([0, 2, 4])
    plan = taper_frontend.export(torch.nn.EmbeddingBag(5, 3), (words, offsets))
    assert plan.metadata["verified"]["trials"] > 1


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_floats_without_variety_are_varied(value):
    (drawn,) = draw([np.full((3, 50), value, np.float32)], [(3, 50)], np.random.default_rng(0))
    assert drawn.dtype == np.float32
    assert 0.8 < drawn.std() < 1.2


def test_columns_of_floats_keep_their_distribution():
    rng = np.random.default_rng(0)
    array = rng.standard_normal((400, 3)).astype(np.float32) * [1, 10, 0] + [0, 100, 7]
    (drawn,) = draw([array], [array.shape], rng)
    np.testing.assert_allclose(drawn.mean(0), array.mean(0), atol=1.5)
    np.testing.assert_allclose(drawn.std(0), array.std(0), rtol=0.1)
    assert (drawn.min(0) >= array.min(0)).all()
    assert (drawn.max(0) <= array.max(0)).all()


# -- what the module refuses -----------------------------------------------------------------------


class Strict(torch.nn.Module):
    """Runs one input, and what is near it; torch does not see the check."""

    def __init__(self, wanted, reach):
        super().__init__()
        self.wanted, self.reach = wanted, reach

    def forward(self, x):
        if not torch.compiler.is_exporting() and (x - self.wanted).abs().max() > self.reach:
            raise ValueError("not my example\nand a second line")
        return x * 2


def test_what_the_module_refuses_is_noted_and_stops_nothing():
    x = torch.linspace(1, 2, 40)
    plan = taper_frontend.export(Strict(x, 0.0).eval(), (x,))
    given = plan.metadata["verified"]
    assert given["trials"] == 1
    assert given["refused"] == 2
    assert given["reason"] == "ValueError: not my example"
    assert "2 random inputs that the module refuses: ValueError" in describe_plan(plan, nodes=False)


def test_a_module_that_refuses_far_inputs_gets_near_ones():
    x = torch.linspace(1, 2, 40)
    given = verified(Strict(x, 0.9), x)
    assert given["trials"] == 3
    assert "refused" not in given


def test_a_module_that_cannot_run_its_example_is_an_export_error():
    module = Strict(torch.zeros(3), 0.0)
    with pytest.raises(
        ExportError, match=r"cannot run its example.*float32\[3\].*not my"
    ) as raised:
        verified(module, torch.ones(3))
    assert not isinstance(raised.value, VerificationError)
    assert isinstance(raised.value.__cause__, ValueError)
    assert "verified" not in taper_frontend.export(module, (torch.ones(3),), verify=False).metadata


class Fails(torch.nn.Module):
    """Counts in a buffer, then refuses every input but the first."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        if not torch.compiler.is_exporting() and x[0] != 1:
            raise ValueError("no")
        return x + self.count


@STATE
def test_a_refused_trial_leaves_no_state_behind():
    module = Fails()
    given = verified(module, torch.ones(2))
    assert (given["trials"], given["refused"]) == (1, 2)
    assert module.count == 0


def test_a_refused_trial_of_a_module_without_state_stops_nothing():
    module = Strict(torch.linspace(1, 2, 40), 0.0)
    module.register_buffer("factor", torch.ones(()))
    given = verified(module, torch.linspace(1, 2, 40))
    assert (given["trials"], given["refused"]) == (1, 2)


# -- what the reference is -------------------------------------------------------------------------


class Eager(torch.nn.Module):
    """Is computed otherwise in torch.export: only the module itself tells."""

    def forward(self, x):
        return x * 3 if torch.compiler.is_exporting() else x * 2


def test_the_reference_is_the_module_itself():
    with pytest.raises(VerificationError, match="differs from the module's on the example"):
        verified(Eager(), torch.ones(3))
    program = torch.export.export(Eager(), (torch.ones(3),))
    assert taper_frontend.export(program).metadata["verified"]["trials"] == 3


class Attention(torch.nn.Module):
    """A group norm of what lies transposed, as after the attention of diffusers' VAE.

    Its program, decomposed, calls a kernel of torch's that takes no strided tensor.
    """

    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.GroupNorm(2, 8), torch.nn.GroupNorm(4, 8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.before(x.flatten(2)).transpose(1, 2)
        return self.after(self.linear(y).transpose(1, 2).reshape(x.shape))


def test_a_strided_group_norm_is_verified():
    torch.manual_seed(0)
    module, args = Attention().eval(), (torch.randn(1, 8, 6, 6),)
    for model in (module, torch.export.export(module, args)):
        given = taper_frontend.export(model, args).metadata["verified"]
        assert given["trials"] == 3
        assert given["relative_error"] <= 1e-5


@ARGUMENTS
def test_the_fast_path_of_encoder_layers_is_no_error():
    """It gives zeros for what a mask hides; the program has what the layers compute."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2).eval()
    hidden = torch.arange(5)[None] >= torch.tensor([[5], [3]])
    plan = taper_frontend.export(module, (torch.randn(2, 5, 8), None, hidden))
    assert plan.metadata["verified"]["trials"] == 3
    assert torch.backends.mha.get_fastpath_enabled()


# -- what the module is afterwards -----------------------------------------------------------------


class Frozen(OrderedDict):
    """What diffusers keeps a configuration in."""

    def update(self, *args, **kwargs):
        raise TypeError("a frozen dict")


class Restless(torch.nn.Module):
    """Changes all it has while it runs."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.plain = torch.ones(3)
        self.calls, self.seen, self.table = 0, [], {"a": 1}
        self.config = Frozen([("a", 1)])

    def forward(self, x):
        self.total += x
        if not torch.compiler.is_exporting():
            torch.rand(3)
            if self.calls:  # what the plan was made of is the first call
                x = x * 2
            self.calls += 1
            self.seen.append(self.calls)
            self.table["b"] = self.extra = 2
            self.plain.mul_(2)
            self.eval()
            self.linear.weight.requires_grad_(False)
            if self.broken:
                raise ValueError("broken")
        return self.linear(x) + self.total

    broken = False


@STATE
@pytest.mark.parametrize("broken", [False, True])
def test_the_module_is_left_as_it_was(broken):
    module = Restless().train()
    module.broken = broken
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state()
    if broken:
        with pytest.raises(ExportError, match="broken"):
            taper_frontend.export(module, (torch.ones(3),))
    else:
        with pytest.warns(ExportWarning, match=r"a call of the module changes calls \(0, then 1\)"):
            plan = taper_frontend.export(module, (torch.ones(3),))
        assert plan.metadata["verified"]["trials"] == 3
    assert torch.equal(torch.get_rng_state(), before)
    assert (module.calls, module.seen, module.table) == (0, [], {"a": 1})
    assert module.config == Frozen([("a", 1)])
    assert not hasattr(module, "extra")
    assert module.training
    assert module.linear.training
    assert module.linear.weight.requires_grad
    assert torch.equal(module.total, torch.zeros(3))
    assert torch.equal(module.plain, torch.ones(3))


# -- where float32 is uncertain --------------------------------------------------------------------


class Cancels(torch.nn.Module):
    """What is left of two large sums: float32 tells no digit of it."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.tensor(3e4))

    def forward(self, x):
        return (x + self.shift).mean(1) - self.shift


class Widens(Cancels):
    """The same, with a place that float64 does not pass."""

    def forward(self, x):
        if not torch.compiler.is_exporting() and x.dtype != torch.float32:
            raise ValueError("float32 only")
        return super().forward(x)


def test_what_float32_cannot_tell_is_held_to_float64():
    torch.manual_seed(0)
    x = torch.randn(8, 1000)
    plan = taper_frontend.export(Cancels().eval(), (x,))
    (why,) = plan.metadata["verified"]["uncertain"].values()
    assert "beside float64, where the module" in why
    assert "differs as float32 allows" in describe_plan(plan, nodes=False)


def test_float64_excuses_no_wrong_plan():
    torch.manual_seed(0)
    with pytest.raises(VerificationError, match="relative error"):
        verified(Cancels(), torch.randn(8, 1000), passes=scaling(3.0))


def test_a_module_without_float64_has_the_plain_rule():
    torch.manual_seed(0)
    with pytest.raises(
        VerificationError,
        match=r"in float64, which could tell more, failed: ValueError: float32 only",
    ):
        verified(Widens(), torch.randn(8, 1000))


class Overflows(torch.nn.Module):
    """As torch's vector code does, on some machines: what is finite becomes infinite on the way."""

    def forward(self, x):
        y = torch.exp(x)
        is_run = not torch.compiler.is_exporting() and x.dtype == torch.float32
        return y * 1e30 / 1e30 if is_run else y


@pytest.mark.parametrize("x", [torch.full((6,), 30.0), torch.linspace(-1, 30, 6)])
def test_float64_judges_where_float32_overflows(x):
    why = verified(Overflows(), x)["uncertain"]["output"]
    assert why.endswith(
        "equal those of the module in float64, which are infinities or NaNs in float32"
    )
    for factor in (1.01, -1.0):
        with pytest.raises(VerificationError, match="infinities"):
            verified(Overflows(), x, passes=scaling(factor))


def test_results_beyond_float32_may_be_infinite():
    """In float64 all of them are finite."""
    x = torch.tensor([0.0, 20.0, 30.0, 90.0, 100.0, 120.0])
    assert "elements equal those of the module" in verified(Overflows(), x)["uncertain"]["output"]


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (torch.sinh, torch.linspace(88, 92, 32)),
        (torch.cosh, torch.linspace(-92, -88, 32)),
        (torch.prod, torch.tensor([1e13] * 4 + [1e-13] * 4).repeat(2)),
    ],
)
def test_what_torchs_vectors_overflow_in_is_not_held_against_a_plan(function, x):
    class Called(torch.nn.Module):
        def forward(self, x):
            return function(x)

    want, exact = function(x), function(x.double()).float()
    report = verified(Called(), x)
    assert ("output" in report.get("uncertain", {})) == (
        not torch.equal(want.isinf(), exact.isinf())
    )


class Steps(torch.nn.Module):
    """Whole numbers, the last digits of which float32 cannot tell."""

    def forward(self, x):
        return (torch.sin(x * 3) * 1e9).to(torch.int64)


def test_float64_excuses_no_wrong_integers():
    torch.manual_seed(0)
    x = torch.randn(50)
    (why,) = verified(Steps(), x)["uncertain"].values()
    assert "beside float64, where the module" in why
    for wrong in (scaling(3), [rolling, *PIPELINE]):
        with pytest.raises(VerificationError, match="differs from the module's"):
            verified(Steps(), x, passes=wrong)


# -- ties ------------------------------------------------------------------------------------------


class Best(torch.nn.Module):
    """The order of scores, and what stands there."""

    def forward(self, x):
        indices = (x * 3 / 3).topk(8).indices
        return indices, x[indices]


def swapped(first, second):
    """A pass that is wrong, or is right by chance: two of the indices change places."""

    def swap(graph):
        output, *others = graph.outputs
        parts = []
        order = list(range(8))
        order[first], order[second] = order[second], order[first]
        for place in order:
            attrs = {"axis": 0, "start": place, "stop": place + 1}
            parts.append(graph.add_node("SLICE", [output], attrs))
        graph.set_outputs([graph.add_node("CAT", parts, {"axis": 0}), *others])
        return True

    return [swap, *PIPELINE]


def scores():
    """Of which the third and the fourth best tie."""
    x = torch.arange(20.0, 0, -1)[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    x[x == 17] = 18 - 1e-5
    return x


def test_swapped_ties_are_told_from_swapped_scores(monkeypatch):
    monkeypatch.setattr("taper_frontend.verify.trials.TRIALS", 0)
    given = verified(Best(), scores(), passes=swapped(2, 3))
    assert list(given["uncertain"].values()) == ["a choice among scores that tie"]
    for first, second in ((0, 1), (3, 4)):
        with pytest.raises(VerificationError, match="differs from the module's"):
            verified(Best(), scores(), passes=swapped(first, second))


def test_all_wrong_integers_are_refused_though_some_tie(monkeypatch):
    monkeypatch.setattr("taper_frontend.verify.trials.TRIALS", 0)
    with pytest.raises(VerificationError):
        verified(Best(), scores(), passes=[rolling, *PIPELINE])


class Ordered(torch.nn.Module):
    """What one op that puts numbers in an order gives."""

    def __init__(self, name, *args):
        super().__init__()
        self.name, self.args = name, args

    def forward(self, x):
        return getattr(torch, self.name)(x, *self.args)


@pytest.mark.parametrize("nans", [2, 3, 7])
@pytest.mark.parametrize(
    ("name", "args"),
    [("topk", (8,)), ("sort", ()), ("argsort", ()), ("kthvalue", (19,)), ("kthvalue", (14,))],
)
def test_equal_nans_may_stand_in_any_order(name, args, nans):
    x = torch.randn(20, generator=torch.Generator().manual_seed(nans))
    x[torch.arange(nans) * 2] = torch.nan
    x[[1, 11]] = torch.inf
    assert verified(Ordered(name, *args), x)["trials"] == 3


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["max", "min", "topk", "sort", "cummax", "cummin"])
def test_noise_changes_the_order_of_nans_and_nothing_else(name, sign):
    x = torch.tensor([3.0, torch.nan, 1.0, -torch.inf, torch.nan, torch.inf, 2.0]) * sign
    args = {"topk": (4, 0), "sort": ()}.get(name, (0,))
    want = Ordered(name, *args)(x)
    seen = set()
    for seed in range(8):
        with Jitter(seed):
            values, indices = Ordered(name, *args)(x)
        torch.testing.assert_close(values, want[0], rtol=1e-3, atol=0, equal_nan=True)
        assert values.dtype == x.dtype
        torch.testing.assert_close(x[indices], values, rtol=1e-3, atol=0, equal_nan=True)
        seen.add(tuple(indices.reshape(-1).tolist()))
    assert len(seen) > 1 or name.startswith("cum")


@pytest.mark.parametrize("name", ["token", "tensor", "channel"])
def test_noise_moves_what_is_quantized_between_two_levels(name):
    """Such numbers differ by a level where one bit before them does."""
    ones, zeros = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    given = {"token": (ones[:, None], zeros[:, None]), "tensor": (1.0, 0), "channel": (ones, zeros)}
    axis = (0,) if name == "channel" else ()
    quantize = getattr(torch.ops.quantized_decomposed, f"quantize_per_{name}")
    seen = set()
    for seed in range(8):
        with Jitter(seed):
            x = torch.tensor([[0.5, 1.0, -2.2, 3.4]])
            levels = quantize(x, *given[name], *axis, -128, 127, torch.int8)
        first, *others = levels[0].tolist()
        assert others == [1, -2, 3]
        seen.add(first)
    assert seen == {0, 1}


def test_a_wrong_order_of_nans_is_said_to_be_one():
    def first_of_all(graph):
        output, *others = graph.outputs
        wrong = graph.add_node("MUL", [output], {"scalar": 0, "scalar_index": 1})
        graph.set_outputs([wrong, *others])
        return True

    x = torch.tensor([3.0, torch.nan, 1.0, torch.nan, 2.0])
    with pytest.raises(
        VerificationError, match=r"except for the order of equal ones.* 4 different ones of 5"
    ):
        verified(Ordered("argsort"), x, passes=[first_of_all, *PIPELINE])


def test_exact_ties_in_any_order_are_right():
    want = np.arange(6)
    jittered = [want[[0, 2, 1, 3, 4, 5]]]
    assert rests_on_ties(want[[0, 2, 1, 3, 4, 5]], want, jittered, 1e-4)
    assert not rests_on_ties(want[[1, 0, 2, 3, 4, 5]], want, jittered, 1e-4)
    assert not rests_on_ties(want + np.array([0, 9, 0, 0, 0, 0]), want, jittered, 1e-4)
    assert not rests_on_ties(want, want, [want], 1e-4)


def test_integers_that_no_run_gave_are_no_ties():
    want, run = np.array([1, 2, 90, 95, 3]), np.array([2, 1, 95, 90, 3])
    assert rests_on_ties(np.array([1, 2, 93, 90, 3]), want, [run], 1e-4)  # a sum, say
    assert rests_on_ties(np.array([1, 90, 2, 95, 3]), want, [run], 1e-4)
    assert not rests_on_ties(np.array([1, 50, 90, 95, 3]), want, [run], 1e-4)


def test_floats_chosen_by_ties_are_compared_as_a_set():
    want = np.arange(12, dtype=np.float32).reshape(4, 3)
    turned = want[[0, 2, 1, 3]]
    assert rests_on_ties(turned, want, [turned], 1e-4)
    assert not rests_on_ties(turned * 2, want, [turned], 1e-4)
    doubled = turned.copy()
    doubled[1] *= 1.5
    assert not rests_on_ties(doubled, want, [turned], 1e-4)
    assert not rests_on_ties(want[[3, 2, 1, 0]], want, [turned], 1e-4)


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: x.topk(4).indices,
        lambda x: x.argsort(),
        lambda x: x.to(torch.int64).argsort(),
        lambda x: (x / 7 + 1).floor().argsort(),
    ],
)
def test_noise_breaks_ties_and_only_ties(choose):
    tied, apart = torch.tensor([0.0, 0, 0, 0, 5, 9]), torch.tensor([0.0, 15, 30, 45, 60, 75])
    changed = {True: 0, False: 0}
    for seed in range(8):
        for x in (tied, apart):
            with Jitter(seed):
                changed[x is tied] += not torch.equal(choose(x), choose(x.clone()))
    assert changed[True]
    assert not changed[False]


def test_noise_spares_zeros_and_whole_numbers():
    x = torch.tensor([0.0, 1.0, 2.0])
    with Jitter(0):
        assert torch.equal(x > 0, torch.tensor([False, True, True]))
        assert x.long().tolist() == [0, 1, 2]
        assert x.floor().tolist() == [0, 1, 2]


# -- one rule of comparison ------------------------------------------------------------------------


def test_difference():
    one = np.ones(4, np.float32)
    assert difference(one, one) == (0, 0)
    assert difference(one * 1.5, one) == (0.5, 0.5)
    assert difference(one, one[:2]).relative == np.inf
    assert difference(one.astype(int), one.astype(int) + 1).relative == np.inf
    nan = np.array([1, np.nan, 1, 1], np.float32)
    assert difference(nan, nan) == (0, 0)
    assert difference(nan, one).relative == np.inf
    assert difference(one.astype(np.float64), one).relative == 0


def test_the_record_does_not_depend_on_threads():
    """Torch adds in another order on two threads, and its errors differ in their digits."""
    torch.manual_seed(0)
    module, x = torch.nn.Linear(512, 64), torch.randn(64, 512)
    records = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            records.append(verified(module, x))
    finally:
        torch.set_num_threads(threads)
    assert records[0] == records[1]


def test_exports_in_threads_take_turns():
    """Each sets torch's seed and switches; what they were stands afterwards."""

    class Doubles(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2

    before = torch.backends.mha.get_fastpath_enabled()
    modules = [Doubles() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda module: verified(module, torch.randn(2, 3)), modules))
    assert all(record["trials"] == 3 for record in found)
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert torch.get_default_dtype() == torch.float32


def test_an_order_that_torch_does_not_promise_is_no_difference():
    """Values inside rest on it; what is given does not."""

    class Largest(torch.nn.Module):
        def forward(self, x):
            values, places = x.topk(9, dim=1, sorted=False)
            return values.sum(1), torch.zeros_like(x).scatter(1, places, values.exp())

    plan = taper_frontend.export(Largest(), (torch.randn(3, 40),))
    assert plan.metadata["verified"]["trials"] == 3


def test_an_angle_of_what_lies_on_the_negative_axis_is_either_end_of_the_turn():
    class Phase(torch.nn.Module):
        def forward(self, x):
            z = torch.fft.rfft(x)
            return z.angle().cos(), torch.atan2(z.imag, z.real).sin().abs() > 2

    torch.manual_seed(0)
    plan = taper_frontend.export(Phase(), (torch.randn(5, 37),))
    assert plan.metadata["verified"]["trials"] == 3
