"""Read wav files of the kind that speech recognizers take, with the standard library."""

from __future__ import annotations

import os
import wave
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import printable
from taper_runtime.speech.spectrogram import RATE

if TYPE_CHECKING:
    from taper_runtime.base.loading import FilePath

#: The bytes of a sample -> its type, and what is subtracted; 3 bytes are widened to 4.
_SAMPLES = {1: ("u1", 128), 2: ("<i2", 0), 3: ("<i4", 0), 4: ("<i4", 0)}


def read_wav(path: FilePath) -> np.ndarray:
    """Return the samples of a wav file, float32 ``[n]`` from -1 to 1.

    Parameters
    ----------
    path : str or os.PathLike
        A file of PCM in 8, 16, 24 or 32 bits, with one channel of 16,000 samples a second.

    Raises
    ------
    InputError
        If it is another file, or ends before its samples do.
    OSError
        If it cannot be opened.
    """
    name = printable(os.fsdecode(path))
    with open(path, "rb") as file:
        try:
            with wave.open(file) as sound:
                channels, width, rate, count = sound.getparams()[:4]
                data = sound.readframes(count)
        except (wave.Error, EOFError) as error:
            reason = str(error) or "it ends too early"
            raise InputError(f"{name}: expected a wav file of PCM: {reason}") from None
    if channels != 1:
        raise InputError(f"{name}: expected one channel, got {channels}; {_hint()}")
    if rate != RATE:
        raise InputError(f"{name}: expected {RATE} samples a second, got {rate}; {_hint()}")
    if width not in _SAMPLES:
        raise InputError(f"{name}: expected samples of 1 to 4 bytes, got {width}")
    if len(data) != count * width:
        raise InputError(
            f"{name}: expected {count} samples, as its header says, got {len(data) // width}: the "
            "file is cut short"
        )
    if not count:
        raise InputError(f"{name}: expected samples, got none")
    if width == 3:
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(count, 3)
        data, width = wide.tobytes(), 4
    kind, zero = _SAMPLES[width]
    samples = np.frombuffer(data, kind).astype(np.float64) - zero
    result: np.ndarray = (samples / 2 ** (8 * width - 1)).astype(np.float32)
    return result


def _hint() -> str:
    return f"`ffmpeg -i IN.wav -ac 1 -ar {RATE} OUT.wav` makes such a file"
