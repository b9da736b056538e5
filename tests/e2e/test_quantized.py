"""Quantized graphs from every source: torch's results, and the bits of each weight."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines quantized_decomposed)

import blocks_of
import taper_frontend
from taper_frontend import ExportError, ExportWarning, UnsupportedNodesError
from taper_runtime import InferenceSession, SessionOptions, formats
from taper_runtime.ops.opdef import TensorType
from torchao_ops import ops as torchao

decomposed = torch.ops.quantized_decomposed
COLUMNS, K = 96, 256


class Weight(nn.Module):
    """A layer over integers [N, K] with scales [N, K/group]; `decode` makes a weight of them."""

    def __init__(self, decode, *, bits, group=K, scales=torch.float32, zeros=None):
        super().__init__()
        g = torch.Generator().manual_seed(bits + group)
        low, high = (0, 2**bits) if zeros == torch.uint8 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        dtype = torch.uint8 if low == 0 else torch.int8
        shape = COLUMNS, K // group
        self.register_buffer("q", torch.randint(low, high, (COLUMNS, K), generator=g).to(dtype))
        self.register_buffer("scales", (torch.rand(shape, generator=g) / 50 + 0.001).to(scales))
        points = torch.randint(low, high, shape, generator=g) if zeros else torch.zeros(shape)
        self.register_buffer("zeros", points.to(zeros or torch.int8))
        self.register_buffer("bias", torch.rand(COLUMNS, generator=g))
        self.decode, self.group = decode, group

    def forward(self, x):
        return torch.nn.functional.linear(x, self.decode(self), self.bias)


def affine(m):
    return torchao.dequantize_affine(m.q, [1, m.group], m.scales, m.zeros, m.q.dtype, -128, 127)


def affine_16_bit(m):
    block, dtype = [1, m.group], torch.bfloat16
    return torchao.dequantize_affine(m.q, block, m.scales, m.zeros, m.q.dtype, -8, 7, dtype).float()


def grouped(m):
    scales = m.scales, m.zeros.int()
    return decomposed.dequantize_per_channel_group(
        m.q, *scales, -8, 7, m.q.dtype, m.group, torch.float32
    )


def per_channel(m):
    scales = m.scales[:, 0], m.zeros[:, 0].long()
    return decomposed.dequantize_per_channel(m.q, *scales, 0, -127, 127, torch.int8)


def written_out(m):
    q = m.q.float().view(*m.scales.shape, -1)
    return ((q - m.zeros[..., None].float()) * m.scales[..., None].float()).view(m.q.shape)


def repeated(m):
    return m.q.float() * m.scales.float().repeat_interleave(m.group, 1)


def from_packed_bytes(m):
    """Nibbles as checkpoints have them: two in a byte."""
    packed = ((m.q[:, ::2] + 8) | ((m.q[:, 1::2] + 8) << 4)).to(torch.uint8)
    q = torch.stack([packed & 15, packed >> 4], -1).view(*m.scales.shape, -1)
    return ((q.float() - 8) * m.scales[..., None].float()).view(m.q.shape)


class Blocks(nn.Module):
    """A layer over what a format of blocks takes, as a model computes with it."""

    def __init__(self, name):
        super().__init__()
        _, self.kind, self.size, self.scales, self.shift = name.split(".")
        drawn = blocks_of.draw(name, np.random.default_rng(7), K, COLUMNS)
        self.many = len(drawn)
        for i, part in enumerate(drawn):
            part = torch.from_numpy(np.ascontiguousarray(part.T))  # [N, K], as in checkpoints
            part = part.view(torch.bfloat16) if part.dtype == torch.uint16 else part
            self.register_buffer(f"part{i}", part)
        table = blocks_of.KINDS[self.kind][2]
        if table is not None:
            self.register_buffer("table", torch.from_numpy(table).float())
        self.register_buffer("powers", 2.0 ** (torch.arange(256).double() - 127).float())
        self.register_buffer("floats", torch.from_numpy(blocks_of.E4M3).float())

    def common(self, i, inner):
        """Scales or offsets number i, [N, K/size, 1]."""
        outer = getattr(self, f"part{i}")
        if self.scales == "e8m0":
            return self.powers[outer.long()][..., None]
        outer = outer.float()[..., None]
        if self.kind not in blocks_of.FACTORS:
            return outer
        codes = getattr(self, f"part{inner}")
        factors = self.floats[codes.long()] if self.kind == "nvfp4" else codes.float()
        return (outer * factors.view(*outer.shape[:2], -1)).view(COLUMNS, -1, 1)

    def weight(self):
        levels = self.part0
        levels = self.table[levels.long()] if hasattr(self, "table") else levels.float()
        levels = levels.view(COLUMNS, -1, int(self.size))
        if self.shift == "zeros":
            levels = levels - self.part2.float()[..., None]
        w = levels * self.common(1, self.many - (2 if self.shift == "offsets" else 1))
        if self.shift == "offsets":
            w = w + self.common(2, self.many - 1)
        return w.view(COLUMNS, K)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight())


@pytest.mark.parametrize("name", formats.family("blocks").examples)
def test_each_format_is_found_in_the_steps_of_a_model(name):
    model = Blocks(name).eval()
    x = torch.randn(3, K, generator=torch.Generator().manual_seed(2))
    plan = taper_frontend.export(model, (x,))
    assert product(plan) == name
    options = SessionOptions()
    options.strict_native = True
    (y,) = InferenceSession(plan, options).run(None, {"x": x.numpy()})
    want = (x.double() @ model.weight().double().T).numpy()
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * abs(want).max())
    stored = plan.constants[plan.nodes[-1].inputs[1]]
    got = formats.decode(stored, TensorType("float32", (K, COLUMNS), name))
    if not name.endswith("float32.zeros"):  # zero * scale has more bits than float32
        np.testing.assert_array_equal(got, model.weight().numpy().T)


class Float8(nn.Module):
    """A layer whose weight is a parameter of 8-bit floats, as torchao's `Float8Tensor` has it."""

    def __init__(self, dtype, groups=1):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        q = (torch.randn(COLUMNS, K, generator=g) * 40).to(dtype)
        self.q = nn.Parameter(q, requires_grad=False)
        self.register_buffer("scales", torch.rand(COLUMNS, groups, generator=g) / 50 + 0.001)

    def weight(self):
        return (self.q.float().view(*self.scales.shape, -1) * self.scales[..., None]).view(-1, K)

    def forward(self, x):
        return (
            x @ (self.q.t().float() * self.scales.t())
            if self.scales.shape[1] == 1
            else (nn.functional.linear(x, self.weight()))
        )


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.mark.parametrize(
    ("dtype", "groups", "name"),
    [
        (E4M3, 1, "blocks.e4m3.256.float32.symmetric"),
        (E4M3, 8, "blocks.e4m3.32.float32.symmetric"),
        (E5M2, 1, "blocks.e5m2.256.float32.symmetric"),
    ],
)
def test_parameters_of_8_bit_floats_stay_codes(dtype, groups, name):
    model, x = Float8(dtype, groups).eval(), torch.randn(3, K)
    plan, notes = noted(model, x)
    assert (product(plan), notes) == (name, [])
    (stored,) = plan.constants.values()
    assert 8 * stored.nbytes / (COLUMNS * K) == 8 + 32 * groups / K
    want = (x.double() @ model.weight().double().T).float()
    torch.testing.assert_close(outputs(plan, x)[0], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.float8_e8m0fnu])
def test_every_code_of_8_bit_floats_is_torchs_number(dtype):
    model = nn.Module()
    model.register_buffer("codes", torch.arange(256, dtype=torch.uint8).view(dtype))
    model.forward = lambda x: x * model.codes.view(16, 16)[1:].float()
    x = torch.ones(15, 16)
    (got,) = outputs(taper_frontend.export(model, (x,)), x)
    torch.testing.assert_close(got, model(x), rtol=0, atol=0, equal_nan=True)


def test_a_table_of_8_bit_floats_stays_codes():
    model, i = Float8(E4M3).eval(), torch.tensor([[3, 0, 95], [7, 7, 1]])
    model.forward = lambda i: nn.functional.embedding(i, model.weight())
    plan, notes = noted(model, i)
    assert [plan.tensors[name].format for name in plan.constants] == [
        "blocks.e4m3.256.float32.symmetric"
    ]
    assert notes == []
    assert torch.equal(outputs(plan, i)[0], model(i))


def test_codes_of_nan_in_a_weight_stay_nan():
    model, x = Float8(E4M3).eval(), torch.randn(2, K)
    model.q.view(torch.uint8)[5, 7] = 127
    with pytest.warns(ExportWarning, match="1 quantized weight is stored as integers"):
        plan = taper_frontend.export(model, (x,))
    (got,) = outputs(plan, x)
    assert got.isnan().nonzero()[:, 1].tolist() == [5, 5]
    torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda m, x: x.to(E4M3).float(), "aten._to_copy.*got torch.float8_e4m3fn"),
        (lambda m, x: (x, m.q), "output 'p_q'.*got torch.float8_e4m3fn"),
        (lambda m, x: x + m.q.new_ones(K).float(), "aten.*got torch.float8_e4m3fn"),
    ],
)
def test_other_tensors_of_8_bit_floats_are_refused(forward, message):
    model = Float8(E4M3).eval()
    model.forward = lambda x: forward(model, x)
    with pytest.raises(ExportError, match=message):
        taper_frontend.export(model, (torch.randn(2, K),))


HALF, BRAIN = torch.float16, torch.bfloat16
#: How a weight is decoded, its parameters, and its bits in a plan.
SOURCES = {
    "affine int4": (affine, {"bits": 4, "group": 32, "scales": HALF}, 4.5),
    "affine int4 of 128": (affine, {"bits": 4, "group": 128, "scales": BRAIN}, 4.125),
    "affine int4, zeros": (
        affine,
        {"bits": 4, "group": 32, "scales": HALF, "zeros": torch.int8},
        4.625,
    ),
    "affine int4 by float32": (affine, {"bits": 4, "group": 64}, 4.5),
    "affine int8": (affine, {"bits": 8, "group": 32, "scales": HALF}, 8.5),
    "affine int8 per channel": (affine, {"bits": 8}, 8 + 32 / K),
    "affine uint8": (affine, {"bits": 8, "group": 64, "zeros": torch.uint8}, 8.625),
    "grouped int4": (grouped, {"bits": 4, "group": 32, "zeros": torch.int8}, 5.125),
    "per channel": (per_channel, {"bits": 8}, 8 + 32 / K),
    "written out": (
        written_out,
        {"bits": 4, "group": 32, "scales": HALF, "zeros": torch.int8},
        4.625,
    ),
    "written out, uint4": (written_out, {"bits": 4, "group": 128, "zeros": torch.uint8}, 4.28125),
    "repeated": (repeated, {"bits": 4, "group": 64, "scales": BRAIN}, 4.25),
    "packed bytes": (from_packed_bytes, {"bits": 4, "group": 32, "scales": HALF}, 4.5),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("source", SOURCES)
def test_weights_keep_the_bits_of_their_source(source, rows):
    decode, how, bits = SOURCES[source]
    model = Weight(decode, **how).eval()
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(1))
    plan = taper_frontend.export(model, (x,))
    (node,) = plan.nodes
    stored = plan.constants[node.inputs[1]]
    assert 8 * stored.nbytes / (COLUMNS * K) == bits
    options = SessionOptions()
    options.strict_native = True
    (y,) = InferenceSession(plan, options).run(None, {"x": x.numpy()})
    weight = decode(model).double()
    want = (x.double() @ weight.T + model.bias.double()).numpy()
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * abs(want).max())


def noted(model, x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = taper_frontend.export(model, (x,))
    notes = [w.message for w in caught if isinstance(w.message, ExportWarning)]
    return plan, [str(note) for note in notes if note.kind == "quantized"]


def outputs(plan, *inputs):
    feed = {name: x.numpy() for name, x in zip(plan.inputs, inputs, strict=True)}
    return list(map(torch.from_numpy, InferenceSession(plan).run(None, feed)))


def product(plan):
    """The format of the only product's weight."""
    (node,) = [node for node in plan.nodes if node.op == "MATMUL"]
    return plan.tensors[node.inputs[1]].format


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_what_no_kernel_reads_is_named_and_stays_small(dtype):
    """A magnitude of decoded numbers is no recipe, and groups of 4 are no blocks."""
    x = torch.randn(1, K)
    for decode, group in ((lambda m: written_out(m).abs(), 32), (written_out, 4)):
        model = Weight(decode, bits=4, group=group, zeros=dtype).eval()
        plan, notes = noted(model, x)
        assert product(plan) == "panels.1"
        (note,) = notes
        assert note.startswith("1 quantized weight is stored as integers and decoded")
        assert ": q;" in note
        stored = (*plan.constants.values(), *plan.originals.values())
        assert sum(array.nbytes for array in stored) == sum(
            x.numel() * x.element_size() for x in model.buffers()
        )
        torch.testing.assert_close(outputs(plan, x)[0], model(x), rtol=1e-4, atol=1e-4)
        with pytest.raises(ExportError, match="strict: 1 quantized weight is stored as integers"):
            taper_frontend.export(model, (x,), strict=True)
    _, notes = noted(Weight(written_out, bits=4, group=32).eval(), x)
    assert notes == []


@pytest.mark.parametrize("zeros", [None, torch.int8])
@pytest.mark.parametrize("bits_of", [4, 8])
def test_rows_of_a_quantized_table_are_decoded_when_they_are_looked_up(bits_of, zeros):
    model = Weight(affine, bits=bits_of, group=32, zeros=zeros)
    model.forward = lambda i: torch.nn.functional.embedding(i, affine(model))
    i = torch.tensor([[3, 0, 95], [7, 7, 1]])
    plan, notes = noted(model, i)
    assert notes == []
    tables = [plan.tensors[name] for name in plan.constants]
    if bits_of == 8:  # bytes lie in rows, beside a scale and perhaps a zero point for each
        assert {table.dtype for table in tables} == {"int8", "float32"}
        assert tables[1].shape == (COLUMNS, K // 32)
    else:
        shift, beside = ("symmetric", 32) if zeros is None else ("zeros", 36)
        assert [table.format for table in tables] == [f"blocks.4.32.float32.{shift}"]
        assert plan.constants[tables[0].name].nbytes * 8 == (4 + beside / 32) * COLUMNS * K
    atol = 2e-8 if tables[0].format.endswith("float32.zeros") else 0  # a zero point times a scale
    torch.testing.assert_close(outputs(plan, i)[0], model(i), rtol=0, atol=atol)


def test_a_table_that_is_the_head_too_is_stored_once():
    model = Weight(affine, bits=8, group=32)
    table = torch.nn.functional.embedding
    model.forward = lambda i: table(i, affine(model)) @ affine(model).T
    i = torch.tensor([[3, 0, 95], [7, 7, 1]])
    plan, notes = noted(model, i)
    assert notes == []
    assert [len(plan.constants), *(node.op for node in plan.nodes)] == [
        *(1, "INDEX_SELECT", "PERMUTE", "MATMUL")
    ]
    torch.testing.assert_close(outputs(plan, i)[0], model(i), rtol=1e-5, atol=1e-4)


def test_what_the_model_rounds_is_named():
    """It is kept where the model computes in 16 bits, else the plan's results would differ."""
    model, x = Weight(affine_16_bit, bits=4, group=32, scales=BRAIN).eval(), torch.randn(1, K)
    plan, notes = noted(model, x)
    assert not product(plan).startswith("blocks")
    assert [note.split(",")[0] for note in notes] == [
        "1 quantized weight is stored as integers and decoded to float32 when a session opens"
    ]
    model.decode = lambda m: affine_16_bit(m).bfloat16()
    model.bias = model.bias.bfloat16()
    plan, notes = noted(model, x.bfloat16())
    assert product(plan) == "blocks.4.32.bfloat16.symmetric"
    assert notes == ["the model rounds 1 decoded weight to bfloat16, and the plan does not: q"]


class Static(nn.Module):
    """What PT2E's x86 quantizer makes of linear, relu, linear."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(5)
        for name, shape in (("first", (64, 32)), ("second", (16, 64))):
            q = torch.randint(-127, 128, shape, generator=g).to(torch.int8)
            self.register_buffer(f"{name}_q", q)
            self.register_buffer(f"{name}_scales", torch.rand(shape[0], generator=g) / 100 + 0.001)
            self.register_buffer(f"{name}_zeros", torch.zeros(shape[0], dtype=torch.int64))

    def weight(self, name):
        q, scales, zeros = (getattr(self, f"{name}_{part}") for part in ("q", "scales", "zeros"))
        return decomposed.dequantize_per_channel(q, scales, zeros, 0, -128, 127, torch.int8)

    def fake(self, x, scale, zero):
        q = decomposed.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return decomposed.dequantize_per_tensor(q, scale, zero, 0, 255, torch.uint8)

    def forward(self, x):
        y = torch.nn.functional.linear(self.fake(x, 0.02, 128), self.weight("first")).relu()
        return torch.nn.functional.linear(self.fake(y, 0.01, 0), self.weight("second"))


def test_a_scale_that_is_not_finite_is_refused_by_its_name():
    model, x = Static().eval(), torch.randn(3, 32, generator=torch.Generator().manual_seed(6))
    model.second_scales[3] = torch.inf
    with pytest.raises(UnsupportedNodesError, match=r"scales above 0 in second_scales, got inf"):
        taper_frontend.export(model, (x,))


class Dynamic(nn.Module):
    """8da4w: activations of 8 bits per row, weights of 4 bits per group."""

    def __init__(self):
        super().__init__()
        self.weight = Weight(affine, bits=4, group=32)

    def forward(self, x):
        int8, block = torch.int8, [1, K]
        chosen = torchao.choose_qparams_affine(
            x, "ASYMMETRIC", block, int8, -128, 127, None, None, int8
        )
        q = torchao.quantize_affine(x, block, *chosen, int8, -128, 127)
        return self.weight(torchao.dequantize_affine(q, block, *chosen, int8, -128, 127))


class Int8(nn.Module):
    """What torchao makes of an int8 layer on x86: _int_mm of bytes that are shifted to uint8."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(6)
        self.register_buffer(
            "q", torch.randint(-127, 128, (COLUMNS, K), generator=g).to(torch.int8)
        )
        self.register_buffer("scale", torch.rand(COLUMNS, generator=g) / 100 + 0.001)

    def forward(self, x):
        int8, block = torch.int8, [1, K]
        chosen = torchao.choose_qparams_affine(
            x, "SYMMETRIC", block, int8, -128, 127, 1e-7, torch.float32, int8, True
        )
        q = torchao.quantize_affine(x, block, *chosen, int8, -128, 127)
        y = torch._int_mm(q, self.q.t())
        return y.float() * chosen[0] * self.scale


@pytest.mark.parametrize(("model", "k"), [(Static, 32), (Dynamic, K), (Int8, K)])
def test_quantized_activations(model, k):
    module = model().eval()
    x = torch.randn(20, k, generator=torch.Generator().manual_seed(2))
    plan = taper_frontend.export(module, (x,))
    (y,) = InferenceSession(plan).run(None, {"x": x.numpy()})
    want = module(x).numpy()
    # a sum in another order may round one activation of the second layer to its neighbour
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=2e-3 * abs(want).max())
