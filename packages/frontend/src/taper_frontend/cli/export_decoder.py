"""Add the command ``taper export-decoder``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from taper_frontend.cli.export_commands import public, saved
from taper_runtime.cli.objects import named_object
from taper_runtime.cli.shared_options import positive

if TYPE_CHECKING:
    import argparse

    from taper_runtime.cli.command_line import Result


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options; the runtime's command calls this through its entry point."""
    parser.description = "export a language model of transformers to a plan"
    parser.add_argument(
        "model",
        metavar="FOLDER | FILE.gguf | MODULE:FACTORY",
        help="a local checkpoint, with its tokenizer, or a function that returns a model in "
        "evaluation mode",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.taper", required=True)
    parser.add_argument(
        "--max-context",
        type=positive,
        metavar="N",
        required=True,
        help="the most tokens of a text, prompt included",
    )
    parser.add_argument(
        "--max-source",
        type=positive,
        metavar="N",
        help="the most tokens that an encoder before the decoder reads",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("float32", "float16", "bfloat16", "int8"),
        help="keep keys and values in this dtype (default: that of the model)",
    )
    parser.add_argument(
        "--window-room",
        type=positive,
        default=64,
        metavar="N",
        help="positions that layers with a sliding window keep beside it: a text can go back by so "
        "many (default: 64)",
    )
    parser.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="store weights in fewer bits: int8, int4, int4.64.zeros, float16, bfloat16, ...; "
        "int8_grouped or int4_grouped: with activations of 8 bits; bfloat16_rounded: of 16 bits",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not show on the terminal which step runs"
    )
    parser.add_argument(
        "--no-verify",
        action="store_false",
        dest="verify",
        help="skip the run beside the module; the logits of texts are compared all the same",
    )
    parser.set_defaults(command=_export_decoder)


def _export_decoder(args: argparse.Namespace) -> Result:
    """Export a decoder with the options of the command line, and save the plan."""
    is_local = ":" not in args.model or Path(args.model).exists()
    model = Path(args.model) if is_local else named_object(args.model)()
    with warnings.catch_warnings():
        # warnings of the export itself are in the report
        warnings.filterwarnings("ignore", module=r"taper_frontend\.cli")
        plan = public("export_decoder")(
            model,
            max_context=args.max_context,
            max_source=args.max_source,
            cache_dtype=args.cache_dtype,
            window_room=args.window_room,
            quantize=args.quantize,
            progress=not args.quiet,
            verify=args.verify,
        )
    return saved(plan, args.output)
