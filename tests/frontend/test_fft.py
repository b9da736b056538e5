"""Fourier transforms as torch has them."""

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from complex_models import check, numbers
from function_module import Function
from marks import NUMPY
from taper_frontend.errors import ExportWarning

pytestmark = NUMPY
fft = torch.fft

torch.manual_seed(0)
REAL, COMPLEX = torch.randn(2, 6, 15), numbers(2, 6, 15)


def test_transforms():
    """All transforms, norms, axes; cut and padded; odd and even, prime and large lengths."""

    def transforms(x, z):
        yield from (fft.fft(x), fft.fft(z), fft.ifft(z), fft.rfft(x), fft.irfft(z), fft.hfft(z))
        yield from (fft.ihfft(x), fft.irfft(z, n=7), fft.irfft(z, n=29), fft.fft(x, n=4))
        yield from (fft.rfft(x, n=20, dim=1), fft.ifft(z, dim=0), fft.fft(z, n=37, dim=1))
        for norm in ("backward", "ortho", "forward"):
            yield from (fft.fft(z, norm=norm), fft.ifft(z, norm=norm), fft.rfft(x, norm=norm))
            yield from (fft.irfft(z, norm=norm), fft.fft2(x, norm=norm), fft.ifft2(z, norm=norm))
        yield from (fft.rfft2(x), fft.irfft2(z), fft.irfft2(z, s=(4, 9)), fft.fftn(x))
        yield from (fft.ifftn(z), fft.rfftn(x), fft.irfftn(z), fft.fftn(z, s=(3, 8), dim=(0, 2)))
        yield from (fft.fftshift(z), fft.ifftshift(x), fft.fftn(x.permute(2, 0, 1)))
        yield from (x * fft.fftfreq(15, 0.1), fft.rfftfreq(28, dtype=torch.float64) + x)

    plan = check(lambda x, z: list(transforms(x, z)), REAL, COMPLEX)
    assert not plan.metadata["fallbacks"]


@pytest.mark.parametrize("rows", [1, 20])
def test_long_transforms(rows):
    """Many rows at once, and one row, which is transformed otherwise."""
    lengths = (64, 400, 1000, 1009, 4096, 2 * 1009, 5005)
    inputs = [t for n in lengths for t in (torch.randn(rows, n), numbers(rows, n))]

    def transforms(*inputs):
        for n, x, z in zip(lengths, inputs[::2], inputs[1::2], strict=True):
            yield from (fft.fft(z, norm="ortho"), fft.ifft(z, norm="ortho"))
            yield from (fft.rfft(x, norm="ortho"), fft.irfft(z, n=n, norm="ortho"))

    names = [f"x{i}" for i in range(len(inputs))]
    check(lambda *inputs: list(transforms(*inputs)), *inputs, atol=1e-5, input_names=names)


def test_lengths_that_vary():
    """Smooth lengths, primes and four steps one after the other in one session, with every norm."""

    class Transforms(torch.nn.Module):
        def forward(self, x):
            y = fft.fft2(x, norm="ortho")
            back = fft.irfft(fft.rfft(x, dim=1, norm="forward"), n=x.shape[1], dim=1)
            return y.real, fft.ifft(y, dim=1).imag, back

    axes = {"x": {0: "batch", 1: "length"}}
    plan = taper_frontend.export(Transforms(), (torch.randn(2, 6, 8),), dynamic_axes=axes)
    assert not plan.metadata["fallbacks"]
    session = taper_runtime.InferenceSession(plan)
    for batch, length in [(1, 1), (2, 16), (3, 37), (1, 256), (2, 6), (1, 1009), (2, 16), (1, 600)]:
        x = torch.randn(batch, length, 8)
        for mine, want in zip(session.run(None, {"x": x.numpy()}), Transforms()(x), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-4)


def test_all_frequencies_of_real_numbers_whose_length_varies():
    module = Function(lambda x: (fft.fft(x).abs(), fft.fft2(x).imag))
    shapes = {"args": ({1: "rows", 2: "length"},)}
    with pytest.warns(ExportWarning, match="varies only from 3 on"):
        plan = taper_frontend.export(module, (torch.randn(2, 5, 6),), dynamic_shapes=shapes)
    session = taper_runtime.InferenceSession(plan)
    for rows, length in [(5, 6), (2, 3), (1, 37), (4, 8)]:
        x = torch.randn(2, rows, length)
        for mine, want in zip(session(x.numpy()), module(x), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-4)


def test_in_float64():
    x = torch.randn(2, 6, dtype=torch.float64)
    check(lambda x: (fft.rfft(x), fft.fft(x).abs()), x, rtol=1e-12, atol=1e-12)
