"""Add the command ``taper generate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted, printable_lines
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_plan,
    add_session_options,
    load_plan,
    positive,
    session_options,
)
from taper_runtime.cli.text_lines import write_text

if TYPE_CHECKING:
    from taper_runtime.text import TextGenerator
    from taper_runtime.text.text_stream import TextStream


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "continue a prompt with a language model"
    add_plan(parser)
    parser.add_argument("prompt")
    add_generation(parser)
    parser.set_defaults(command=_generate)


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add the options of texts and of the session."""
    parser.add_argument(
        "--max-new-tokens",
        type=positive,
        default=256,
        metavar="N",
        help="the most tokens to write (default: 256)",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the text in front of this"
    )
    parser.add_argument(
        "--temperature",
        type=_number,
        metavar="T",
        help="draw tokens by their probabilities, more evenly for a higher one; 0 takes the most "
        "likely token (default: as the model says)",
    )
    parser.add_argument("--top-k", type=positive, metavar="K", help="draw from the K most likely")
    parser.add_argument(
        "--top-p", type=_number, metavar="P", help="draw from the most likely that make up P"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json-schema", metavar="FILE", help="write JSON that meets the schema in a file"
    )
    form.add_argument("--regex", metavar="REGEX", help="write a text that matches REGEX as a whole")
    form.add_argument(
        "--grammar", metavar="FILE", help="write a text by the grammar in a file, in Lark's form"
    )
    parser.add_argument(
        "--assistant-model",
        metavar="FILE.taper",
        help="a smaller model of the same tokens, which guesses what the model writes",
    )
    add_session_options(parser)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def open_writer(args: argparse.Namespace) -> TextGenerator:
    """Open the plan with the session's options."""
    from taper_runtime.session.inference_session import InferenceSession
    from taper_runtime.text import TextGenerator

    options, assistant = session_options(args), None
    if args.assistant_model is not None:
        assistant = InferenceSession(args.assistant_model, options)
    return TextGenerator(load_plan(args), options, assistant_model=assistant)


def generation_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of :func:`add_generation` that were given."""
    draws = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "seed")}
    given = {name: value for name, value in draws.items() if value is not None}
    if given.get("temperature") == 0:
        given = {"do_sample": False}
    elif given:
        given["do_sample"] = True
    return {
        "max_new_tokens": args.max_new_tokens,
        "stop": args.stop,
        "json_schema": _content(args.json_schema),
        "regex": args.regex,
        "grammar": _content(args.grammar),
        **given,
    }


def _content(path: str | None) -> str | None:
    """Return the text of a file, if one is given."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a text in UTF-8: {error}") from error


def show(stream: TextStream, *, is_quiet: bool) -> str:
    """Print the pieces of a text as they come, unless ``is_quiet``; return the text."""
    pieces = []
    for piece in stream:
        pieces.append(piece)
        if not is_quiet:
            write_text(printable_lines(piece))
            sys.stdout.flush()
    return "".join(pieces)


def speed(stream: TextStream) -> str:
    """Describe how fast a text was written."""
    return (
        f"{counted(stream.tokens, 'token')}, the first after {stream.first_token_s:.2f} s, then "
        f"{stream.tokens_per_second:.1f} tokens per second"
    )


def _generate(args: argparse.Namespace) -> Result:
    """Write one text."""
    writer = open_writer(args)
    stream = writer.generate(args.prompt, **generation_options(args))
    text = show(stream, is_quiet=args.json)
    if not args.json:
        print(f"\n{speed(stream)}", file=sys.stderr)
    data = {
        "text": text,
        "tokens": stream.tokens,
        "finish_reason": stream.finish_reason,
        "first_token_s": stream.first_token_s,
        "tokens_per_second": stream.tokens_per_second,
    }
    return Result(data, "")
