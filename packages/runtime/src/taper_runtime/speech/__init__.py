"""Run speech recognizers of Whisper's design: speech in, text with times out, without torch.

>>> transcriber = taper_runtime.speech.Transcriber("whisper.taper")
>>> for segment in transcriber.segments("speech.wav"):
...     print(segment.start, segment.end, segment.text)

It needs ``pip install 'taper-runtime[text]'``, as :mod:`taper_runtime.text` does. The rest of Taper
does not import this package.
"""

from taper_runtime.speech.spectrogram import RATE, log_mel
from taper_runtime.speech.transcriber import SpeechSegment, Transcriber, Transcript
from taper_runtime.speech.wav import read_wav

__all__ = ["RATE", "SpeechSegment", "Transcriber", "Transcript", "log_mel", "read_wav"]
