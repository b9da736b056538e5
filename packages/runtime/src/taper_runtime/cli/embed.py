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
from taper_runtime.cli.text_lines import text_lines

if TYPE_CHECKING:
    import argparse

    from taper_runtime.text import Encoder


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "embed sentences, one on each line of the standard input"
    add_plan(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.npy",
        help="write an array with a row for each sentence; by default a JSON array is printed for "
        "each",
    )
    form.add_argument(
        "--sparse",
        action="store_true",
        help="print the places and values of the numbers that are not 0, such as those of SPLADE",
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
    sentences = text_lines(sys.stdin.buffer.read())
    if args.sparse:
        return _sparse(encoder, sentences, args)
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


def _sparse(encoder: Encoder, sentences: list[str], args: argparse.Namespace) -> Result:
    """Print what is not 0; a sentence takes a line."""
    if args.normalize or args.truncate_dim is not None:
        name = "--normalize" if args.normalize else "--truncate-dim"
        raise InputError(
            f"{name}: expected none with --sparse, which prints what the model returns"
        )
    found = encoder.encode_sparse(
        sentences, args.batch_size, prompt_name=args.prompt_name, show_progress_bar=True
    )
    listed = found if isinstance(found, list) else [found]
    rows = [{"indices": each.indices.tolist(), "weights": each.weights.tolist()} for each in listed]
    data = {"sentences": len(rows), "dimension": encoder.dimension, "embeddings": rows}
    return Result(data, "\n".join(map(json.dumps, rows)))
