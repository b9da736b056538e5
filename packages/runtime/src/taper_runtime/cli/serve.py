"""Add the command ``taper serve``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_session_options,
    is_number,
    positive,
    session_options,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.serving import ServerLimits

#: The environment variable with the key that requests must have.
_KEY = "TAPER_API_KEY"

#: Names of this machine, for itself alone.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: The seconds that a server which is asked to stop waits for answers.
_GRACE_S = 30


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "serve plans over HTTP: OpenAI's protocol, and the Open Inference Protocol"
    parser.add_argument(
        "plans",
        nargs="+",
        metavar="[NAME=]FILE.taper",
        help="a plan, and what requests call it (default: the file's name without .taper)",
    )
    parser.add_argument(
        "--host",
        default=_LOOPBACK[1],
        help="the address to listen at (default: 127.0.0.1, for this machine alone)",
    )
    parser.add_argument(
        "--port", type=_port, default=8000, help="the port; 0 takes a free one (default: 8000)"
    )
    parser.add_argument(
        "--max-active",
        type=positive,
        metavar="N",
        help="the most texts that a model writes at once; others wait (default: 32)",
    )
    parser.add_argument(
        "--max-requests",
        type=positive,
        metavar="N",
        help="the most requests at once, waiting ones included (default: 256)",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=positive,
        metavar="N",
        help="the most bytes of a request's body (default: 16777216)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=positive,
        metavar="N",
        help="the most tokens of a text (default: as many as the context has room for)",
    )
    parser.add_argument(
        "--timeout-s",
        type=positive,
        metavar="S",
        help="the most seconds that a request takes, its wait included (default: 600)",
    )
    parser.add_argument(
        "--prefix-cache-bytes",
        type=positive,
        metavar="N",
        help="memory for what is known of earlier texts, so that texts that begin alike are not "
        "read again (default: 0)",
    )
    parser.add_argument(
        "--prompt-lookup-num-tokens",
        type=positive,
        metavar="N",
        help="guess up to N tokens of a text that is written alone from what it has already; the "
        "text stays the same (default: guess nothing)",
    )
    parser.add_argument(
        "--assistant-model",
        action="append",
        default=[],
        metavar="[NAME=]FILE.taper",
        help="a smaller model of the same tokens, which guesses what the model NAME writes, or the "
        "only one; once for each",
    )
    add_session_options(parser)
    parser.set_defaults(command=_serve)


def _port(text: str) -> int:
    if not is_number(text) or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _serve(args: argparse.Namespace) -> Result:
    """Serve until the process is asked to stop."""
    try:
        import uvicorn

        from taper_runtime import serving
    except ImportError as error:
        raise TaperError(
            f"taper serve needs the package {error.name}; install it with "
            "`pip install 'taper-runtime[serve]'`"
        ) from error
    limits, options = _limits(args), session_options(args)
    plans = [_named(text) for text in args.plans]
    assistants = _assistants(args.assistant_model, [name for name, _ in plans])
    models = [
        serving.open_model(name, path, options, limits, assistant_model=assistants.get(name))
        for name, path in plans
    ]
    is_local = args.host in _LOOPBACK
    key = os.environ.get(_KEY)
    application = serving.make_application(
        models,
        limits,
        api_key=key,
        hosts=(*_LOOPBACK[:2], f"[{_LOOPBACK[2]}]") if is_local else None,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listening = socket.create_server((args.host, args.port), family=family)
    host, port = listening.getsockname()[:2]
    names = [model.name for model in models]
    print(
        printable(f"taper: serving {', '.join(names)} at {host}, port {port}"),
        file=sys.stderr,
        flush=True,
    )
    if not is_local and key is None:
        print(
            f"taper: without a key in {_KEY}, whoever reaches this address can use the models",
            file=sys.stderr,
        )
    with listening, suppress(KeyboardInterrupt):
        server.run([listening])
    return Result({"host": host, "port": port, "models": names}, "stopped")


def _limits(args: argparse.Namespace) -> ServerLimits:
    """Return the limits that were given, and the defaults of the others."""
    from taper_runtime.serving import ServerLimits

    given = {name: getattr(args, name) for name in ServerLimits._fields}
    return ServerLimits(**{name: value for name, value in given.items() if value is not None})


def _assistants(given: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Return the paths of assistants by the names of the models that they guess for."""
    found: dict[str, Path] = {}
    for text in given:
        name, path = _named(text) if "=" in text or len(names) > 1 else (names[0], Path(text))
        if name not in names or name in found:
            expected = ", ".join(each for each in names if each not in found)
            raise InputError(
                f"--assistant-model {text!r}: expected NAME=FILE.taper with a model that has no "
                f"assistant ({expected}), got {name!r}"
            )
        found[name] = path
    return found


def _named(text: str) -> tuple[str, Path]:
    """Return the name and the path of a plan."""
    name, mark, path = text.partition("=")
    if not mark:
        return Path(text).name.removesuffix(".taper"), Path(text)
    if not path:
        raise InputError(f"{text!r}: expected NAME=FILE.taper")
    return name, Path(path)
