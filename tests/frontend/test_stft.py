"""Spectrograms and back: torch.stft and torch.istft."""

import pytest
import torch

import taper_runtime
from complex_models import check, exported
from marks import LARGER, NARROWED, NUMPY

pytestmark = NUMPY
torch.manual_seed(0)
SIGNAL = torch.randn(2, 900)


def stft(x, size, hop, **options):
    options.setdefault("window", torch.hann_window(options.get("win_length", size)))
    return torch.stft(x, size, hop, return_complex=True, **options)


def istft(z, size, hop, **options):
    options.setdefault("window", torch.hann_window(options.get("win_length", size)))
    return torch.istft(z, size, hop, **options)


def test_stft():
    def spectra(x):
        yield stft(x, 64, 16)
        yield stft(x, 60, 25, center=False)
        yield stft(x, 64, 7, normalized=True).abs()
        yield stft(x, 50, 20, onesided=False)
        yield stft(x[0], 64, 32, win_length=40, pad_mode="constant")
        yield torch.stft(x, 64, 16, window=torch.ones(64), return_complex=False)
        yield stft(x, 37, 37, window=torch.hamming_window(37)).angle().cos()

    check(lambda x: list(spectra(x)), SIGNAL, atol=1e-4)


@LARGER
def test_istft():
    """Forth and back gives the signal again; one window for the sums of squares is a constant."""

    def signals(x):
        yield istft(stft(x, 64, 16), 64, 16)
        yield istft(stft(x, 64, 16, normalized=True), 64, 16, normalized=True, length=880)
        yield istft(stft(x, 60, 20, onesided=False), 60, 20, onesided=False)
        yield istft(stft(x, 64, 8, win_length=40), 64, 8, win_length=40)
        yield istft(stft(x, 64, 1), 64, 1)
        yield istft(stft(x, 48, 18), 48, 18, length=900)

    check(lambda x: list(signals(x)), SIGNAL, atol=1e-4)


class MelSpectrogram(torch.nn.Module):
    """As torchaudio has it: the power of a spectrogram, through a bank of filters."""

    def __init__(self, size=400, hop=160, mels=80):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bank", torch.rand(size // 2 + 1, mels))

    def forward(self, wave):
        options = {"window": self.window, "return_complex": True, "pad_mode": "reflect"}
        power = torch.stft(wave, self.size, self.hop, **options).abs().pow(2.0)
        return (power.transpose(-1, -2) @ self.bank).clamp(min=1e-10).log10()


@NARROWED
def test_mel_spectrogram():
    """One plan for waves of all lengths, every node native."""
    wave = torch.randn(2, 4000)
    model = MelSpectrogram()
    plan = check(model, wave, atol=1e-4, dynamic_axes={"x": {0: "batch", 1: "samples"}})
    assert not plan.metadata["fallbacks"]
    session = taper_runtime.InferenceSession(plan)
    for samples in (401, 1600, 4321):
        wave = torch.randn(3, samples)
        (got,) = session.run(None, {"x": wave.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), model(wave), rtol=1e-4, atol=1e-4)


class Vocoder(torch.nn.Module):
    """The head of Vocos: magnitude and phase of a spectrogram, made a wave."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, 66)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x):
        size, phase = self.out(x).transpose(1, 2).chunk(2, dim=1)
        spectrum = size.exp().clip(max=1e2) * (torch.cos(phase) + 1j * torch.sin(phase))
        return torch.istft(spectrum, 64, 16, 64, self.window, center=True)


@NARROWED
@pytest.mark.parametrize("axes", [None, {"x": {0: "batch", 1: "frames"}}], ids=["fixed", "varying"])
def test_vocoder(axes):
    plan = check(Vocoder(), torch.randn(2, 20, 16), dynamic_axes=axes)
    assert not plan.metadata["fallbacks"]


@LARGER
def test_long_windows_of_small_steps():
    exported(lambda x: istft(stft(x, 128, 2), 128, 2), SIGNAL)
