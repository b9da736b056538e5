"""Exclude the tokens that Whisper's decoder may not write next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.generation.sampling import log_softmax

if TYPE_CHECKING:
    from taper_runtime.speech.speech_settings import SpeechSettings


class TimestampRules:
    """Excludes tokens that Whisper's rules forbid after the earlier ones; a logits processor.

    A time comes first. Times stand in pairs, the end of a segment and the beginning of the next,
    but for the last, and do not decrease. Where all times together are more likely than every other
    token, a time comes next: A. Radford et al., 2022, section 4.5, and OpenAI's implementation of
    it.

    Parameters
    ----------
    settings : SpeechSettings
    prompt : int
        How many tokens the decoder began with.
    """

    def __init__(self, settings: SpeechSettings, prompt: int) -> None:
        self._settings = settings
        self._prompt = prompt

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return logits, float32 ``[words]``, with minus infinity for excluded tokens."""
        settings, begin = self._settings, self._settings.no_timestamps + 1
        written = ids[self._prompt :]
        logits[[*settings.suppressed, settings.no_timestamps]] = -np.inf
        if not len(written):
            logits[[*settings.suppressed_first]] = -np.inf
            logits[:begin] = -np.inf
            if settings.last_first_time is not None:
                logits[begin + settings.last_first_time + 1 :] = -np.inf
            return logits
        is_time = written >= begin
        is_paired = len(written) < 2 or bool(is_time[-2])
        if is_time[-1]:
            if is_paired:
                logits[begin:] = -np.inf
            else:
                logits[: settings.end] = -np.inf
        if is_time.any():
            last = int(written[is_time][-1])
            # the next segment may begin when the last one ends; another time is later
            logits[begin : last + (not (is_time[-1] and not is_paired))] = -np.inf
        if np.isfinite(logits[begin:]).any():
            likely = log_softmax(logits)
            if np.log(np.exp(likely[begin:]).sum()) > likely[:begin].max():
                logits[:begin] = -np.inf
        return logits
