"""Add the command ``taper embed``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted, printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_plan,
    add_session_options,
    load_plan,
    positive,
    session_options,
)

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "embed sentences, one on each line of the standard input"
    add_plan(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.npy",
        help="write an array with a row for each sentence; by default a JSON array is printed for "
        "each",
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=32,
        metavar="N",
        help="how many sentences are computed at once (default: 32)",
    )
    parser.add_argument("--normalize", action="store_true", help="give each embedding length 1")
    parser.add_argument(
        "--truncate-dim", type=positive, metavar="N", help="keep the first N numbers of each"
    )
    parser.add_argument(
        "--prompt-name", metavar="NAME", help="the prompt of the model to put before each sentence"
    )
    add_session_options(parser)
    parser.set_defaults(command=_embed)


def _embed(args: argparse.Namespace) -> Result:
    """Embed the lines of the standard input."""
    from taper_runtime.text import Encoder

    encoder = Encoder(load_plan(args), session_options(args))
    sentences = _lines(sys.stdin.buffer.read())
    found = encoder.encode(
        sentences,
        args.batch_size,
        normalize_embeddings=args.normalize,
        truncate_dim=args.truncate_dim,
        prompt_name=args.prompt_name,
        show_progress_bar=True,
    )
    data = {"sentences": len(found), "dimension": found.shape[1]}
    if args.output is not None:
        with args.output.open("wb") as file:
            np.save(file, found)
        shape = f"{counted(len(found), 'sentence')} of {found.shape[1]} numbers"
        return Result({**data, "output": str(args.output)}, printable(f"{args.output}: {shape}"))
    rows = found.tolist()
    return Result({**data, "embeddings": rows}, "\n".join(map(json.dumps, rows)))


def _lines(data: bytes) -> list[str]:
    """Return the lines of UTF-8 text."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise InputError(f"line {number}: expected UTF-8: {error.reason}") from None
    return found
