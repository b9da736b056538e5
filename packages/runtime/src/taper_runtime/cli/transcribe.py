"""Add the command ``taper transcribe``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_plan,
    add_session_options,
    load_plan,
    session_options,
)
from taper_runtime.cli.text_lines import write_text

if TYPE_CHECKING:
    import argparse

    from taper_runtime.speech import SpeechSegment


#: The options that say what is doubtful.
_THRESHOLDS = {
    "compression_ratio_threshold": "a text is doubtful that zlib makes smaller by more",
    "logprob_threshold": "a text is doubtful whose tokens have a mean logarithm of their "
    "probabilities below this",
    "no_speech_threshold": "such a text is silence if the probability of silence is higher",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "write down the speech of a wav file"
    add_plan(parser)
    parser.add_argument(
        "audio", type=Path, metavar="SPEECH.wav", help="one channel of 16,000 samples a second"
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="what is spoken, such as en (default: as the model hears it)",
    )
    parser.add_argument(
        "--task",
        metavar="TASK",
        help="transcribe, or translate into English (default: the model's)",
    )
    parser.add_argument(
        "--temperature",
        type=_temperatures,
        metavar="T,...",
        help="0 takes the most likely tokens, more draws them; several are tried in order while "
        "the text is doubtful (default: 0)",
    )
    for name, doubtful in _THRESHOLDS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=doubtful)
    add_session_options(parser)
    parser.set_defaults(command=_transcribe)


def _temperatures(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _transcribe(args: argparse.Namespace) -> Result:
    """Print each segment as it is read."""
    from taper_runtime.speech import Transcriber

    transcriber = Transcriber(load_plan(args), session_options(args))
    segments = []
    names = ("temperature", *_THRESHOLDS, "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for each in transcriber.segments(args.audio, language=args.language, task=args.task, **given):
        segments.append(each)
        if not args.json:
            write_text(f"{printable(_line(each))}\n")
            sys.stdout.flush()
    data = [{**each._asdict(), "tokens": [*each.tokens]} for each in segments]
    return Result({"segments": data}, "")


def _line(segment: SpeechSegment) -> str:
    return f"[{segment.start:.2f} - {segment.end:.2f}] {segment.text.strip()}"
