"""Compute the spectrogram that Whisper's encoder reads.

A. Radford et al., "Robust speech recognition via large-scale weak supervision", 2022, section 2.2:
the logarithm of the power in frequency bands of the mel scale, in windows of 25 ms every 10 ms.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from taper_runtime.base.errors import InputError

#: Samples a second, of a window, and from one window to the next.
RATE, _WINDOW, HOP = 16_000, 400, 160

#: The most windows that are transformed at once.
_AT_ONCE = 3_000

#: The least power, and the range of logarithms below the largest that is kept.
_FLOOR, _RANGE = 1e-10, 8.0


def log_mel(samples: np.ndarray, bins: int) -> np.ndarray:
    """Return a spectrogram, float32 ``[bins, len(samples) // 160]``.

    Parameters
    ----------
    samples : numpy.ndarray
        float32 ``[n]``, from -1 to 1, 16,000 a second; more than half a window, 200.
    bins : int
        The number of frequency bands.

    Raises
    ------
    InputError
        If there are too few samples.
    """
    if len(samples) <= _WINDOW // 2:
        raise InputError(
            f"samples: expected more than {_WINDOW // 2}, half a window, got {len(samples)}"
        )
    padded = np.pad(samples, _WINDOW // 2, "reflect")
    windows = sliding_window_view(padded, _WINDOW)[::HOP][: len(samples) // HOP]
    # of a period of _WINDOW: its last value is not repeated
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    filters = mel_filters(bins)
    result = np.empty((bins, len(windows)), np.float32)
    for first in range(0, len(windows), _AT_ONCE):
        spectrum = np.fft.rfft(windows[first : first + _AT_ONCE] * window)
        power = spectrum.real**2 + spectrum.imag**2
        result[:, first : first + _AT_ONCE] = np.log10(np.maximum(filters @ power.T, _FLOOR))
    np.maximum(result, result.max() - np.float32(_RANGE), out=result)
    result += 4
    result /= 4
    return result


@cache
def mel_filters(bins: int) -> np.ndarray:
    """Return the mel filters, triangles of equal area over frequencies, float64 ``[bins, 201]``.

    M. Slaney, "Auditory Toolbox", 1998: their corners lie at equal distances on a scale that is
    linear up to 1,000 Hz, 3 for each 200 Hz, and logarithmic above, 27 for each factor of 6.4.
    """
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    mels = np.linspace(0, top, bins + 2)
    above = 1000 * np.exp(np.log(6.4) * (mels - 15) / 27)
    corners = np.where(mels < 15, mels * 200 / 3, above)
    low, middle, high = (corners[place : place + bins, None] for place in range(3))
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    result: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return result
