"""Add the command ``taper rank``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from taper_runtime.base.text import printable
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


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "sort documents, one on each line of the standard input, by a query"
    add_plan(parser)
    parser.add_argument("query", help="what the documents are to answer")
    parser.add_argument(
        "--top-k", type=positive, metavar="N", help="print the best N (default: all)"
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=32,
        metavar="N",
        help="how many documents are computed at once (default: 32)",
    )
    parser.add_argument(
        "--prompt-name", metavar="NAME", help="the prompt of the model to put before the query"
    )
    add_session_options(parser)
    parser.set_defaults(command=_rank)


def _rank(args: argparse.Namespace) -> Result:
    """Score the lines of the standard input, and print them with the best first."""
    from taper_runtime.text import CrossEncoder

    ranker = CrossEncoder(load_plan(args), session_options(args))
    found = ranker.rank(
        args.query,
        text_lines(sys.stdin.buffer.read()),
        args.top_k,
        return_documents=True,
        batch_size=args.batch_size,
        prompt_name=args.prompt_name,
        show_progress_bar=True,
    )
    lines = [f"{each['score']:.6g}\t{printable(each['text'])}" for each in found]
    return Result({"query": args.query, "documents": found}, "\n".join(lines))
