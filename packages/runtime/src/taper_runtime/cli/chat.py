"""Add the command ``taper chat``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from taper_runtime.cli.command_line import Result
from taper_runtime.cli.generate import (
    add_generation,
    generation_options,
    open_writer,
    show,
    speed,
)
from taper_runtime.cli.shared_options import add_plan

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "chat with a language model; each line of the standard input is a message"
    add_plan(parser)
    parser.add_argument("--system", metavar="TEXT", help="a message in front of the chat")
    add_generation(parser)
    parser.set_defaults(command=_chat)


def _chat(args: argparse.Namespace) -> Result:
    """Answer each line of the standard input."""
    writer = open_writer(args)
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    is_terminal = sys.stdin.isatty() and not args.json
    while True:
        if is_terminal:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return Result({"messages": messages}, "")
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\r\n")})
        stream = writer.chat(messages, **generation_options(args))
        text = show(stream, is_quiet=args.json)
        messages.append({"role": "assistant", "content": text})
        if not args.json:
            print(flush=True)
            print(speed(stream), file=sys.stderr)
