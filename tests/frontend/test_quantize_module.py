"""Quantized modules: they run in torch, export with products of bytes, and refuse bad data."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
import taper_runtime
from taper_frontend import ExportError, QuantizationConfig, quantize
from taper_frontend.quantizing.observers import Observer
from taper_runtime.machine.limits import typical
from taper_runtime.plan import byte_products
from taper_runtime.reports.report import describe_quantized


class Text(nn.Module):
    """An encoder whose layers torch computes at once if it may, and a head."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        return self.head(self.encoder(x))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.each = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.wide = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.wide(torch.relu(self.each(x)))).mean((2, 3)))


MODELS = {"text": (Text, (2, 6, 32)), "image": (Image, (1, 3, 12, 12))}


def made(name):
    torch.manual_seed(1)
    model, shape = MODELS[name]
    return model().eval(), [torch.randn(shape) for _ in range(4)]


def apart(a, b):
    return float((a - b).norm() / b.norm())


def every(activations, **options):
    """Quantize also what is predicted to be slower so."""
    return QuantizationConfig(activations=activations, all_layers=True, **options)


#: For each model and config the largest relative error, and how many products multiply bytes.
CASES = [
    ("text", every("dynamic"), 0.02, {"MATMUL": 3}),
    ("text", every("static"), 0.05, {"MATMUL": 3}),
    ("text", every("static", observer="percentile"), 0.05, {"MATMUL": 3}),
    ("image", every("dynamic"), 0.02, {"MATMUL": 1}),
    ("image", every("static"), 0.02, {"CONV": 3, "MATMUL": 1}),
    ("image", every("static", observer="mse"), 0.02, {"CONV": 3, "MATMUL": 1}),
    ("image", every("static", reduce_range=True), 0.04, {"CONV": 3, "MATMUL": 1}),
    ("text", "int4.zeros", 0.3, {}),
    ("text", "float16", 1e-3, {}),
    ("image", "bfloat16", 1e-2, {}),
]


@pytest.mark.filterwarnings("ignore:.*stored as integers and decoded")
@pytest.mark.parametrize(("model", "config", "error", "counts"), CASES)
def test_torch_and_the_plan_compute_the_same(model, config, error, counts):
    module, batches = made(model)
    x = batches[0]
    small = quantize(module, config, batches)
    with torch.no_grad():
        want, got = module(x), small(x)
    assert 0 < apart(got, want) < error
    plan = taper_frontend.export(small, (x,), verify="outputs")
    found = Counter(node.op for node in plan.nodes if node.attrs.get("accumulate") == "int32")
    assert found == counts
    (y,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
    # a sum that is rounded otherwise may fall on the other side of a step
    assert apart(torch.from_numpy(y), got) < (1e-5 if model == "image" else 2e-3)


class Slow(nn.Module):
    """A convolution that is faster in Winograd's form than with bytes, and a product that is not.

    That is so where bytes have no instruction of their own, as on AVX2.
    """

    def __init__(self):
        super().__init__()
        self.square = nn.Conv2d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 512)

    def forward(self, x):
        return self.head(torch.relu(self.square(x)).mean((2, 3)))


@pytest.fixture
def on_avx2(monkeypatch):
    monkeypatch.setattr(byte_products, "typical", lambda isa: typical("avx2"))


def test_a_layer_that_bytes_make_slower_stays_float32(on_avx2):
    torch.manual_seed(0)
    module, x = Slow().eval(), torch.randn(1, 64, 28, 28)
    small = quantize(module, "int8_static", [x])
    assert small.square is not module.square
    assert isinstance(small.square, nn.Conv2d)
    plan = taper_frontend.export(small, (x,))
    found = [node.op for node in plan.nodes if node.attrs.get("accumulate")]
    assert found == ["MATMUL"]
    square, head = plan.metadata["quantized"]["predictions"]
    assert (square["name"], square["computes"]) == ("square", "float32")
    assert square["int8_us"] > square["float32_us"]
    assert (head["name"], head["computes"]) == ("head", "int8")
    assert head["int8_us"] < head["float32_us"]
    assert f"left in float32: square, predicted {square['float32_us']:.1f} us" in "\n".join(
        describe_quantized(plan)
    )


def test_all_layers_are_quantized_where_that_is_asked_for(on_avx2):
    torch.manual_seed(0)
    module, x = Slow().eval(), torch.randn(1, 64, 28, 28)
    plan = taper_frontend.export(quantize(module, every("static"), [x]), (x,))
    found = [node for node in plan.nodes if node.attrs.get("accumulate")]
    assert [node.op for node in found] == ["CONV", "MATMUL"]
    assert {each["computes"] for each in plan.metadata["quantized"]["predictions"]} == {"int8"}
    assert f"slower with bytes than with floats: {found[0].output}," in "\n".join(
        describe_quantized(plan)
    )


def test_seven_bits_have_a_rate_of_their_own(on_avx2):
    torch.manual_seed(0)
    module, x = Slow().eval(), torch.randn(1, 64, 28, 28)
    told = []
    for reduce_range in (False, True):
        small = quantize(module, every("static", reduce_range=reduce_range), [x])
        plan = taper_frontend.export(small, (x,), verify=False)
        square, _ = plan.metadata["quantized"]["predictions"]
        slower = byte_products.slower_products(plan)
        assert slower or reduce_range, "products of seven bits may not be slower than floats"
        for _, times in slower[:1]:
            assert round(times.of_bytes / 1e3, 2) == square["int8_us"]
        told.append(square["int8_us"])
    assert told[1] < told[0]


def test_depthwise_bytes_are_widened_whatever_their_bits(on_avx2):
    shapes = (1, 30, 30, 64), (3, 3, 1, 64), (1, 28, 28, 64)
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1)}
    attrs["groups"] = 64
    times = [
        byte_products.product_times("CONV", *shapes, attrs, seven_bits=seven).of_bytes
        for seven in (False, True)
    ]
    assert times[0] == times[1]


def test_an_export_quantizes_activations():
    module, batches = made("text")
    plan = taper_frontend.export(module, (batches[0],), quantize=every("dynamic"))
    assert any(node.attrs.get("accumulate") for node in plan.nodes)
    (told,) = plan.metadata["quantized"]["distance"].values()
    with torch.no_grad():
        want = module(batches[0])
    (y,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: batches[0].numpy()})
    assert told["relative_error"] == pytest.approx(apart(torch.from_numpy(y), want), rel=0.01)
    with pytest.raises(ExportError, match="quantize: expected no 'static' activations"):
        taper_frontend.export(module, (batches[0],), quantize="int8_static")


def trained():
    """A network that has learned a function of inputs that depend on each other."""
    torch.manual_seed(0)
    mix = torch.randn(16, 64)

    def batch():
        z = torch.randn(256, 16)
        x = torch.tanh(z @ mix) + 0.1 * torch.randn(256, 64)
        return x, torch.sin(z[:, :8]) * z[:, 8:]

    layers = nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8)
    module = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    for _ in range(120):
        x, y = batch()
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()
    return module.eval(), batch


def test_a_correction_with_data_loses_less():
    module, batch = trained()
    seen, (x, _) = [batch()[0] for _ in range(6)], batch()
    with torch.no_grad():
        want = module(x)
        for scheme in ("int4", "int4.64.zeros"):
            plain, corrected = (
                apart(quantize(module, QuantizationConfig(scheme, correction=on), seen)(x), want)
                for on in (False, True)
            )
            assert corrected < 0.8 * plain


def test_a_correction_of_numbers_with_offsets_loses_less():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 24)).eval()
    mix = torch.randn(40, 512)
    *seen, x = (torch.randn(256, 40) @ mix + 0.3 * torch.randn(256, 512) for _ in range(5))
    plain, corrected = (
        quantize(module, QuantizationConfig("int4.offsets", correction=on), seen)
        for on in (False, True)
    )
    with torch.no_grad():
        want, got = module(x), corrected(x)
        assert apart(got, want) < 0.6 * apart(plain(x), want)
    plan = taper_frontend.export(corrected, (x,))
    assert "blocks.q4k.32.float16.offsets" in {spec.format for spec in plan.tensors.values()}
    (y,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
    assert apart(torch.from_numpy(y), got) < 1e-5


def test_the_module_is_not_changed():
    module, batches = made("image")
    before = {name: x.clone() for name, x in module.state_dict().items()}
    quantize(module, "int8_static", batches)
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert not any(m._forward_pre_hooks for m in module.modules())


def test_layers_are_left_out_by_name():
    module, batches = made("image")
    config = QuantizationConfig(activations="static", layers={"first.weight": "float32"})
    small = quantize(module, config, batches)
    assert type(small.first) is nn.Conv2d
    assert type(small.wide) is not nn.Conv2d


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.used(x)


def test_bad_calibration_is_refused_by_layer():
    module, x = Unused().eval(), torch.randn(2, 8)
    nan = torch.full((2, 8), torch.nan)
    with pytest.raises(ExportError, match="expected data for activations='static', got None"):
        quantize(module, "int8_static")
    with pytest.raises(ExportError, match="expected at least one batch"):
        quantize(module, "int8_static", [])
    with pytest.raises(ExportError, match="got none at layer 'other'"):
        quantize(module, "int8_static", [x])
    for data, message in (
        ([x, x[:, 1:]], "got number 1, for which it raised RuntimeError: mat1 and mat2"),
        ("data", "expected an iterable of batches, got str"),
        (5, "expected an iterable of batches, got int"),
    ):
        with pytest.raises(ExportError, match=f"calibration: .*{message}"):
            quantize(module, "int8_static", data)
    for config in ("int8_static", QuantizationConfig("int4.8")):
        with pytest.raises(ExportError, match="expected finite numbers at layer 'used'"):
            quantize(module, config, [x, nan])


def test_what_cannot_be_quantized_is_refused_by_layer():
    wide = nn.Sequential(nn.Linear(65800, 2, bias=False)).eval()
    with pytest.raises(ExportError, match=r"weight '0\.weight': expected sums of at most 65793"):
        quantize(wide, "int8_dynamic")
    odd = nn.Sequential(nn.Linear(20, 4)).eval()
    for data in (None, [torch.randn(2, 20)]):
        with pytest.raises(ExportError, match=r"weight '0\.weight': expected groups that divide"):
            quantize(odd, "int4", data)
    with pytest.raises(ExportError, match="linear layers or convolutions to quantize, got none"):
        quantize(nn.Sequential(nn.ReLU()), "int8")
    with pytest.raises(ExportError, match=r"linear layers to quantize, got none; .* convolutions"):
        quantize(nn.Sequential(nn.Conv2d(2, 2, 1)), "int8_dynamic")
    config = QuantizationConfig(activations="dynamic", layers={"0.*": "int4"})
    with pytest.raises(ExportError, match="expected 'int8' beside quantized activations"):
        quantize(nn.Sequential(nn.Linear(32, 4)), config)


@pytest.mark.parametrize("how", ["minmax", "percentile", "mse"])
def test_observers(how):
    """A range holds the numbers; all but min-max leave out one far away from the others."""
    torch.manual_seed(2)
    observer, x = Observer("x"), torch.randn(20_000)
    for part in x.chunk(10):
        observer.see(part)
    observer.see(torch.tensor([400.0]))
    low, high = observer.range(how)
    assert -6 < low < -2
    assert (high == 400) == (how == "minmax")
    assert high > 2
    kept = np.histogram(x.numpy(), [low, high])[0].sum()
    assert kept >= 0.999 * len(x)


class OwnConv(nn.Conv2d):
    """A class of its own that computes as its base does."""


class OwnForward(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 32, 1)
        self.conv = OwnConv(32, 32, 3, stride=2, groups=32)
        self.other = OwnForward(32, 2, 1)

    def forward(self, x):
        x = nn.functional.relu6(self.first(x))
        width = self.conv.kernel_size[0] // self.conv.stride[0]  # models read these
        return self.other(self.conv(nn.functional.pad(x, (width,) * 4)))


@pytest.mark.parametrize("reduce_range", [False, True])
def test_subclasses_and_padding(reduce_range):
    """A padded layer is quantized by the layer before, and its zero point takes no node."""
    torch.manual_seed(1)
    module, x = Padded().eval(), torch.randn(1, 4, 8, 8)
    small = quantize(
        module, QuantizationConfig(activations="static", reduce_range=reduce_range), [x]
    )
    plan = taper_frontend.export(small, (x,), verify="outputs")
    assert "CAT" not in {node.op for node in plan.nodes}
    bytes_ = [node for node in plan.nodes if node.attrs.get("accumulate") == "int32"]
    assert [plan.tensors[node.outputs[0]].dtype for node in bytes_] == ["uint8", "float32"]
    (y,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
    with torch.no_grad():
        want = module(x)
    assert apart(torch.from_numpy(y), want) < 0.05


def test_reduced_ranges_are_of_static_activations():
    with pytest.raises(ExportError, match="reduce_range: expected activations='static'"):
        quantize(Padded().eval(), QuantizationConfig(activations="dynamic", reduce_range=True))


class Block(nn.Module):
    """Two convolutions beside the identity; a copy of the input, as padding by 0 makes."""

    def __init__(self, has_relu):
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1)
        self.relu = nn.ReLU(inplace=True)
        self.has_relu = has_relu

    def forward(self, x):
        y = self.second(self.relu(self.first(x.clone())))
        y += x
        return self.relu(y) if self.has_relu else y


class Residual(nn.Module):
    def __init__(self, has_relu):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*(Block(has_relu) for _ in range(3)))
        self.head = nn.Conv2d(16, 8, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("has_relu", [False, True])
def test_sums_between_convolutions_are_bytes(has_relu, reduce_range):
    """What a convolution reads is quantized where it is made, and the next sum reads the bytes."""
    torch.manual_seed(1)
    module, x = Residual(has_relu).eval(), torch.randn(1, 3, 20, 18)
    small = quantize(module, every("static", reduce_range=reduce_range), [x, torch.randn_like(x)])
    assert not any(each._forward_hooks for each in module.modules())
    plan = taper_frontend.export(small, (x,), verify="outputs")
    nodes = [node for node in plan.nodes if node.op in ("CONV", "MATMUL", "MAX_POOL")]
    assert [plan.tensors[node.output].dtype for node in nodes] == ["uint8"] * 8 + ["float32"]
    (y,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
    with torch.no_grad():
        assert apart(torch.from_numpy(y), small(x)) < 1e-5
        assert apart(torch.from_numpy(y), module(x)) < 0.05


class Twice(nn.Module):
    """A module that is called twice, a result that is changed in place, and one of zeros."""

    def __init__(self):
        super().__init__()
        self.norm, self.relu, self.changed = nn.BatchNorm2d(4), nn.ReLU(), nn.Identity()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(4))

    def forward(self, x):
        a, b, c, d = self.convs
        y = a(self.norm(x))
        y = b(self.relu(y)) + self.relu(x)
        z = self.changed(y * 2)
        z += 1
        return c(z) + d(torch.zeros_like(z))


def test_only_results_of_one_call_that_stay_the_same_are_quantized():
    torch.manual_seed(1)
    module, x = Twice().eval(), torch.randn(1, 4, 5, 6)
    small = quantize(module, every("static"), [x, x + 1])
    assert [name for name, each in small.named_modules() if each._forward_hooks] == ["norm"]
    with torch.no_grad():
        assert apart(small(x), module(x)) < 0.05


def test_an_observer_of_zeros_has_a_scale():
    module = nn.Sequential(nn.Linear(8, 8)).eval()
    small = quantize(module, "int8_static", [torch.zeros(2, 8)])
    torch.testing.assert_close(small(torch.zeros(2, 8)), module(torch.zeros(2, 8)))
