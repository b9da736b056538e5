"""Add the command ``taper export-encoder``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from taper_frontend.cli.export_commands import public, saved
from taper_frontend.encoders.sentence_folder import POOLING_KEYS

if TYPE_CHECKING:
    import argparse

    from taper_runtime.cli.command_line import Result


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options; the runtime's command calls this through its entry point."""
    parser.description = "export a text encoder with its tokenizer to a plan"
    parser.add_argument("folder", type=Path, help="of sentence-transformers or transformers")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.taper", required=True)
    parser.add_argument(
        "--pooling",
        type=lambda text: text.split(","),
        metavar="MODE,...",
        help=f"for a folder without modules.json: {', '.join(POOLING_KEYS)}; several are joined",
    )
    parser.add_argument(
        "--normalize",
        action="store_true",
        help="for a folder without modules.json: give embeddings length 1",
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="the most tokens of a sentence")
    parser.add_argument(
        "--quantize", metavar="SCHEME", help="store weights in fewer bits, as in `taper export`"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not show on the terminal which step runs"
    )
    parser.set_defaults(command=_export_encoder)


def _export_encoder(args: argparse.Namespace) -> Result:
    """Export an encoder with the options of the command line, and save the plan."""
    with warnings.catch_warnings():
        # warnings of the export itself are in the report
        warnings.filterwarnings("ignore", module=r"taper_frontend\.")
        plan = public("export_encoder")(
            args.folder,
            pooling=args.pooling,
            normalize=args.normalize,
            max_length=args.max_length,
            quantize=args.quantize,
            progress=not args.quiet,
        )
    return saved(plan, args.output)
