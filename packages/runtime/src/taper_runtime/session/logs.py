"""Log with ONNX Runtime's severities over Python's ``logging``, logger "taper_runtime"."""

from __future__ import annotations

import logging

from taper_runtime.base.errors import InputError

_LOGGER = logging.getLogger("taper_runtime")
#: By ONNX Runtime's number: verbose, info, warning, error, fatal.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
VERBOSE, INFO, WARNING = 0, 1, 2


def set_default_logger_severity(severity: int) -> None:
    """Set the least severity that is logged: the level of the logger "taper_runtime".

    Sessions opened from now on use it, unless they have a severity of their own. The program's own
    ``logging`` handlers decide where messages go.

    Parameters
    ----------
    severity : int
        0 verbose (DEBUG), 1 info, 2 warning, 3 error, 4 fatal (CRITICAL).

    Raises
    ------
    InputError
        On any other number.
    """
    if type(severity) is not int or severity not in range(len(_LEVELS)):
        raise InputError(f"severity: expected a number from 0 to 4, got {severity!r}")
    _LOGGER.setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: there is one verbose level."""


def default_severity() -> int:
    """Return the least severity that the logger lets through."""
    enabled = (number for number, level in enumerate(_LEVELS) if _LOGGER.isEnabledFor(level))
    return next(enabled, len(_LEVELS))


def log(severity: int, message: str, *, least: int, tag: str = "") -> None:
    """Log a message whose severity is at least ``least``, with a session's or run's tag."""
    if severity >= least:
        text = f"{tag}: {message}" if tag else message
        level = _LEVELS[severity]
        # not Logger.log, for a session may let through more than the logger does
        _LOGGER.handle(_LOGGER.makeRecord(_LOGGER.name, level, __file__, 0, text, (), None))
