"""Speech: spectrograms, tokens and times are those of transformers; what is no audio is refused."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taper_runtime.cli
from taper_frontend import ExportError
from taper_frontend.decoders.speech_assets import speech_assets
from taper_runtime import InputError
from taper_runtime.generation.encoder_convention import EncoderConvention, SourceEncoder
from taper_runtime.speech import RATE, Transcriber, fallback, log_mel, read_wav
from taper_runtime.speech.spectrogram import mel_filters
from taper_runtime.speech.speech_settings import SPEECH
from taper_runtime.speech.transcriber import frames_per_position
from tests.support.cli_page import check_json, schema
from tests.support.whisper_models import (
    CONTEXT,
    GERMAN,
    SECONDS,
    START,
    TRANSCRIBE,
    extractor,
    whisper,
    whisper_plan,
)


def sound(seconds: float, seed: int) -> np.ndarray:
    """Return tones that come and go."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tones = np.zeros(len(at))
    for _ in range(6):
        level, pitch, pace = rng.random() / 10, 100 + 3000 * rng.random(), 3 * rng.random()
        tones += level * np.sin(2 * np.pi * pitch * at) * np.sin(2 * np.pi * pace * at).clip(0)
    return (tones + 0.01 * rng.standard_normal(len(at))).astype(np.float32)


def features(samples: np.ndarray) -> Any:
    """Return transformers' spectrogram, of a whole window at least."""
    longer = {} if len(samples) <= SECONDS * RATE else {"truncation": False, "padding": "longest"}
    return extractor()(samples, sampling_rate=RATE, return_tensors="pt", **longer).input_features


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    path = tmp_path_factory.mktemp("plans") / "whisper.taper"
    whisper_plan().save(path)
    return Transcriber(path)


@pytest.mark.parametrize("seconds", [1.3, 2, 7.777])
def test_spectrograms_are_transformers(seconds: float) -> None:
    samples = sound(seconds, 1)
    expected = features(samples)[0].numpy()
    silence = max(SECONDS * RATE - len(samples), 0)
    got = log_mel(np.pad(samples, (0, silence)), 80)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_long_spectrograms_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sound(2, 1)
    whole = log_mel(samples, 80)
    monkeypatch.setattr("taper_runtime.speech.spectrogram._AT_ONCE", 7)
    np.testing.assert_allclose(log_mel(samples, 80), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bins", [80, 128])
def test_filters_are_transformers(bins: int) -> None:
    from transformers import WhisperFeatureExtractor

    expected = WhisperFeatureExtractor(feature_size=bins).mel_filters.T
    np.testing.assert_allclose(mel_filters(bins), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("seconds", "seed", "options"),
    [
        (1.3, 5, {}),  # ends in silence
        (7.777, 7, {}),  # of several windows, the last of which is not whole
        (2.3, 2, {}),  # 30 frames remain, which transformers rounds to 14 steps
        (7.777, 4, {"language": "de"}),
        (1.3, 4, {"task": "translate"}),
    ],
)
def test_tokens_and_times_are_transformers(
    transcriber: Transcriber, seconds: float, seed: int, options: dict[str, str]
) -> None:
    samples = sound(seconds, seed)
    expected = whisper().generate(
        features(samples), return_timestamps=True, return_segments=True, **options
    )
    got = transcriber.transcribe(samples, **options)
    tokens = [token for segment in got.segments for token in segment.tokens]
    assert tokens == expected["sequences"][0].tolist()
    times = [(float(each["start"]), float(each["end"])) for each in expected["segments"][0]]
    assert len(times) > 1
    np.testing.assert_allclose([(s.start, s.end) for s in got.segments], times, atol=1e-9)
    words = [token for token in tokens if token < 20]
    assert got.text == "".join(f" w{word}" for word in words).strip()
    assert got.language in ("en", "de")


def test_doubts_are_transformers(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw at a temperature next to 0 takes the most likely token, so tokens are equal, too."""
    samples, model = sound(4.777, 7), whisper()
    theirs: dict[str, list[float]] = {"ratio": [], "mean": []}
    ours: dict[str, list[float]] = {"ratio": [], "mean": []}

    def spied(function: Any, found: list[float]) -> Any:
        def call(*args: Any) -> Any:
            found.append(float(function(*args)))
            return found[-1]

        return call

    for name, key in (("_retrieve_compression_ratio", "ratio"), ("_retrieve_avg_logprobs", "mean")):
        monkeypatch.setattr(model, name, spied(getattr(model, name), theirs[key]), raising=False)
    ratio = fallback.compression_ratio
    monkeypatch.setattr(
        "taper_runtime.speech.transcriber.compression_ratio", spied(ratio, ours["ratio"])
    )
    mean = fallback.ScoredRules.mean
    monkeypatch.setattr(fallback.ScoredRules, "mean", lambda *a: spied(mean, ours["mean"])(*a))
    lengths = set()
    for options in (
        {"temperature": (0.0, 1e-4), "compression_ratio_threshold": 0.8, "logprob_threshold": -9.0},
        *(
            {"temperature": (0.0, 1e-4), "logprob_threshold": -0.1, "no_speech_threshold": silence}
            for silence in (1e-3, 0.9)
        ),
    ):
        for each in (*theirs.values(), *ours.values()):
            each.clear()
        expected = model.generate(
            features(samples), return_timestamps=True, return_segments=True, **options
        )
        got = transcriber.transcribe(samples, seed=1, **options)
        tokens = [token for segment in got.segments for token in segment.tokens]
        assert tokens == expected["sequences"][0].tolist()
        assert ours["ratio"] == theirs["ratio"]
        np.testing.assert_allclose(ours["mean"], theirs["mean"], rtol=1e-4)
        lengths.add((len(tokens), len(ours["mean"])))
    assert len(lengths) > 1


def test_segments_come_as_they_are_read(transcriber: Transcriber) -> None:
    samples = sound(7.777, 7)
    whole = transcriber.transcribe(samples).segments
    segments = transcriber.segments(samples)
    assert next(segments) == whole[0]
    assert (*segments,) == whole[1:]


@pytest.mark.parametrize(
    ("changes", "prompt"),
    [
        ({"max_length": 9}, (None, TRANSCRIBE)),
        ({"forced_decoder_ids": None}, ()),
        ({"forced_decoder_ids": [[1, GERMAN], [3, 7]]}, (GERMAN,)),
        ({"language": "de"}, (GERMAN, TRANSCRIBE)),
        ({"task": "transcribe"}, (None, TRANSCRIBE)),
    ],
)
def test_prompts_of_generation_configs(changes: dict[str, Any], prompt: tuple[Any, ...]) -> None:
    with changed(whisper().generation_config, changes):
        settings = json.loads(speech_assets(whisper(), 128)[SPEECH])
    assert settings["start"] == START
    assert settings["suppressed"] == [3, START]
    assert tuple(settings["forced"]) == prompt


def changed(config: Any, changes: dict[str, Any]) -> Any:
    """Return a context in which a config has other values."""
    from unittest.mock import patch

    return patch.multiple(config, create=True, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_timestamps_token_id": None}, "expected a token of 'no_timestamps', .* got None"),
        ({"logprob_threshold": -1.0}, "generation_config.logprob_threshold .* expected None"),
        ({"condition_on_prev_tokens": True}, "condition_on_prev_tokens .*: expected None"),
        ({"language": "xx"}, r"generation_config.language: expected one of .* got 'xx'"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with (
        changed(whisper().generation_config, changes),
        pytest.raises(ExportError, match=message),
    ):
        speech_assets(whisper(), 128)


def write(
    path: Path, samples: np.ndarray, width: int = 2, rate: int = RATE, channels: int = 1
) -> None:
    """Write a wav file of samples of so many bytes."""
    numbers = np.round(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        numbers += 128
    data = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files(tmp_path: Path, width: int) -> None:
    samples = sound(0.1, 0)
    write(tmp_path / "a.wav", samples, width)
    np.testing.assert_allclose(read_wav(tmp_path / "a.wav"), samples, atol=2.0 ** (2 - 8 * width))


def test_files_that_are_refused(tmp_path: Path) -> None:
    path, samples = tmp_path / "a.wav", sound(0.1, 0)

    def refuses(message: str) -> None:
        with pytest.raises(InputError, match=message):
            read_wav(path)

    write(path, samples, channels=2)
    refuses("a.wav: expected one channel, got 2; `ffmpeg")
    write(path, samples, rate=44_100)
    refuses("expected 16000 samples a second, got 44100; `ffmpeg")
    write(path, samples[:0])
    refuses("expected samples, got none")
    write(path, samples)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    refuses("expected 1600 samples, as its header says, got 1550: the file is cut short")
    for begin in (data[:20], b"", b"no wav" * 20):
        path.write_bytes(begin)
        refuses("expected a wav file of PCM")
    path.write_bytes(data[:20] + b"\x03" + data[21:])  # floats
    refuses("expected a wav file of PCM: unknown format: 3")
    with pytest.raises(FileNotFoundError):
        read_wav(tmp_path / "b.wav")


@pytest.mark.parametrize(
    ("audio", "options", "message"),
    [
        (np.zeros(0, np.float32), {}, "audio: expected samples, got none"),
        (
            np.zeros((9, 2), np.float32),
            {},
            r"samples of one channel, float32 \[n\], got float32 of",
        ),
        (np.zeros(9), {}, r"float32 \[n\], got float64 of shape \(9,\)"),
        ([0.0], {}, r"float32 \[n\], got an array"),
        (np.full(9, np.nan, np.float32), {}, "audio: expected finite samples, got NaN or infinity"),
        (np.zeros(9, np.float32), {"language": "xx"}, "language: expected 'en', 'de', got 'xx'"),
        (np.zeros(9, np.float32), {"temperature": ()}, "temperature: expected a number of at leas"),
        (np.zeros(9, np.float32), {"temperature": -1}, "temperature: expected a number of at leas"),
        (np.zeros(9, np.float32), {"logprob_threshold": "a"}, "logprob_threshold: expected None o"),
        (np.zeros(9, np.float32), {"no_speech_threshold": 0.5}, "a logprob_threshold beside it, w"),
        (np.zeros(9, np.float32), {"seed": -1.5}, "seed: expected None or an int"),
        (np.zeros(9, np.float32), {"beams": 2}, "beams: unknown option; expected temperature, co"),
        (
            np.zeros(9, np.float32),
            {"task": "sing"},
            "task: expected 'translate', 'transcribe', got",
        ),
    ],
)
def test_audio_that_is_refused(
    transcriber: Transcriber, audio: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        transcriber.segments(audio, **options)
    with pytest.raises(InputError, match="samples: expected more than 200, half a window, got 200"):
        log_mel(np.zeros(200, np.float32), 80)


def test_plans_that_are_no_such_recognizers() -> None:
    alone = whisper_plan().entry("decode")
    others = {key: value for key, value in alone.metadata.items() if key != "encoder"}
    with pytest.raises(InputError, match="plan: expected an encoder of spectrograms, got a plan"):
        Transcriber(alone._replace(metadata=others))
    whole = whisper_plan()
    good = json.loads(whole.assets[SPEECH].tobytes())
    for change, message in (
        ({"more": 1}, "expected an object with start, end, no_timestamps, forced"),
        ({"start": 128}, "start: expected a token from 0 to 127, got 128"),
        ({"no_timestamps": 127}, "no_timestamps: expected a token after the end, before times"),
        ({"no_timestamps": 19}, "no_timestamps: expected a token after the end, before times"),
        ({"suppressed": [None]}, "suppressed: expected a list of tokens"),
        ({"forced": [True]}, "forced: expected a list of tokens"),
        ({"languages": {"en": -1}}, "languages: expected an object of tokens"),
        ({"last_first_time": -1}, "last_first_time: expected null or a number, got -1"),
    ):
        asset = json.dumps({**good, **change}).encode()
        with pytest.raises(InputError, match=message):
            Transcriber(whole.with_assets({SPEECH: asset}))


def test_frames_are_a_multiple_of_positions() -> None:
    convention = EncoderConvention(0, 100, (START,))
    for frames in (0, 50, 250):
        encoder = SourceEncoder(convention, "input_features", (1, 80, frames))
        with pytest.raises(InputError, match=f"expected a multiple of 100 frames, .* got {frames}"):
            frames_per_position(encoder)


def test_spectrograms_of_another_size(transcriber: Transcriber) -> None:
    for given, got in (
        (np.zeros((80, 3), np.float32), r"float32 of shape \(80, 3\)"),
        ([1], "an a"),
    ):
        with pytest.raises(InputError, match=rf"float32 of shape \(80, 200\), got {got}"):
            transcriber.generator.submit(given)
    assert transcriber.generator.context == CONTEXT


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, audio = tmp_path / "whisper.taper", tmp_path / "speech.wav"
    whisper_plan().save(plan)
    write(audio, sound(2.5, 5))
    assert taper_runtime.cli.main(["transcribe", str(plan), str(audio)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[0.")
    assert taper_runtime.cli.main(["transcribe", str(plan), str(audio), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check_json(schema("transcribe"), found)
    assert len(found["segments"]) == len([line for line in lines if line])
    doubt = ["--temperature", "0,0.5", "--logprob-threshold", "-0.1", "--seed", "1"]
    assert taper_runtime.cli.main(["transcribe", str(plan), str(audio), *doubt]) == 0
    assert capsys.readouterr().out.startswith("[0.")
    assert taper_runtime.cli.main(["transcribe", str(plan), str(audio), "--language", "x"]) == 1
    assert "language: expected 'en', 'de', got 'x'" in capsys.readouterr().err
