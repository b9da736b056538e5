"""Quantized checkpoints: each layout gives the numbers that its publisher's decoding gives."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import taper_frontend
from marks import some
from quantized_checkpoints import BLOCKS, LAYOUTS, K, N, gguf_file, gguf_weight
from taper_frontend import ExportError, load_quantized
from taper_frontend.quantized_checkpoint.gguf import read_gguf
from taper_runtime import InferenceSession
from taper_runtime.base.errors import InputError


class Model(nn.Module):
    """A layer with a bias that no quantizer touches."""

    def __init__(self, shape, dtype=torch.float32):
        super().__init__()
        self.layer = nn.Linear(K, N)
        self.layer.weight = nn.Parameter(torch.empty(shape))
        self.to("meta", dtype)

    def forward(self, x):
        return self.layer(x)


BIAS = torch.arange(N).float()


def write(folder, parts, config):
    """Write a folder that has a layer of these parts."""
    end = "layer.weight" if "_blocks" in parts else "layer."
    tensors = {end + name: tensor.contiguous() for name, tensor in parts.items()}
    save_file({**tensors, "layer.bias": BIAS}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


#: The format of a plan's weight and its bits a weight, by the layout of the checkpoint.
FORMATS = {
    "GPTQ": ("blocks.4.32.float16.zeros", 4.625),
    "GPTQ of 2 bits": ("blocks.2.32.float16.zeros", 2.5625),
    "GPTQ of 8 bits": ("blocks.8.32.float16.zeros", 8.75),
    "GPTQ, groups by importance": ("blocks.4.32.float16.zeros", 4.625),
    "AWQ": ("blocks.4.32.float16.zeros", 4.625),
    "AutoRound as GPTQ": ("blocks.4.32.float16.zeros", 4.625),
    "pack-quantized": ("blocks.4.32.bfloat16.symmetric", 4.5),
    "pack-quantized, groups by importance": ("blocks.4.32.bfloat16.symmetric", 4.5),
    "HQQ": ("blocks.u4.32.float32.offsets", 6.0),
    "int-quantized": ("blocks.8.256.bfloat16.symmetric", 8 + 16 / K),
    "int-quantized, asymmetric": ("blocks.8.256.bfloat16.zeros", 8 + 24 / K),
    "float-quantized": ("blocks.e4m3.256.float32.symmetric", 8 + 32 / K),
    "float-quantized, e5m2": ("blocks.e5m2.256.float32.symmetric", 8 + 32 / K),
    "blocks of fp8": ("blocks.e4m3.128.float32.symmetric", 8.25),
    "NVFP4 of ModelOpt": ("blocks.nvfp4.16.float32.symmetric", 4.5 + 32 / K),
    "Q4_0": ("blocks.4.32.float16.symmetric", 4.5),
    "Q4_1": ("blocks.u4.32.float16.offsets", 5.0),
    "Q5_0": ("blocks.5.32.float16.symmetric", 5.5),
    "Q8_0": ("blocks.8.32.float16.symmetric", 8.5),
    "Q4_K": ("blocks.q4k.32.float16.offsets", 4.5),
    "Q5_K": ("blocks.q5k.32.float16.offsets", 5.5),
    "Q6_K": ("blocks.q6k.16.float16.symmetric", 6.5625),
    "MXFP4": ("blocks.e2m1.32.e8m0.symmetric", 4.25),
    "MXFP4 of compressed-tensors": ("blocks.e2m1.32.e8m0.symmetric", 4.25),
}


def check_plan(kind, model, weight, name="x"):
    """Compare the plan's format, bytes and results with what the checkpoint has."""
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(0))
    plan = taper_frontend.export(model, (x,))
    (packed,) = (t for t in plan.tensors.values() if t.format != "plain")
    assert (packed.format, plan.constants[packed.name].nbytes * 8 / weight.size) == FORMATS[kind]
    (got,) = InferenceSession(plan).run(None, {name: x.numpy()})
    want = x.double().numpy() @ weight.astype(np.float64).T + BIAS.numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def same(got, want):
    assert torch.equal(got, torch.from_numpy(np.asarray(want)).to(got.dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_decoded_as_their_publishers_do(layout, tmp_path):
    parts, config, weight = LAYOUTS[layout](np.random.default_rng(1))
    folder = write(tmp_path, parts, config)
    weight = np.asarray(weight, np.float32)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = load_quantized(Model(weight.shape, dtype), folder)
        same(model.layer.weight, weight)
        same(model.layer.bias, BIAS)
        assert model.layer.weight.dtype == dtype
        assert not any(tensor.is_meta for tensor in model.state_dict().values())
        assert model.layer.parametrizations.weight.original.dtype in (torch.int8, torch.uint8)
    if layout in FORMATS and weight.ndim == 2:
        check_plan(layout, load_quantized(Model(weight.shape), folder), weight)


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_gguf_are_decoded(kind, tmp_path):
    code, packed, weight = gguf_weight(np.random.default_rng(2), kind)
    tensors = {"w": (code, (N, K), packed), "b": (0, (N,), BIAS.numpy().tobytes())}
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file(tensors))
    names = {"layer.weight": "w", "layer.bias": "b"}
    for dtype in (torch.float32, torch.float16):
        model = load_quantized(Model((N, K), dtype), path, names=names)
        same(model.layer.weight, weight)
        same(model.layer.bias, BIAS)
    check_plan(kind, load_quantized(Model((N, K)), path, names=names), weight)


@pytest.mark.parametrize(
    "layout",
    some(
        [layout for layout in LAYOUTS if layout != "MXFP4"],  # whose experts are one tensor
        LAYOUTS.keys() - {"MXFP4", "GPTQ, groups by importance", "MXFP4 of compressed-tensors"},
    ),
)
def test_experts_of_several_files_are_joined(layout, tmp_path):
    rng = np.random.default_rng(3)
    drawn = {f"experts.{e}.{part}": LAYOUTS[layout](rng) for e in range(3) for part in ("a", "b")}
    tensors = {
        f"{name}.{part}": tensor.contiguous()
        for name, (parts, _, _) in drawn.items()
        for part, tensor in parts.items()
    }
    index = {name: f"{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in ("0.safetensors", "1.safetensors"):
        held = {name: x for name, x in tensors.items() if index[name] == shard}
        save_file(held, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = next(iter(drawn.values()))[1]
    model = Model((3, 2 * N, K))
    del model.layer.bias
    names = {"layer.weight": [[f"experts.{e}.{p}.weight" for p in "ab"] for e in range(3)]}
    load_quantized(model, tmp_path, names=names, config=config)
    same(
        model.layer.weight,
        [
            np.concatenate([drawn[f"experts.{e}.{part}"][2] for part in ("a", "b")])
            for e in range(3)
        ],
    )
    with pytest.raises(ExportError, match=r"expected \[4, 64, 256\], got 3 parts of it"):
        load_quantized(Model((4, 2 * N, K)), tmp_path, names=names, config=config)
    (tmp_path / "1.safetensors").unlink()
    with pytest.raises(ExportError, match=r"1\.safetensors"):
        load_quantized(model, tmp_path, names=names, config=config)
    (tmp_path / "0.safetensors").rename(tmp_path / "1.safetensors")
    missing = next(name for name, shard in index.items() if shard == "1.safetensors")
    index = dict.fromkeys(index, "1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ExportError, match=rf"{missing}: expected it in .*1\.safetensors"):
        load_quantized(model, tmp_path, names=names, config=config)


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(N, K)
            self.layer = nn.Linear(K, N)
            self.layer.weight = self.embed.weight

    parts, config, weight = LAYOUTS["pack-quantized"](np.random.default_rng(4))
    model = load_quantized(Tied(), write(tmp_path, parts, config))
    same(model.embed.weight, weight)
    originals = [x.parametrizations.weight.original for x in (model.embed, model.layer)]
    assert originals[0] is originals[1]


def changed(parts, name, change):
    return {**parts, name: change(parts[name].clone())}


def put(value, at=(1, 2)):
    def change(tensor):
        tensor[at] = value
        return tensor

    return change


#: A layout, how a part is changed, and what the error says.
BAD = {
    "a zero scale": ("AWQ", "scales", put(0.0), r"layer\.scales: .* positive scales, got 0 "),
    "a negative scale": ("GPTQ", "scales", put(-0.1), r"layer\.scales: .* -0\.1.* at \(1, 2\)"),
    "a scale that is NaN": ("pack-quantized", "weight_scale", put(float("nan")), "_scale: .* nan"),
    "an infinite scale": ("blocks of fp8", "weight_scale_inv", put(float("inf"), 0), "_inv: .*inf"),
    "an exponent that is NaN": ("MXFP4", "_scales", put(255, (0, 1, 2)), "weight_scales: .* nan"),
    "a negative scale in float8": (
        "NVFP4", "weight_scale", lambda x: (-x.float()).to(x.dtype), "_scale: .* nonnegative"
    ),
    "a weight that is NaN": (
        "float-quantized", "weight",
        lambda x: put(float("nan"))(x.float()).to(x.dtype), r"layer\.weight: expected finite"
    ),
    "a zero point of another version": (
        "GPTQ", "qzeros", put(-1, (0, 0)), r"layer\.qzeros: expected zero points below 16, got 16"
    ),
    "columns cut off": ("AWQ", "qweight", lambda x: x[:, :-1], r"layer\.qweight: expected int32"),
    "rows cut off": ("GPTQ", "qweight", lambda x: x[:-1], r"layer\.qweight: expected int32\[32,"),
    "groups that do not divide": (
        "pack-quantized", "weight_scale", lambda x: x[:, :7], r"groups that divide 256 .* 7 groups"
    ),
    "another shape": (
        "pack-quantized", "weight_shape", put(7, 1), r"weight_shape: expected \[32, 256\], got"
    ),
    "another dtype": ("int-quantized", "weight", lambda x: x.int(), r"layer\.weight: expected int"),
    "a group that is not there": ("GPTQ", "g_idx", put(99, 5), r"layer\.g_idx: expected 256 pos"),
    "several numbers for all": (
        "NVFP4", "weight_global_scale", lambda x: x.repeat(2), "_global_scale: expected one number"
    ),
    "no elements": ("HQQ", "nbits", lambda x: x[:0], r"layer\.nbits: expected elements, got int64"),
    "no rows": ("GPTQ", "qzeros", lambda x: x[:0], r"layer\.qzeros: expected elements"),
    "zero points of other groups": (
        "int-quantized, asymmetric", "weight_zero_point", lambda x: x.repeat(1, 2),
        "_zero_point: expected one for each scale",
    ),
    "blocks cut off": (
        "blocks of fp8", "weight_scale_inv", lambda x: x[:, :1], r"scales of blocks \[16, 128\]"
    ),
    "groups of another length": (
        "NVFP4", "weight_scale", lambda x: x.repeat(1, 2), "expected 16 groups of 16 .* got 32"
    ),
    "groups along another axis": ("HQQ", "axis", put(0, 0), r"layer\.axis: expected groups along"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_parts_are_refused_by_name(case, tmp_path):
    layout, name, change, message = BAD[case]
    parts, config, weight = LAYOUTS[layout](np.random.default_rng(5))
    folder = write(tmp_path, changed(parts, name, change), config)
    with pytest.raises(ExportError, match=message):
        load_quantized(Model(weight.shape), folder)


def said(**weights):
    """What compressed-tensors says of the weights of a group of layers."""
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


@pytest.mark.parametrize(
    ("layout", "config", "message"),
    [
        ("GPTQ", {"checkpoint_format": "marlin"}, "expected a format 'gptq'.* got 'marlin'"),
        ("GPTQ", {"bits": 3}, r"\['bits'\] one of 2, 4, 8; got 3"),
        ("GPTQ", {"quant_method": "other"}, "'gptq', 'awq' or 'auto-round'.* got 'other'"),
        ("AWQ", {"version": "gemv"}, r"\['version'\] one of 'gemm'; got 'gemv'"),
        ("GPTQ", {"group_size": 64}, r"layer\.scales: expected 4 groups of 64 in a row of 256"),
        ("AWQ", {"group_size": -1}, r"layer\.scales: expected 1 groups of -1 in a row of 256"),
        ("pack-quantized", said(num_bits=8), r"_packed: expected int32\[32, 64\] of 8 bits"),
        ("pack-quantized", said(group_size=16), r"weight_scale: expected 16 groups of 16"),
        ("pack-quantized", said(symmetric=False), "weight_zero_point: expected it, since the we"),
        ("pack-quantized", said(actorder="group"), "weight_g_idx: expected it, since groups are"),
        ("int-quantized", said(symmetric=False), "weight_zero_point: expected it, since the wei"),
        ("blocks of fp8", {"weight_block_size": [8, 8]}, r"expected scales of blocks \[8, 8\]"),
    ],
)
def test_unknown_versions_are_refused(layout, config, message, tmp_path):
    parts, known, weight = LAYOUTS[layout](np.random.default_rng(6))
    folder = write(tmp_path, parts, {**known, **config})
    with pytest.raises(ExportError, match=message):
        load_quantized(Model(weight.shape), folder)


def test_what_is_missing_is_named(tmp_path):
    parts, config, weight = LAYOUTS["GPTQ"](np.random.default_rng(7))
    del parts["qzeros"]
    folder = write(tmp_path, parts, config)
    with pytest.raises(ExportError, match=r"expected the tensor 'layer\.qzeros' too, got none"):
        load_quantized(Model(weight.shape), folder)
    drawn, config, weight = LAYOUTS["GPTQ, groups by importance"](np.random.default_rng(7))
    del drawn["g_idx"]
    folder = write(tmp_path, drawn, {**config, "desc_act": True})
    with pytest.raises(ExportError, match=r"layer\.g_idx: expected it, since .*'desc_act'\] is"):
        load_quantized(Model(weight.shape), folder)
    drawn, config, weight = LAYOUTS["int-quantized"](np.random.default_rng(7))
    del drawn["weight_scale"]
    folder = write(tmp_path, drawn, config)
    with pytest.raises(ExportError, match=r"layer\.weight: expected float32\[.*got int8 numbers"):
        load_quantized(Model(weight.shape), folder)
    model = Model((N, K))
    model.other = nn.Linear(3, 2, device="meta")
    with pytest.raises(ExportError, match=r"other\.bias: expected float32\[2\], got nothing"):
        load_quantized(model, folder)
    with pytest.raises(ExportError, match=r"expected model\.safetensors\.index\.json or"):
        load_quantized(model, tmp_path.parent)
    (tmp_path / "model.safetensors").write_bytes(b"something else, a text")
    with pytest.raises(ExportError, match="safetensors"):
        load_quantized(model, tmp_path)


def test_numbers_that_would_be_rounded_are_refused(tmp_path):
    parts, config, weight = LAYOUTS["AWQ"](np.random.default_rng(8))
    folder = write(tmp_path, parts, config)
    save_file({"layer.bias": BIAS + 0.1}, folder / "more.safetensors")
    model = Model(weight.shape, torch.bfloat16)
    with pytest.raises(
        ExportError, match=r"layer\.bias: expected bfloat16\[32\], got numbers that"
    ):
        load_quantized(model, folder / "more.safetensors", names={"layer.weight": "layer.weight"})


def gguf(change=lambda data: data, **how):
    code, packed, _ = gguf_weight(np.random.default_rng(9), "Q8_0")
    return change(bytearray(gguf_file({"w": (code, (N, K), packed)}, **how)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gguf(version=1), "expected GGUF of version 2 or 3, little-endian; got version 1"),
        (gguf(lambda x: x[:-1]), r"tensor 'w': expected Q8_0\[32, 256\] up to byte .* got a file"),
        (gguf(lambda x: x[:90]), "got a file of 90 bytes"),
        (gguf(lambda x: x.replace(b"GGUF", b"GGML")), "expected a GGUF file, got one .* b'GGML'"),
        (gguf(metadata={"general.name": "b"}), "metadata 'general.name': expected it once, got it"),
        (gguf(alignment=48), "general.alignment: expected a power of 2, got 48"),
        (gguf_file({"w": (99, (N, K), b"")}), "tensor 'w': expected one of F32.* got type 99"),
        (gguf_file({"w": (8, (N, 40), b"")}), "whole blocks of 32 elements for Q8_0, got .*40"),
        (gguf_file({"w": (0, (2**62, 0), b"")}), r"tensor 'w': expected elements, got \[46.*, 0\]"),
        (gguf_file({"w": (0, (0,) * 5, b"")}), "tensor 'w': expected 1 to 4 dimensions, got 5"),
        (gguf_file({"w": (0, (2, 3), bytes(24))}), r"w: expected \[32, 256\], got F32\[2, 3\]"),
    ],
)
def test_bad_files_of_gguf_are_refused(data, message, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ExportError, match=message):
        load_quantized(Model((N, K)), path, names={"layer.weight": "w"})


def test_scales_of_gguf_are_finite(tmp_path):
    code, packed, _ = gguf_weight(np.random.default_rng(9), "Q8_0")
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file({"w": (code, (N, K), b"\xff\x7f" + packed[2:])}))
    with pytest.raises(ExportError, match=re.escape("w: expected finite scales")):
        load_quantized(Model((N, K)), path, names={"layer.weight": "w"})


def test_changed_files_of_gguf_are_read_or_refused():
    """Any bytes are refused with a message, or give numbers of the shapes that they say."""
    rng, messages = np.random.default_rng(10), []
    tensors = {kind: gguf_weight(rng, kind) for kind in BLOCKS}
    whole = gguf_file({kind: (code, (N, K), packed) for kind, (code, packed, _) in tensors.items()})
    for _ in range(2000):
        data = np.frombuffer(whole, np.uint8).copy()
        places = rng.integers(0, 600, rng.integers(1, 4))  # the header
        data[places] = rng.choice([0, 1, 2, 8, 12, 127, 128, 255], len(places))
        if rng.random() < 0.2:
            data = data[: rng.integers(0, len(data))]
        try:
            found, _ = read_gguf(data)
        except InputError as error:
            messages.append(str(error))
            continue
        for tensor in list(found.values())[:2]:
            weight = tensor.weight()
            numbers = weight if isinstance(weight, np.ndarray) else weight.decode()
            assert numbers.shape == tensor.shape
    assert 200 < len(messages) < 1900
    assert max(map(len, messages)) < 600


def gguf_layer(kind, number=2, embeds=False):
    """A layer of transformers' with blocks, and its weight."""
    from transformers.integrations.gguf import utils

    code, packed, weight = gguf_weight(np.random.default_rng(number), kind)
    layer = utils.GgufEmbedding(N, K, code) if embeds else utils.GgufLinear(K, N, code, bias=True)
    blocks = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    layer.weight = nn.Parameter(blocks.view(N, -1), requires_grad=False)
    return layer, torch.from_numpy(np.asarray(weight, np.float32))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_linear_layers_of_transformers_keep_their_blocks(kind):
    layer, weight = gguf_layer(kind)
    layer.bias = nn.Parameter(BIAS, requires_grad=False)
    check_plan(kind, nn.Sequential(layer), weight.numpy(), name="input")
    order = torch.randperm(K, generator=torch.Generator().manual_seed(0))
    layer.input_permutation = order
    x = torch.randn(2, 5, K, generator=torch.Generator().manual_seed(1))
    plan = taper_frontend.export(layer, (x,))
    (got,) = InferenceSession(plan).run(None, {"x": x.numpy()})
    want = x[..., order] @ weight.T + BIAS
    rounding = 1e-6 * (x[..., order].abs() @ weight.abs().T).max().item()
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-5, atol=rounding)


def test_a_table_of_transformers_shares_blocks_with_the_head():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.numbers = gguf_layer("Q8_0", embeds=True)
            self.head, _ = gguf_layer("Q8_0")
            self.head.weight, self.head.bias = self.table.weight, None

        def forward(self, i):
            return self.head(self.table(i))

    model, i = Language(), torch.tensor([[3, 0, 31]])
    plan = taper_frontend.export(model, (i,))
    assert [plan.tensors[name].format for name in plan.constants] == [
        "blocks.8.32.float16.symmetric"
    ]
    (got,) = InferenceSession(plan).run(None, {"i": i.numpy()})
    want = model.numbers[i] @ model.numbers.T
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-5, atol=1e-4)
    assert type(model.head).__name__ == "GgufLinear"


def test_other_layers_of_transformers_with_blocks_are_refused():
    from transformers.integrations.gguf import utils

    experts = nn.Sequential(utils.GgufExperts(2, K, K, 8, 8, nn.SiLU()))
    with pytest.raises(ExportError, match=r"layer '0': expected GgufLinear .* got GgufExperts"):
        taper_frontend.export(experts, (torch.randn(1, K),))
    layer, _ = gguf_layer("Q8_0")
    layer.ggml_type = 10
    with pytest.raises(ExportError, match=r"layer '0': expected blocks of Q4_0, .* got type 10"):
        taper_frontend.export(nn.Sequential(layer), (torch.randn(1, K),))
