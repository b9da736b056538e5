"""Exports PyTorch models to plans that taper_runtime runs without torch.

>>> plan = taper_frontend.export(module, args)
>>> plan.save("model.taper")
"""

__version__ = "0.1.0"

from taper_frontend.errors import ExportError, ExportWarning, UnsupportedOpError
from taper_frontend.explain import explain
from taper_frontend.export import export
from taper_frontend.verify import VerificationError

__all__ = [
    "ExportError",
    "ExportWarning",
    "UnsupportedOpError",
    "VerificationError",
    "explain",
    "export",
]
