"""Add the command ``taper chat``."""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.generate import (
    add_generation,
    generation_options,
    open_writer,
    show,
    speed,
)
from taper_runtime.cli.shared_options import add_plan
from taper_runtime.cli.text_lines import text_line

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
    """Answer each line of the standard input; a line without an answer leaves no trace."""
    writer = open_writer(args)
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    is_terminal = sys.stdin.isatty() and not args.json
    failed = 0
    for number in count(1):
        if is_terminal:
            sys.stderr.write("> ")
            sys.stderr.flush()
        data = sys.stdin.buffer.readline()
        if not data:
            break
        if not data.strip():
            continue
        try:
            asked = {"role": "user", "content": text_line(data, number)}
            stream = writer.chat([*messages, asked], **generation_options(args))
            text = show(stream, is_quiet=args.json)
        except InputError as error:  # such as a chat that is longer than the context
            failed += 1
            print(f"taper: {error}", file=sys.stderr)
            continue
        messages += [asked, {"role": "assistant", "content": text}]
        if not args.json:
            print(flush=True)
            print(speed(stream), file=sys.stderr)
    lines = counted(failed, "line")
    return Result({"messages": messages}, "", f"{lines} got no answer" if failed else "")
