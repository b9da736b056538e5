"""Quantize the weights of plans, without and within an export."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
import taper_runtime
from models import seeded
from taper_frontend import ExportError, QuantizationConfig, quantize_plan, sensitivity
from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.quantization.rounding import round_matrix
from taper_frontend.compiler.quantization.schemes import parse_scheme
from taper_runtime.native import _kernels

pytestmark = pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")


class Text(nn.Module):
    """A table that is the head, too, and a block of attention with merged products."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, 40)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return torch.relu(self.head(self.layer(self.table(ids))))


class Branch(nn.Module):
    """A weight within control flow."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.linear, lambda x: x[:, :16].sin(), (x,))


class Image(nn.Module):
    """Convolutions: an ordinary one, one with Winograd's tiles, depthwise and transposed ones."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 32, 3, padding=1)
        self.each = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.up = nn.ConvTranspose2d(32, 32, 2, 2)
        self.out = nn.Linear(32, 24)

    def forward(self, x):
        x = self.each(torch.relu(self.wide(torch.relu(self.first(x)))))
        return self.out(self.up(x).mean((2, 3)))


MODELS = {
    "text": (Text, lambda: torch.arange(12).reshape(2, 6)),
    "image": (Image, lambda: torch.randn(1, 3, 24, 24)),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Each model's plan with plain weights, as a file has it, and the module."""
    found = {}
    for name, (model, example) in MODELS.items():
        torch.manual_seed(3)
        module, x = seeded(model).eval(), example()
        path = tmp_path_factory.mktemp(name) / "plain.taper"
        taper_frontend.export(module, (x,), packing="at_open", verify=False).save(path)
        with torch.no_grad():
            found[name] = taper_runtime.load(path), module, x, module(x).numpy()
    return found


def layers(plan):
    return {layer["name"]: layer for layer in plan.metadata["quantized"]["layers"]}


def run(plan, x):
    return taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})


def stored(plan):
    return sum(array.nbytes for array in (*plan.constants.values(), *plan.originals.values()))


#: The relative error of the results that each scheme may make, and its bytes beside float32's.
SCHEMES = {
    "int8": (0.02, 0.4),
    "int4": (0.15, 0.4),
    "int4.zeros": (0.15, 0.4),
    "int2.zeros": (0.8, 0.4),
    "float16": (2e-3, 0.6),
    "bfloat16": (2e-2, 0.6),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_a_plan_gets_smaller_and_stays_near(model, scheme, plans, tmp_path):
    plan, _, x, want = plans[model]
    error, share = SCHEMES[scheme]
    small = quantize_plan(plan, scheme)
    small.save(tmp_path / "small.taper")
    loaded = taper_runtime.load(tmp_path / "small.taper")
    assert stored(loaded) < share * stored(plan)
    (got,) = run(loaded, x)
    np.testing.assert_array_equal(got, run(small, x)[0])
    apart = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < apart < error
    (told,) = loaded.metadata["quantized"]["distance"].values()
    assert told["relative_error"] == pytest.approx(apart, rel=0.01)
    assert all(each["scheme"] != "float32" for each in layers(loaded).values())
    assert all(each["after"] < each["before"] for each in layers(loaded).values())


@pytest.mark.parametrize("name", ["int8", "int4", "float16"])
def test_results_are_those_of_the_rounded_weights(name, plans):
    plan, module, x, _ = plans["image"]
    small = quantize_plan(plan, QuantizationConfig(name, layers={"up.*": "float32"}))
    twin = copy.deepcopy(module)
    for layer in (twin.first, twin.wide, twin.each, twin.out):
        scheme = parse_scheme("int8" if name == "int4" and layer is not twin.out else name)
        weight = layer.weight.data
        matrix = weight.reshape(len(weight), -1).T.numpy()
        if name == "float16":
            layer.weight.data = weight.half().float()
            continue
        found = round_matrix(matrix, scheme)
        scales = np.repeat(found.scales.astype(np.float32), scheme.group or len(matrix), 0)
        layer.weight.data = torch.from_numpy((found.q * scales).T.copy()).reshape(weight.shape)
    want = twin(x).detach().numpy()
    np.testing.assert_allclose(run(small, x)[0], want, rtol=1e-4, atol=1e-5)


def test_a_weight_of_packed_floats_is_quantized_too(plans):
    _, module, x, _ = plans["text"]
    packed = taper_frontend.export(module, (x,))
    a, b = (quantize_plan(plan, "int4") for plan in (packed, plans["text"][0]))
    np.testing.assert_array_equal(run(a, x)[0], run(b, x)[0])


def test_offsets_where_groups_of_groups_divide_the_rows():
    """A module with these numbers and a quantized plan compute the same; 4.5 bits a weight."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 48), nn.ReLU(), nn.Linear(48, 32)).eval()
    x = torch.randn(3, 512)
    options = QuantizationConfig("int4.offsets", layers={"2.*": "float32"})
    plain = taper_frontend.export(module, (x,), packing="at_open")
    small = quantize_plan(plain, options)
    layer = layers(small)["0.weight"]
    assert layer["scheme"] == "int4.offsets"
    assert layer["after"] == 512 * 48 * 4.5 / 8
    twin = taper_frontend.quantize(module, options)
    again = taper_frontend.export(twin, (x,))
    formats = {spec.format for spec in again.tensors.values() if spec.format.startswith("blocks.")}
    assert formats == {"blocks.q4k.32.float16.offsets"}
    np.testing.assert_array_equal(run(again, x)[0], run(small, x)[0])
    want = twin(x).detach().numpy()
    np.testing.assert_allclose(run(small, x)[0], want, rtol=1e-4, atol=1e-5)


def test_other_rows_get_zero_points_in_place_of_offsets():
    module = nn.Sequential(nn.Linear(320, 48), nn.ReLU(), nn.Linear(48, 256)).eval()
    x = torch.randn(3, 320)
    plain = taper_frontend.export(module, (x,), packing="at_open")
    with pytest.raises(
        ExportError, match=r"weight '2\.weight': expected groups that divide its 48"
    ):
        quantize_plan(plain, "int4.offsets")
    small = quantize_plan(plain, QuantizationConfig("int4.offsets", layers={"2.*": "int8"}))
    assert layers(small)["0.weight"]["scheme"] == "int4.zeros"


def test_a_table_keeps_groups_of_8_bits(plans):
    """It is stored once, for the lookup and for the head, with a scale for each 16 numbers."""
    plan, _, x, want = plans["text"]
    small, coarse = (
        quantize_plan(plan, QuantizationConfig("float32", layers={"table.*": s, "head.weight": s}))
        for s in ("int8.16", "int8")
    )
    (name,) = (name for name in layers(small) if "table.weight" in name)
    layer = layers(small)[name]
    assert layer["scheme"] == "int8.16"
    assert layer["after"] == 32 * 48 * 9 / 8  # 40 columns are three panels
    assert layer["error"] < layers(coarse)[name]["error"]
    formats = [spec.format for spec in small.tensors.values() if spec.format != "plain"]
    assert formats.count("blocks.8.16.float16.symmetric") == 1
    apart = (np.linalg.norm(run(each, x)[0] - want) for each in (small, coarse))
    assert 0 < next(apart) < next(apart)
    assert layers(quantize_plan(plan, "int4"))[name]["scheme"] == "int8"


def test_tiles_are_left_with_a_reason(plans):
    _, module, x, _ = plans["image"]
    small = quantize_plan(taper_frontend.export(module, (x,)), "int8")
    wide = layers(small)["wide.weight"]
    assert wide["scheme"] == "float32"
    assert "packing='at_open'" in wide["reason"]


@pytest.mark.parametrize("packing", ["stored", "at_open"])
def test_an_export_quantizes(packing, plans):
    plan, module, x, _ = plans["image"]
    small = taper_frontend.export(module, (x,), quantize="int8", packing=packing)
    np.testing.assert_array_equal(run(small, x)[0], run(quantize_plan(plan), x)[0])


def test_layers_have_their_own_schemes(plans):
    plan, _, _, _ = plans["text"]
    options = QuantizationConfig("int4", layers={"table.*": "float32", "layer.linear1*": "int8.32"})
    schemes = {name: each["scheme"] for name, each in layers(quantize_plan(plan, options)).items()}
    assert schemes.pop("layer.linear1.weight") == "int8.32"
    (table,) = [name for name in schemes if "table.weight" in name]
    assert schemes.pop(table) == "float32"
    assert set(schemes.values()) == {"int4"}


def test_a_budget_of_bytes_is_kept_and_used(plans):
    plan, _, _, _ = plans["text"]
    sizes = [
        sum(each["after"] for each in layers(quantize_plan(plan, scheme)).values())
        for scheme in ("int4", "int8")
    ]
    budget = sum(sizes) // 2
    found = layers(quantize_plan(plan, QuantizationConfig(max_bytes=budget)))
    used = sum(each["after"] for each in found.values())
    assert sizes[0] < used <= budget
    assert len({each["scheme"] for each in found.values()}) > 1
    with pytest.raises(ExportError, match="max_bytes: expected at least"):
        quantize_plan(plan, QuantizationConfig(max_bytes=100))


def test_a_budget_of_error_is_kept(plans):
    plan, _, _, _ = plans["text"]
    errors = [each["error"] for each in layers(quantize_plan(plan, "int4")).values()]
    limit = sorted(errors)[len(errors) // 2]
    found = layers(quantize_plan(plan, QuantizationConfig(max_error=limit))).values()
    assert all(each["error"] <= limit for each in found)
    assert {"int4", "int8"} <= {each["scheme"] for each in found}


def test_sensitivity_ranks_the_weights(plans):
    plan, _, x, want = plans["image"]
    found = sensitivity(plan, "int8")
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert set(found) == {f"{name}.weight" for name in ("first", "wide", "each", "up", "out")}
    name = next(iter(found))
    (got,) = run(quantize_plan(plan, QuantizationConfig("float32", layers={name: "int8"})), x)
    assert found[name] == pytest.approx(np.linalg.norm(got - want) / np.linalg.norm(want), rel=1e-2)


def test_all_layers_that_cannot_be_rounded_are_named():
    module = nn.Sequential(nn.Linear(20, 24), nn.Linear(24, 20), nn.Linear(20, 64)).eval()
    plan = taper_frontend.export(module, (torch.randn(2, 20),))
    with pytest.raises(ExportError) as caught:
        quantize_plan(plan, "int4")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        f"weight '{index}.weight'" for index in range(3)
    ]


def test_rows_that_are_no_multiple_of_8_are_decoded_at_open():
    plan = taper_frontend.export(nn.Linear(20, 16).eval(), (torch.randn(2, 20),))
    small = quantize_plan(plan, "int8")
    (layer,) = layers(small).values()
    assert layer["arithmetic"] == "float32, decoded when a session opens"
    assert stored(small) == 20 * 16 + 4 * 16 + 4 * 16


def test_weights_in_control_flow_are_quantized():
    x = torch.ones(2, 32)
    plan = quantize_plan(taper_frontend.export(Branch().eval(), (x,), verify=False), "int4")
    assert layers(plan)["linear.weight"]["scheme"] == "int4"
    assert stored(plan) == 16 * 32 * 4.5 / 8 + 4 * 16


def test_what_has_no_fixed_weights_is_refused(plans):
    _, module, x, _ = plans["image"]
    with pytest.raises(ExportError, match="weights are fixed"):
        quantize_plan(taper_frontend.export(module, (x,), weights="replaceable"))
    with pytest.raises(ExportError, match="quantize: expected None beside weights='replaceable'"):
        taper_frontend.export(module, (x,), weights="replaceable", quantize="int8")
    with pytest.raises(ExportError, match=r"quantize the module with taper_frontend\.quantize"):
        quantize_plan(plans["image"][0], "int8_dynamic")
    with pytest.raises(ExportError, match=r"matches none of first\.weight"):
        quantize_plan(plans["image"][0], QuantizationConfig(layers={"frist.*": "int4"}))


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_activations_are_rounded_in_groups(plans, scheme):
    """The integers are those of the scheme; numpy rounds as QUANTIZE and DEQUANTIZE do."""
    plan, _, x, _ = plans["text"]
    grouped = quantize_plan(plan, f"{scheme}_grouped")
    weights = [spec for spec in grouped.tensors.values() if spec.format.startswith("blocks.")]
    rounding = [node for node in grouped.nodes if node.attrs.get("activation_group")]
    assert len(rounding) >= len(weights) > 0
    assert {node.attrs["activation_group"] for node in rounding} == {32, 64}
    plain = quantize_plan(plan, scheme)
    apart = np.abs(run(grouped, x)[0] - run(plain, x)[0]).max() / np.abs(run(plain, x)[0]).max()
    assert 1e-4 < apart < 0.05
    texts = {layer["arithmetic"] for layer in layers(grouped).values()}
    assert any("activations rounded to int8 in groups of 32" in text for text in texts)
    again = quantize_plan(plain, QuantizationConfig("float32", activations="grouped"))
    np.testing.assert_array_equal(run(again, x)[0], run(grouped, x)[0])


@pytest.mark.parametrize("scheme", ["int4", "int4.128.zeros", "int8.32", "int8.64.zeros"])
@pytest.mark.parametrize("rows", [1, 6, 13])
def test_every_instruction_gives_grouped_activations_the_same_bits(scheme, rows):
    """Whole panels and a part of one; those of a level with fused multiply-adds."""
    torch.manual_seed(0)
    x = torch.randn(rows, 128)
    config = QuantizationConfig(scheme, activations="grouped")
    plan = taper_frontend.export(nn.Linear(128, 56).eval(), (x,), verify=False, quantize=config)
    found, levels = set(), {"avx2", "avx512"} & set(_kernels.available_isas())
    for isa in levels:
        names = {kernel.name for kernel in _kernels.find_kernels("MATMUL", isa)}
        for name in {"f32_matmul", "f32_matmul_vnni"} & names:
            options = taper_runtime.SessionOptions()
            options.isa, options.kernels = isa, {"MATMUL": name}
            try:
                session = taper_runtime.InferenceSession(plan, options)
            except taper_runtime.UnsupportedOpError:  # the CPU has not the instruction
                continue
            found.add(session.run(None, {session.plan.inputs[0]: x.numpy()})[0].tobytes())
    assert len(found) == bool(levels)


def test_every_instruction_gives_bfloat16_activations_the_same_bits():
    """torch's product of the same numbers is the reference."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(128, 58), nn.ReLU(), nn.Linear(58, 40)).eval()
    x = torch.randn(13, 128)
    plan = taper_frontend.export(module, (x,), quantize="bfloat16_rounded")
    assert [node.attrs["activation_dtype"] for node in plan.nodes] == ["bfloat16"] * 2
    assert {layer["arithmetic"] for layer in layers(plan).values()} == {
        "bfloat16 x activations rounded to bfloat16, float32 sums"
    }
    want = x
    with torch.no_grad():
        for i in (0, 2):
            exact = (want.bfloat16().double() @ module[i].weight.bfloat16().double().T).float()
            want = torch.relu(exact + module[i].bias) if i == 0 else exact + module[i].bias
    found = set()
    for isa in _kernels.available_isas():
        for name in ("f32_matmul", "f32_matmul_bf16"):
            options = taper_runtime.SessionOptions()
            options.isa, options.kernels = isa, {"MATMUL": name}
            try:
                session = taper_runtime.InferenceSession(plan, options)
            except (taper_runtime.InputError, taper_runtime.UnsupportedOpError):
                assert name != "f32_matmul"  # neither the level nor the CPU has the other
                continue
            (got,) = session.run(None, {session.plan.inputs[0]: x.numpy()})
            np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
            found.add(got.tobytes())
    assert len(found) == 1
    with pytest.raises(ExportError, match="for a module, got 'rounded'"):
        taper_frontend.quantize(module, "bfloat16_rounded")


def test_grouped_activations_are_those_of_a_plan():
    with pytest.raises(ExportError, match="for a module, got 'grouped'"):
        taper_frontend.quantize(nn.Linear(32, 16).eval(), "int4_grouped")
    x = torch.randn(2, 32)
    plan = taper_frontend.export(nn.Linear(32, 16).eval(), (x,), quantize="int4_grouped")
    (node,) = plan.nodes
    assert node.attrs["activation_group"] == 32
    assert "groups of 32" in taper_runtime.plan.arithmetic.quantized_nodes(plan)[0].arithmetic


def test_quantized_weights_stay_as_they_are(plans):
    plan, _, x, _ = plans["text"]
    once = quantize_plan(plan, "int4")
    again = quantize_plan(once, "int8")
    assert not layers(again)  # not even the scales of a table
    np.testing.assert_array_equal(run(again, x)[0], run(once, x)[0])


@pytest.mark.parametrize("scheme", ["int8", "bfloat16"])
def test_a_table_of_half_precision_gives_rows_of_half_precision(scheme):
    table, indices = nn.Embedding(40, 32).half(), torch.arange(40)
    plan = quantize_plan(taper_frontend.export(table, (indices,)), scheme)
    (rows,) = run(plan, indices)
    assert rows.dtype == np.float16
    apart = np.abs(rows - table.weight.detach().numpy()).max()
    assert 0 < apart < 0.05


def test_the_report_has_the_error_of_each_weight(tmp_path):
    """On the graph, and beside bytes and values before and after."""
    from taper_runtime.cli import main

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    plain, small, page = tmp_path / "plain.taper", tmp_path / "small.taper", tmp_path / "r.html"
    taper_frontend.export(model, (torch.randn(2, 32),), packing="at_open").save(plain)
    arguments = ["--scheme", "int4", "--layer", "2.*=int8", "--report", str(page)]
    measured = ["--runs", "2", "--threads", "1"]
    assert main(["quantize", str(plain), "-o", str(small), *arguments, *measured]) == 0
    (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text())
    sections = {section["title"]: section for section in json.loads(text)["sections"]}
    rows = {row[0]: row for row in sections["Quantized weights"]["rows"]}
    layers = taper_runtime.load(small).metadata["quantized"]["layers"]
    for layer in layers:
        row = rows[layer["name"]]
        assert row[2:5] == [layer["scheme"], layer["before"], layer["after"]]
        assert row[6] == [layer["error"]]
        assert sum(row[7]) == sum(row[8]) == layer["before"] // 4
    errors = [f"{layer['scheme']}, error {layer['error']:.1%}" for layer in layers]
    graph = [node["subtitle"] for node in sections["Graph"]["nodes"] if node["title"] == "MATMUL"]
    assert graph == errors
    summary = dict(sections["Summary"]["rows"])
    assert "before quantization" in summary["time"]
    before = 4 * (32 * 64 + 64 + 64 * 16 + 8)  # in panels of 16 columns
    assert f"before quantization {before:,} bytes" in summary["weights"]
    assert "cosine" in summary["distance of output"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 16), (8, 16)])
def test_halves_of_weights_that_a_plan_reads_plain(shape, transposed):
    rng = np.random.default_rng(0)
    weight = np.asarray(rng.standard_normal(shape), np.float32)
    k = shape[-1] if transposed else shape[-2]
    graph = Graph()
    x = graph.add_input("x", "float32", (3, 5, k))
    w = graph.add_constant("w", weight)
    graph.set_outputs([graph.add_node("MATMUL", [x, w], {"transpose_b": transposed})])
    plan = quantize_plan(make_plan(graph), "float16")
    array = np.asarray(rng.standard_normal((3, 5, k)), np.float32)
    (got,) = taper_runtime.InferenceSession(plan).run(None, {"x": array})
    half = weight.astype(np.float16).astype(np.float32)
    want = array @ (half.swapaxes(-1, -2) if transposed else half)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    (layer,) = plan.metadata["quantized"]["layers"]
    assert layer["scheme"] == "float16"
