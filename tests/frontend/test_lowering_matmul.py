"""Products: which ops they emit, and torch's rules for their scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from lowering import check_lowering, ops_of
from marks import thinned

A = torch.linspace(-1, 1, 6).reshape(2, 3)
B = torch.linspace(0, 2, 12).reshape(3, 4)
C = torch.linspace(-3, 3, 8).reshape(2, 4)


def test_linear_is_transpose_matmul_add():
    graph = check_lowering(torch.nn.Linear(3, 4).eval(), A)
    transpose, matmul, add = graph.order()
    assert (transpose.op, matmul.op, add.op) == ("TRANSPOSE", "MATMUL", "ADD")
    assert transpose.inputs == ["weight"]
    assert matmul.inputs == [graph.inputs[0], transpose.output]
    assert add.inputs == [matmul.output, "bias"]
    assert add.output == graph.outputs[0] == "linear"
    assert add.source.line.endswith("linear") or add.source.line == ""


def test_linear_without_bias_of_any_rank():
    net = torch.nn.Linear(3, 4, bias=False).eval()
    for x in (A, A[0], A[None, None], A[:0]):
        assert ops_of(check_lowering(net, x)) == ["TRANSPOSE", "MATMUL"]


def test_linear_with_a_vector_for_weight():
    graph = check_lowering(lambda x, w: torch.nn.functional.linear(x, w), A, A[0])
    assert ops_of(graph) == ["MATMUL"]


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear(bias):
    net = torch.nn.Bilinear(3, 4, 5, bias=bias)
    check_lowering(net, A, C)
    check_lowering(net, A[None], C[None])
    check_lowering(net, A[0], C[0])


@pytest.mark.parametrize("p", [0, 1, 2, 3, torch.inf])
def test_dist(p):
    check_lowering(lambda a, b: torch.dist(a, b, p), A, A[0] + 0.1)


@pytest.mark.parametrize(
    ("beta", "alpha", "ops"),
    [
        (1, 1, ["MATMUL", "ADD"]),
        (0.5, 2, ["MATMUL", "MUL", "MUL", "ADD"]),
        (0, 1, ["MATMUL"]),
    ],
)
def test_addmm(beta, alpha, ops):
    c = C if beta else C * float("nan")
    graph = check_lowering(lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), c, A, B)
    assert ops_of(graph) == ops


def test_addmm_broadcasts_a_bias():
    graph = check_lowering(lambda c, a, b: torch.addmm(c, a, b), C[0], A, B)
    assert ops_of(graph) == ["MATMUL", "ADD"]


def test_matmul_of_every_pair_of_ranks():
    def model(a, b):
        left = [a[0], a, a[None], a.expand(5, 1, 2, 3)]
        right = [b[:, 0], b, b.expand(4, 3, 4), b.expand(2, 3, 4)]
        return [x @ y for x in left for y in right]

    assert "MATMUL" in ops_of(check_lowering(model, A, B))


def test_matmul_stays_one_node():
    x = torch.ones(2, 1, 3, 4)
    graph = check_lowering(lambda x: x @ x.transpose(-1, -2).expand(2, 5, 4, 3), x)
    assert ops_of(graph).count("MATMUL") == 1
    assert "RESHAPE" not in ops_of(graph)


def test_products_over_nothing():
    check_lowering(lambda a, b: (a @ b, torch.addmm(b.new_ones(2, 4), a, b)), A[:, :0], B[:0])


def test_integers():
    check_lowering(lambda a, b: a @ b, A.mul(9).long(), B.mul(9).long())


class Int8Linear(torch.nn.Module):
    """A layer whose weight is int8 with a scale for each output, in one of the ways to say so."""

    def __init__(self, way: str, columns: int = 24, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randint(-128, 128, (columns, 96), dtype=torch.int8, generator=generator)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(columns, generator=generator))
        self.register_buffer("bias", torch.rand(columns, generator=generator))
        self.way = way

    def forward(self, x):
        if self.way == "packed":
            y = torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)
        else:
            y = torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales
        return torch.relu(y + self.bias)


@pytest.mark.parametrize("way", ["packed", "written out"])
def test_int8_weights_stay_int8(way):
    layer = Int8Linear(way, columns=1000)
    x = torch.randn(3, 96)
    plan = taper_frontend.export(layer, (x,))
    (node,) = plan.nodes
    assert (node.op, node.attrs["code"]) == ("MATMUL", ("MUL", "ADD", "RELU"))
    weight = plan.tensors[node.inputs[1]]
    assert (weight.dtype, weight.shape, weight.format) == ("int8", (96, 1000), "panels.1")
    options = taper_runtime.SessionOptions()
    options.strict_native = True
    session = taper_runtime.InferenceSession(plan, options)
    (y,) = session.run(None, {"x": x.numpy()})
    want = (x.double() @ layer.weight.double().T) * layer.scales + layer.bias
    np.testing.assert_allclose(y, want.relu(), rtol=1e-4, atol=1e-3)


def test_int8_projections_of_one_tensor_merge():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(Int8Linear("packed", 768, seed) for seed in range(3))

        def forward(self, x):
            q, k, v = (
                torch.ops.aten._weight_int8pack_mm(x, part.weight, part.scales)
                .view(5, 12, 64)
                .transpose(0, 1)
                for part in self.parts
            )
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    plan = taper_frontend.export(Attention(), (torch.randn(5, 96),))
    (product,) = (node for node in plan.nodes if node.op == "MATMUL")
    weight, scales = (plan.tensors[name] for name in product.inputs[1:])
    assert (weight.dtype, weight.shape, scales.shape) == ("int8", (96, 3 * 768), (3 * 768,))


class BlockLinear(torch.nn.Module):
    """A layer whose weight is integers with a scale and a zero point for each block of k."""

    def __init__(self, low: int, high: int, group: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        q = torch.randint(low, high + 1, (200, 512), generator=generator)
        q[:, ::group], q[:, 1::group] = low, high
        self.register_buffer("q", q.to(dtype))
        self.register_buffer("scales", torch.rand(200, 512 // group, generator=generator))
        zeros = torch.randint(low, high, (200, 512 // group), dtype=dtype, generator=generator)
        self.register_buffer("zeros", zeros)
        self.register_buffer("bias", torch.rand(200, generator=generator))
        self.group = group

    def weight(self, dtype=torch.float32):
        blocks = self.q.view(200, -1, self.group).to(dtype)
        return ((blocks - self.zeros[..., None]) * self.scales[..., None]).view(200, 512)

    def forward(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.weight(), self.bias))


def check_block_linear(module, x, format, want, tmp_path):
    """One native MATMUL over the weight in this format, in memory as in a file of its size."""
    plan = taper_frontend.export(module, (x,))
    (node,) = plan.nodes
    weight = plan.tensors[node.inputs[1]]
    assert (node.op, weight.shape, weight.format) == ("MATMUL", (512, 200), format)
    path = tmp_path / "model.taper"
    plan.save(path)
    bits, group = map(int, format.split(".")[1:3])
    assert path.stat().st_size < 512 * 208 * (bits / 8 + 5 / group) + x.nbytes + 8_000
    options = taper_runtime.SessionOptions()
    options.strict_native = True
    (y,) = taper_runtime.InferenceSession(path, options).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("levels", "group", "rows"), thinned(2, [
    ("blocks.8", -128, 127, torch.int8),
    ("blocks.8", 0, 255, torch.uint8),
    ("blocks.4", -8, 7, torch.int8),
    ("blocks.4", 0, 15, torch.uint8),
], [32, 128], [1, 5, 70]))  # fmt: skip
def test_weights_of_blocks_stay_integers(levels, group, rows, tmp_path):
    format, low, high, dtype = levels
    layer = BlockLinear(low, high, group, dtype)
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows))
    want = (x.double() @ layer.weight(torch.float64).T + layer.bias).relu().numpy()
    check_block_linear(layer, x, f"{format}.{group}.float32.zeros", want, tmp_path)


class Int4Linear(torch.nn.Module):
    """A layer that torch packs for its own CPU kernel."""

    def __init__(self, q: torch.Tensor, scales_and_zeros: torch.Tensor, group: int) -> None:
        super().__init__()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.to(torch.int32), 1)
        self.register_buffer("packed", packed)
        self.register_buffer("scales_and_zeros", scales_and_zeros)
        self.group = group

    def forward(self, x):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.packed, self.group, self.scales_and_zeros
        )


def int4_layer(columns, k, group, dtype=torch.float32):
    """A packed layer and its weight in float64."""
    generator = torch.Generator().manual_seed(columns)
    q = torch.randint(0, 16, (columns, k), generator=generator)
    scales_and_zeros = torch.rand(k // group, columns, 2, generator=generator).to(dtype)
    scales, zeros = scales_and_zeros.double().transpose(0, 1).split(1, 2)
    weight = ((q.view(columns, -1, group) - 8) * scales + zeros).view(columns, k)
    return Int4Linear(q, scales_and_zeros, group), weight


# The rows of a weight are packed in blocks, of which the last one may have fewer.
@pytest.mark.parametrize("columns", [16, 32, 48, 64, 80, 112, 160])
@pytest.mark.parametrize("group", [32, 256])
def test_int4_weights_that_torch_packed(columns, group):
    layer, weight = int4_layer(columns, 512, group)
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    plan = taper_frontend.export(layer, (x,))
    (node,) = plan.nodes
    assert (node.op, node.targets) == ("MATMUL", ("aten._weight_int4pack_mm_for_cpu.default",))
    assert plan.tensors[node.inputs[1]].format == f"blocks.4.{group}.float32.offsets"
    (y,) = taper_runtime.InferenceSession(plan).run(None, {"x": x.numpy()})
    want = (x.double() @ weight.T).numpy()
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * abs(want).max())
    np.testing.assert_allclose(y, layer(x), rtol=1e-5, atol=1e-5 * abs(want).max())


def test_halves_by_int4_weights():
    layer, weight = int4_layer(64, 256, 64, torch.bfloat16)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    session = taper_runtime.InferenceSession(taper_frontend.export(layer, (x,)))
    (got,) = session.run(None, {"x": x.float().numpy()})
    want = (x.double() @ weight.T).float()
    y = torch.from_numpy(got).bfloat16()
    torch.testing.assert_close(y, want.bfloat16(), rtol=2**-7, atol=1e-3 * want.abs().max())
