"""Keep what torch prints and logs off the terminal."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def quiet() -> Iterator[None]:
    """Drop torch's logs and its prints to stderr, unless ``TORCH_LOGS`` is set.

    Its errors contain the same facts. The graphs that it prints belong to a failed capture.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    handlers = _handlers()
    for handler in handlers:
        handler.addFilter(_none)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_none)


def _handlers() -> list[logging.Handler]:
    """Return the handlers of torch's loggers, many of which have one of their own."""
    loggers = logging.Logger.manager.loggerDict.items()
    return [
        handler
        for name, logger in loggers
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger)
        for handler in logger.handlers
    ]


def _none(record: logging.LogRecord) -> bool:
    return False
