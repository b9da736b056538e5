"""Models that compute with complex numbers: transforms, spectrograms, rotations."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from tools.zoo.architecture import Architecture, Inputs

WIDTH = 16


def _floats(*shape: int) -> Inputs:
    return lambda module: {"x": torch.randn(shape)}


def _complex(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.complex64) / WIDTH)


class _SpectralConv(nn.Module):
    """The lowest frequencies of an image, mixed by matrices of their own (Li et al. 2021)."""

    def __init__(self, modes: int = 6) -> None:
        super().__init__()
        self.modes = modes
        self.low = _complex(WIDTH, WIDTH, modes, modes)
        self.high = _complex(WIDTH, WIDTH, modes, modes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(*spectrum.shape, dtype=torch.complex64)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class _FourierOperator(nn.Module):
    """A Fourier neural operator for images."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, WIDTH, 1)
        self.spectral = nn.ModuleList(_SpectralConv() for _ in range(2))
        self.local = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(2))
        self.project = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        out: torch.Tensor = self.project(x)
        return out


class _GlobalFilter(nn.Module):
    """A filter of tokens in frequency (Rao et al. 2021, GFNet), with its MLP."""

    def __init__(self, side: int = 14) -> None:
        super().__init__()
        self.side = side
        self.weight = nn.Parameter(torch.randn(side, side // 2 + 1, WIDTH, 2))
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        grid = self.norm(x).view(batch, self.side, self.side, width)
        spectrum = torch.fft.rfft2(grid, dim=(1, 2), norm="ortho")
        spectrum = spectrum * torch.view_as_complex(self.weight)
        grid = torch.fft.irfft2(spectrum, s=(self.side, self.side), dim=(1, 2), norm="ortho")
        out: torch.Tensor = x + self.mlp(grid.reshape(batch, tokens, width))
        return out


class _LongConvolution(nn.Module):
    """Hyena's convolution over the whole sequence, by transforms of twice its length."""

    def __init__(self, length: int = 60) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(WIDTH, length) / length)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.gates = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, v = self.gates(x).transpose(1, 2).chunk(3, 1)
        u = b * v
        n = 2 * u.shape[-1]
        spectrum = torch.fft.rfft(u, n=n) * (torch.fft.rfft(self.filters, n=n) / n)
        y = torch.fft.irfft(spectrum, n=n, norm="forward")[..., : u.shape[-1]]
        out: torch.Tensor = (a * (y + u * self.bias[:, None])).transpose(1, 2)
        return out


class _DiagonalStateSpace(nn.Module):
    """S4D (Gu et al. 2022): the kernel is a sum of powers of complex numbers."""

    def __init__(self, states: int = 8, length: int = 48) -> None:
        super().__init__()
        self.length = length
        self.log_step = nn.Parameter(torch.rand(WIDTH) * 2 - 5)
        self.c = nn.Parameter(torch.randn(WIDTH, states, 2))
        self.log_real = nn.Parameter(torch.full((WIDTH, states), math.log(0.5)))
        self.imag = nn.Parameter(math.pi * torch.arange(states).repeat(WIDTH, 1).float())
        self.skip = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, width, length]
        step = torch.exp(self.log_step)
        rates = -torch.exp(self.log_real) + 1j * self.imag
        turned = rates * step.unsqueeze(-1)
        powers = turned.unsqueeze(-1) * torch.arange(self.length)
        c = torch.view_as_complex(self.c) * (torch.exp(turned) - 1.0) / rates
        kernel = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(powers)).real
        n = 2 * self.length
        spectrum = torch.fft.rfft(x, n=n) * torch.fft.rfft(kernel, n=n)
        y = torch.fft.irfft(spectrum, n=n)[..., : self.length]
        return F.gelu(y + x * self.skip.unsqueeze(-1))


class _RotaryAttention(nn.Module):
    """Attention of LLaMA's own code: pairs of channels are complex numbers, which are turned."""

    def __init__(self, heads: int = 4, size: int = 8, length: int = 32) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = nn.Linear(WIDTH, 3 * heads * size, bias=False)
        self.out = nn.Linear(heads * size, WIDTH, bias=False)
        steps = 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(length).float(), steps)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.size).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (self.turned(q), self.turned(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class _MelClassifier(nn.Module):
    """A log-mel spectrogram, as torchaudio computes it, and a small network over it."""

    def __init__(self, size: int = 400, hop: int = 160, mels: int = 40) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bank", torch.rand(size // 2 + 1, mels))
        self.layers = nn.Sequential(nn.Conv1d(mels, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, self.size, self.hop, window=self.window, return_complex=True)
        mel = (spectrum.abs().pow(2).transpose(1, 2) @ self.bank).clamp(min=1e-10).log10()
        out: torch.Tensor = self.head(self.layers(mel.transpose(1, 2)).flatten(1))
        return out


class _Vocoder(nn.Module):
    """Vocos (Siuzdak 2023): frames become magnitude and phase of a spectrogram, that a wave."""

    def __init__(self, size: int = 64, hop: int = 16) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.embed = nn.Conv1d(20, WIDTH, 7, padding=3)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.out = nn.Linear(WIDTH, size + 2)
        self.register_buffer("window", torch.hann_window(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.mix(self.embed(x))).transpose(1, 2)
        size, phase = self.out(x).transpose(1, 2).chunk(2, dim=1)
        spectrum = size.exp().clip(max=1e2) * (torch.cos(phase) + 1j * torch.sin(phase))
        return torch.istft(spectrum, self.size, self.hop, self.size, self.window, center=True)


class _MaskingDenoiser(nn.Module):
    """A recurrent network that weighs the frequencies of a signal."""

    def __init__(self, size: int = 128, hop: int = 32) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.rnn = nn.GRU(size // 2 + 1, 24, batch_first=True)
        self.mask = nn.Linear(24, size // 2 + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"n_fft": self.size, "hop_length": self.hop, "window": self.window}
        spectrum = torch.stft(x, return_complex=True, **options)
        hidden, _ = self.rnn(spectrum.abs().transpose(1, 2))
        mask = torch.sigmoid(self.mask(hidden)).transpose(1, 2)
        return torch.istft(spectrum * mask, length=x.shape[-1], **options)


class _GriffinLim(nn.Module):
    """The phase of a spectrogram of which the magnitude is known, by turns of both transforms."""

    def __init__(self, size: int = 64, hop: int = 16, turns: int = 4) -> None:
        super().__init__()
        self.options = {"n_fft": size, "hop_length": hop}
        self.turns = turns
        self.register_buffer("window", torch.hann_window(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.abs()
        spectrum = torch.polar(size, torch.zeros_like(size))
        for _ in range(self.turns):
            wave = torch.istft(spectrum, window=self.window, **self.options)
            other = torch.stft(wave, window=self.window, return_complex=True, **self.options)
            spectrum = size * other / (other.abs() + 1e-6)
        return torch.istft(spectrum, window=self.window, **self.options)


SIGNALS = {
    "Fourier neural operator": Architecture(_FourierOperator, _floats(2, 3, 20, 24)),
    "GFNet block": Architecture(_GlobalFilter, _floats(2, 196, WIDTH)),
    "Hyena convolution": Architecture(_LongConvolution, _floats(2, 60, WIDTH)),
    "S4D": Architecture(_DiagonalStateSpace, _floats(2, WIDTH, 48)),
    "LLaMA's own rotary attention": Architecture(_RotaryAttention, _floats(2, 20, WIDTH)),
    "log-mel classifier": Architecture(_MelClassifier, _floats(2, 4000)),
    "Vocos": Architecture(_Vocoder, _floats(2, 20, 30)),
    "masking denoiser": Architecture(_MaskingDenoiser, _floats(2, 1500)),
    "Griffin-Lim": Architecture(_GriffinLim, _floats(2, 33, 25)),
}
