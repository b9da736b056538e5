"""Exports PyTorch models to plans that taper_runtime runs without torch.

>>> plan = taper_frontend.export(module, args)
>>> plan.save("model.taper")

``export`` and ``explain`` need torch, which is imported when one of them is first used. The
compiler, :mod:`taper_frontend.compiler`, needs numpy and taper_runtime alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError, ExportWarning, UnsupportedOpError

if TYPE_CHECKING:
    from taper_frontend.explainer import explain
    from taper_frontend.exporter import export
    from taper_frontend.verify import VerificationError

__version__ = "0.1.0"

__all__ = [
    "ExportError",
    "ExportWarning",
    "UnsupportedOpError",
    "VerificationError",
    "explain",
    "export",
]

#: Names whose modules import torch, with their modules.
_WITH_TORCH = {
    "VerificationError": "taper_frontend.verify",
    "explain": "taper_frontend.explainer",
    "export": "taper_frontend.exporter",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for.

    Raises
    ------
    ImportError
        If torch is not installed, saying what to install.
    """
    from importlib import import_module

    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_WITH_TORCH[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"taper_frontend.{name} needs torch; install it with "
            "`pip install 'taper-frontend[torch]'`",
            name="torch",
        ) from error
    globals()[name] = value
    return value
