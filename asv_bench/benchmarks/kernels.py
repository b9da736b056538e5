"""One node at a time: a class per kernel family, through the session."""

from pathlib import Path

import torch
from torch.nn import functional

import models
import taper_frontend
import taper_runtime

ROOT = Path(__file__).parents[2]


class _Apply(torch.nn.Module):
    """A function of the inputs and of one weight, or of the inputs alone."""

    def __init__(self, function, weight=None):
        super().__init__()
        self.function = function
        self.register_buffer("weight", weight)

    def forward(self, *inputs):
        return self.function(*inputs, *([] if self.weight is None else [self.weight]))


class _Nodes:
    """``cases``: label -> a function that makes a module and its arguments; it becomes one node."""

    param_names = ["node"]
    timeout = 120

    def setup(self, case):
        torch.manual_seed(0)
        module, args = self.cases[case]()
        plan = taper_frontend.export(module.eval(), args, verify=False)
        executed = [node.op for node in plan.nodes if plan.is_executed(node)]
        if len(executed) != 1:
            raise ValueError(f"{case}: expected one node, got {executed}")
        options = taper_runtime.SessionOptions()
        options.strict_native = True
        self.session = taper_runtime.InferenceSession(plan, options)
        self.feed = dict(plan.samples)
        self.session.run(None, self.feed)

    def time_run(self, case):
        self.session.run(None, self.feed)


def _of(function, *shapes, weight=None):
    """A case: ``function`` of random inputs of these shapes, and of a weight of that shape."""
    return lambda: (
        _Apply(function, None if weight is None else torch.randn(weight)),
        tuple(torch.randn(shape) for shape in shapes),
    )


def _linear(rows, k, n):
    return _of(functional.linear, (rows, k), weight=(n, k))


class Gemm(_Nodes):
    sizes = [(1, 512, 512), (1, 2048, 2048), (16, 384, 1536), (128, 384, 384), (128, 512, 512)]
    sizes += [(128, 1536, 384), (1024, 1024, 1024)]
    cases = {f"{m}x{k}x{n}": _linear(m, k, n) for m, k, n in sizes}
    cases["12x128x64x128"] = _of(torch.matmul, (12, 128, 64), (12, 64, 128))
    cases["relu 128x512x512"] = _of(
        lambda x, w: functional.relu(functional.linear(x, w)), (128, 512), weight=(512, 512)
    )
    params = list(cases)


def _linear_of_bytes(rows, k, n):
    """A case: int8 activations times int8 weights, with a factor for each output."""

    def multiply(x, factors, weight):
        return torch._int_mm(x, weight.t()).to(torch.float32) * factors

    def draw(*shape):
        return torch.randint(-128, 128, shape, dtype=torch.int8)

    return lambda: (_Apply(multiply, draw(n, k)), (draw(rows, k), torch.rand(n)))


class GemmOfBytes(_Nodes):
    """The same products as :class:`Gemm`, and those of the sizes that decoders have."""

    sizes = [*Gemm.sizes, (1, 4096, 4096), (128, 2048, 2048)]
    cases = {f"{m}x{k}x{n}": _linear_of_bytes(m, k, n) for m, k, n in sizes}
    params = list(cases)


def _convolution(height, width, channels, outputs, kernel, stride, padding, groups):
    """Pixels before channels, as inside a plan, so that nothing is left to permute."""

    def convolve(x, weight):
        y = functional.conv2d(
            x.permute(0, 3, 1, 2), weight, stride=stride, padding=padding, groups=groups
        )
        return y.permute(0, 2, 3, 1)

    weight = (outputs, channels // groups, kernel, kernel)
    return _of(convolve, (1, height, width, channels), weight=weight)


def _convolutions(path):
    """Label -> case, for each line of a file of ``packages/kernels/tests/shapes``."""
    cases = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            *shape, _count = map(int, line.split())
            height, width, channels, outputs, kernel, stride, _padding, groups = shape
            label = f"{height}x{width}x{channels} {kernel}x{kernel} to {outputs}"
            cases[f"{label} stride {stride} groups {groups}"] = _convolution(*shape)
    return cases


class Convolution(_Nodes):
    """The distinct layers of three image classifiers; several share some."""

    cases = {}
    for path in sorted((ROOT / "packages/kernels/tests/shapes").glob("*.txt")):
        cases.update(_convolutions(path))
    params = list(cases)


class Attention(_Nodes):
    sizes = [(1, 12, 16, 32), (8, 12, 128, 32), (1, 12, 64, 64), (1, 12, 1024, 64)]
    cases = {
        f"{'causal ' if causal else ''}{b}x{h}x{s}x{d}": lambda shape=(b, h, s, d), causal=causal: (
            models.Attention(causal=causal),
            tuple(torch.randn(shape) for _ in range(3)),
        )
        for b, h, s, d in sizes
        for causal in (False, True)
    }
    params = list(cases)


class Map(_Nodes):
    cases = {}
    for shape in ((32, 512), (128, 2048), (1024, 4096)):
        label = "x".join(map(str, shape))
        cases[f"add {label}"] = _of(torch.add, shape, shape)
        cases[f"gelu {label}"] = _of(functional.gelu, shape)
        cases[f"six ops {label}"] = _of(
            lambda x, y: torch.tanh((x * 2 + y) * x - 1) * y, shape, shape
        )
    params = list(cases)


class Softmax(_Nodes):
    sizes = [(16, 16), (128, 128), (1536, 128), (64, 1000), (64, 50257)]
    cases = {f"{m}x{n}": _of(lambda x: torch.softmax(x, -1), (m, n)) for m, n in sizes}
    params = list(cases)


class Norm(_Nodes):
    cases = {}
    for shape in ((16, 384), (1024, 384), (64, 768)):
        label, width = "x".join(map(str, shape)), shape[-1:]
        cases[f"layer {label}"] = _of(
            lambda x, w, width=width: functional.layer_norm(x, width, w, w), shape, weight=width
        )
        cases[f"rms {label}"] = _of(
            lambda x, w, width=width: functional.rms_norm(x, width, w), shape, weight=width
        )
    params = list(cases)


class Reduce(_Nodes):
    cases = {}
    for name in ("sum", "amax", "argmax", "var", "cumsum"):
        for axis in (0, 1):
            function = getattr(torch, name)
            cases[f"{name} 1024x512 axis {axis}"] = _of(
                lambda x, function=function, axis=axis: function(x, axis), (1024, 512)
            )
    params = list(cases)


class Copy(_Nodes):
    cases = {
        "transpose 1024x1024": _of(lambda x: x.transpose(0, 1).contiguous(), (1024, 1024)),
        "heads 8x128x12x32": _of(lambda x: x.transpose(1, 2).contiguous(), (8, 128, 12, 32)),
        "channels last 1x64x56x56": _of(
            lambda x: x.permute(0, 2, 3, 1).contiguous(), (1, 64, 56, 56)
        ),
        "cat 128x384": _of(lambda x, y: torch.cat([x, y], 1), (128, 384), (128, 384)),
    }
    params = list(cases)


class Gather(_Nodes):
    cases = {
        f"embedding {n} of 30522x384": lambda n=n: (
            torch.nn.Embedding(30522, 384),
            (torch.randint(0, 30522, (n,)),),
        )
        for n in (16, 1024)
    }
    params = list(cases)
