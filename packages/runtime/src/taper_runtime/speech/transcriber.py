"""Write down speech with a plan of Whisper: window after window, with the times of segments."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.encoder_convention import read_encoder
from taper_runtime.generation.generator import Generator
from taper_runtime.generation.sampling import log_softmax
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.speech.fallback import (
    ScoredRules,
    SpeechFallback,
    as_temperatures,
    compression_ratio,
)
from taper_runtime.speech.spectrogram import HOP, log_mel
from taper_runtime.speech.speech_settings import read_speech_settings
from taper_runtime.speech.timestamp_rules import TimestampRules
from taper_runtime.speech.wav import read_wav
from taper_runtime.text.tokenizer_asset import as_input_error, read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.generation.encoder_convention import SourceEncoder
    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.options import SessionOptions

#: Seconds from one time token to the next, and from one frame of a spectrogram to the next.
_STEP, _FRAME = 0.02, 0.01


class SpeechSegment(NamedTuple):
    """A segment of transcribed speech.

    Attributes
    ----------
    start, end : float
        Seconds from the beginning of the audio.
    text : str
    tokens : tuple of int
        With those that are times.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]


class Transcript(NamedTuple):
    """The transcript of an audio.

    Attributes
    ----------
    text : str
    segments : tuple of SpeechSegment
    language : str or None
        The code of the language, such as ``"en"``; None if the model has one language.
    """

    text: str
    segments: tuple[SpeechSegment, ...]
    language: str | None


class Transcriber:
    """Writes down speech with a plan of :func:`taper_frontend.export_decoder` of Whisper.

    The tokens are those of transformers' ``generate(return_timestamps=True)`` without the text of
    the window before as a prompt; where tokens are drawn, they are drawn from the same
    probabilities. Audio longer than a window is read in turns: the next window begins where the
    last whole segment ended.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes or Plan
        The plan, as :class:`taper_runtime.InferenceSession` takes it.
    sess_options : SessionOptions, optional
    model : str, optional
        The plan's name, if the file has several.

    Attributes
    ----------
    generator : Generator
    tokenizer : tokenizers.Tokenizer
    languages : tuple of str
        The codes of the languages that the model knows; empty if it has one.

    Raises
    ------
    InputError
        If the plan is no such recognizer, or has no tokenizer, or one that does not fit.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Plan,
        sess_options: SessionOptions | None = None,
        *,
        model: str | None = None,
    ) -> None:
        session = InferenceSession(path_or_bytes, sess_options, model=model)
        self.generator = Generator(session)
        words = self.generator.vocabulary
        encoder = read_encoder(session.plan, words)
        if encoder is None or encoder.convention.vocabulary:
            raise InputError("plan: expected an encoder of spectrograms, got a plan without one")
        self._bins, self._frames = map(int, encoder.shape[1:])
        self._stride = frames_per_position(encoder)
        self._settings = read_speech_settings(session.plan, words)
        self.tokenizer = read_tokenizer(session.plan, words)
        self.languages = tuple(self._settings.languages)

    def transcribe(
        self,
        audio: str | os.PathLike[str] | np.ndarray,
        *,
        language: str | None = None,
        task: str | None = None,
        **fallback: Any,
    ) -> Transcript:
        """Write down speech.

        Parameters
        ----------
        audio : str, os.PathLike or numpy.ndarray
            A wav file, or samples: float32 ``[n]`` from -1 to 1, 16,000 a second.
        language : str, optional
            The code of what is spoken, such as ``"en"``. By default the model tells by the first
            window.
        task : str, optional
            ``"transcribe"``, or ``"translate"`` into English; by default as the model was exported.
        **fallback
            When a window is written again at another temperature, or left out as silence, by the
            names of transformers' ``generate``: ``temperature``, a number or several, which are
            tried in order while the tokens are doubtful; ``compression_ratio_threshold``,
            ``logprob_threshold`` and ``no_speech_threshold``; and ``seed``. By default each window
            is written once, with the most likely tokens.

        Returns
        -------
        Transcript

        Raises
        ------
        InputError
            If the audio is empty or no such audio, the model does not know the language or the
            task, or an option is out of range.
        OSError
            If the file cannot be opened.
        """
        features, prompt, checked = self._begin(audio, language, task, fallback)
        segments = tuple(self._segments(features, prompt, checked))
        codes = {token: code for code, token in self._settings.languages.items()}
        return Transcript(
            "".join(each.text for each in segments).strip(),
            segments,
            next((codes[token] for token in prompt if token in codes), None),
        )

    def segments(
        self,
        audio: str | os.PathLike[str] | np.ndarray,
        *,
        language: str | None = None,
        task: str | None = None,
        **fallback: Any,
    ) -> Iterator[SpeechSegment]:
        """Return an iterator that transcribes speech segment by segment.

        Parameters, and errors, which are raised at once, are those of :meth:`transcribe`.
        """
        return self._segments(*self._begin(audio, language, task, fallback))

    def _begin(
        self, audio: Any, language: Any, task: Any, options: dict[str, Any]
    ) -> tuple[np.ndarray, list[int], SpeechFallback]:
        """Return the spectrogram, the tokens with which each window begins, and the options."""
        unknown = sorted(options.keys() - {*SpeechFallback._fields})
        if unknown:
            raise InputError(
                f"{unknown[0]}: unknown option; expected {', '.join(SpeechFallback._fields)}, "
                "language or task"
            )
        if "temperature" in options:
            options["temperature"] = as_temperatures(options["temperature"])
        fallback = SpeechFallback(**options)
        fallback.check()
        samples = _samples(audio)
        # shorter audio ends in silence; what is not a whole window of longer audio does not
        silence = max(self._frames * HOP - len(samples), 0)
        features = log_mel(np.pad(samples, (0, silence)), self._bins)
        return features, self._prompt(features, language, task), fallback

    def _prompt(self, features: np.ndarray, language: Any, task: Any) -> list[int]:
        """Return the tokens with which each window begins, in the order of transformers."""
        settings = self._settings
        is_plain = language is None and task is None
        tokens = [settings.start, *(settings.forced if is_plain else ())]
        known = None
        if language is not None:
            known = _token(settings.languages, language, "language")
        elif settings.languages and (len(tokens) < 2 or tokens[1] is None):
            known = self._spoken(features)
        if known is not None:
            tokens[1:2] = [known]
        if task is not None:
            tokens.append(_token(settings.tasks, task, "task"))
        elif language is not None and "transcribe" in settings.tasks:
            tokens.append(settings.tasks["transcribe"])
        if tokens[-1] == settings.no_timestamps:
            tokens.pop()
        return [token for token in tokens if token is not None]

    def _spoken(self, features: np.ndarray) -> int:
        """Detect the language of the first window; return its token."""
        languages = [*self._settings.languages.values()]

        def only(_: np.ndarray, logits: np.ndarray) -> np.ndarray:
            kept = np.full_like(logits, -np.inf)
            kept[languages] = logits[languages]
            return kept

        return self._write(self._window(features, 0), [self._settings.start], only, 1)[0]

    def _window(self, features: np.ndarray, first: int) -> np.ndarray:
        """Return the part of a spectrogram that one run of the encoder reads."""
        part = features[:, first : first + self._frames]
        return np.pad(part, ((0, 0), (0, self._frames - part.shape[1])))

    def _write(
        self, window: np.ndarray, prompt: Sequence[int], rules: Any, most: int, **draws: Any
    ) -> list[int]:
        """Write the tokens of a window."""
        return [
            *self.generator.generate(
                window,
                decoder_input_ids=prompt,
                max_new_tokens=most,
                logits_processors=[rules],
                eos_token_id=self._settings.end,
                **draws,
            )
        ]

    def _attempt(
        self,
        window: np.ndarray,
        prompt: list[int],
        fallback: SpeechFallback,
        numbers: Iterator[int],
    ) -> list[int] | None:
        """Write a window at one temperature after the other; return None for silence."""
        rules = TimestampRules(self._settings, len(prompt))
        room = self.generator.context - len(prompt)
        tokens: list[int] = []
        for temperature in fallback.temperature:
            scored = ScoredRules(rules, is_drawn=temperature > 0)
            draws = fallback.draws(temperature, next(numbers))
            tokens = self._write(window, prompt, scored, room, **draws)
            most, least = fallback.compression_ratio_threshold, fallback.logprob_threshold
            repeats = most is not None and (
                compression_ratio(tokens, self.generator.vocabulary) > most
            )
            is_unlikely = least is not None and scored.mean(tokens) < least
            silence = fallback.no_speech_threshold
            if is_unlikely and silence is not None and self._no_speech(window) > silence:
                return None
            if not (repeats or is_unlikely):
                break
        return tokens

    def _no_speech(self, window: np.ndarray) -> float:
        """Return the probability of the token that stands for silence, the first of a window."""
        settings, found = self._settings, []

        def keep(_: np.ndarray, logits: np.ndarray) -> np.ndarray:
            found.append(float(np.exp(log_softmax(logits)[settings.no_timestamps - 1])))
            return logits

        self._write(window, [settings.start], keep, 1)
        return found[0]

    def _segments(
        self, features: np.ndarray, prompt: list[int], fallback: SpeechFallback
    ) -> Iterator[SpeechSegment]:
        """Write window after window, and yield the segments of each."""
        numbers = count(0)
        begin, first, frames = self._settings.no_timestamps + 1, 0, features.shape[1]
        while first < frames:
            tokens = self._attempt(self._window(features, first), prompt, fallback, numbers)
            part = min(frames - first, self._frames)
            if tokens is None:
                first += part
                continue
            if tokens[-1] == self._settings.end:
                tokens.pop()
            pieces, steps = split_window(tokens, begin, _steps(part))
            offset = first / self._stride
            for start, end, piece in pieces:
                words = [token for token in piece if token < begin]
                with as_input_error():
                    text = self.tokenizer.decode(words, skip_special_tokens=True)
                first_s, last_s = (offset + start) * _STEP, (offset + end) * _STEP
                yield SpeechSegment(first_s, last_s, text, tuple(piece))
            first += part if steps is None else steps * self._stride


def frames_per_position(encoder: SourceEncoder) -> int:
    """Return the spectrogram's frames for each position of the encoder, one step of time.

    Raises
    ------
    InputError
        If the spectrogram is no whole number of positions.
    """
    positions, frames = encoder.convention.positions, int(encoder.shape[2])
    if not frames or frames % positions:
        raise InputError(
            f"plan: expected a multiple of {positions} frames, the positions of the encoder, got "
            f"{frames}"
        )
    return frames // positions


def _steps(frames: int) -> int:
    """Return the steps of time for a number of frames, rounded in float32 as in transformers."""
    return int(np.float32(frames) * np.float32(_FRAME) / np.float32(_STEP))


def split_window(
    tokens: Sequence[int], begin: int, steps: int
) -> tuple[list[tuple[int, int, list[int]]], int | None]:
    """Split the tokens of a window into segments, at pairs of timestamps.

    Parameters
    ----------
    tokens : sequence of int
    begin : int
        The first token that is a time: that of the window's beginning.
    steps : int
        The steps of time of the window.

    Returns
    -------
    list of tuple of int, int and list of int
        The first and the last step of each segment, and its tokens.
    int or None
        The step at which the next window begins; None if that is where this one ends.
    """
    is_time = [token >= begin for token in tokens]
    cuts = [place for place in range(1, len(tokens)) if is_time[place - 1] and is_time[place]]
    if not cuts:
        last = next((token for token in reversed(tokens) if token >= begin), begin)
        return [(0, steps if last == begin else last - begin, list(tokens))], None
    # a time that stands alone at the end: no speech follows it
    is_whole = is_time[-2:] == [False, True]
    ends = [*cuts, len(tokens)] if is_whole else [*cuts[:-1], cuts[-1] + 1]
    pieces, start = [], 0
    for end in ends:
        piece = list(tokens[start:end])
        last = piece[-1] if is_whole or end != ends[-1] else piece[-2]
        pieces.append((piece[0] - begin, last - begin, piece))
        start = end
    return pieces, None if is_whole else tokens[start - 2] - begin


def _samples(audio: Any) -> np.ndarray:
    """Read the samples of a file, or check given samples."""
    if isinstance(audio, (str, os.PathLike)):
        return read_wav(audio)
    if not isinstance(audio, np.ndarray) or audio.dtype != np.float32 or audio.ndim != 1:
        is_array = isinstance(audio, np.ndarray)
        got = f"{audio.dtype} of shape {audio.shape}" if is_array else describe(audio)
        raise InputError(
            f"audio: expected a wav file, or samples of one channel, float32 [n], got {got}"
        )
    if not len(audio):
        raise InputError("audio: expected samples, got none")
    if not np.isfinite(audio).all():
        raise InputError("audio: expected finite samples, got NaN or infinity")
    return audio


def _token(known: dict[str, int], name: Any, what: str) -> int:
    if name not in known:
        expected = ", ".join(map(repr, known)) if known else "None, for the model has no others"
        raise InputError(f"{what}: expected {expected}, got {describe(name)}")
    return known[name]
