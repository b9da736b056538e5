"""Runs exported PyTorch models on CPUs with numpy and one small native library.

>>> session = taper_runtime.InferenceSession("model.taper")
>>> outputs = session.run(None, {"x": x})
"""

from taper_runtime.config import show_config
from taper_runtime.errors import (
    InputError,
    InternalError,
    OpError,
    PlanFormatError,
    TaperError,
    UnsupportedOpError,
)
from taper_runtime.format.reader import load
from taper_runtime.plan.plan import Plan
from taper_runtime.session import (
    InferenceSession,
    ModelMeta,
    NodeArg,
    RunOptions,
    SessionOptions,
)

__version__ = "0.1.0"

__all__ = [
    "InferenceSession",
    "InputError",
    "InternalError",
    "ModelMeta",
    "NodeArg",
    "OpError",
    "Plan",
    "PlanFormatError",
    "RunOptions",
    "SessionOptions",
    "TaperError",
    "UnsupportedOpError",
    "load",
    "show_config",
]
