"""Run exported PyTorch models on CPUs with numpy and one small native library.

>>> session = taper_runtime.InferenceSession("model.taper")
>>> outputs = session.run(None, {"x": x})
"""

from typing import TYPE_CHECKING

from taper_runtime.base import VERSION
from taper_runtime.base.errors import (
    InputError,
    InternalError,
    KernelError,
    OpError,
    OptionError,
    PlanFormatError,
    TaperError,
    UnsupportedOpError,
)
from taper_runtime.base.file_limits import Limits
from taper_runtime.base.option_values import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from taper_runtime.extend.providers import get_all_providers, get_available_providers, get_device
from taper_runtime.file.reader import list_models, load
from taper_runtime.plan.plan import Plan
from taper_runtime.reports import plan_methods
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import RunOptions, SessionOptions

if TYPE_CHECKING:
    from taper_runtime import capi, pt2
    from taper_runtime.extend.c_delegate import CDelegate
    from taper_runtime.extend.delegates import Delegate
    from taper_runtime.extend.kernels import (
        get_include,
        load_kernels,
        register_kernel,
        unregister_kernel,
    )
    from taper_runtime.extend.servers import ServedNode, Server
    from taper_runtime.generation.generator import Generator
    from taper_runtime.session.config import show_config
    from taper_runtime.session.ends import round_to_bfloat16
    from taper_runtime.session.iobinding import IOBinding
    from taper_runtime.session.logs import set_default_logger_severity, set_default_logger_verbosity
    from taper_runtime.session.modelmeta import ModelMeta
    from taper_runtime.session.nodearg import NodeArg
    from taper_runtime.session.ortvalue import OrtValue
    from taper_runtime.session.rails import RuntimeController, RuntimeRails
    from taper_runtime.session.state import State

__version__ = VERSION

plan_methods.attach()

__all__ = [
    "CDelegate",
    "Delegate",
    "ExecutionMode",
    "ExecutionOrder",
    "Generator",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InputError",
    "InternalError",
    "KernelError",
    "Limits",
    "ModelMeta",
    "NodeArg",
    "OpError",
    "OptionError",
    "OrtValue",
    "Plan",
    "PlanFormatError",
    "RunOptions",
    "RuntimeController",
    "RuntimeRails",
    "ServedNode",
    "Server",
    "SessionOptions",
    "State",
    "TaperError",
    "UnsupportedOpError",
    "capi",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_include",
    "list_models",
    "load",
    "load_kernels",
    "pt2",
    "register_kernel",
    "round_to_bfloat16",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "show_config",
    "unregister_kernel",
]

#: The modules of seldom used names, which are imported on first use.
_LATER = {
    "CDelegate": "extend.c_delegate",
    "Delegate": "extend.delegates",
    "Generator": "generation.generator",
    "ServedNode": "extend.servers",
    "Server": "extend.servers",
    "get_include": "extend.kernels",
    "load_kernels": "extend.kernels",
    "register_kernel": "extend.kernels",
    "unregister_kernel": "extend.kernels",
    "IOBinding": "session.iobinding",
    "ModelMeta": "session.modelmeta",
    "NodeArg": "session.nodearg",
    "OrtValue": "session.ortvalue",
    "RuntimeController": "session.rails",
    "RuntimeRails": "session.rails",
    "State": "session.state",
    "round_to_bfloat16": "session.ends",
    "set_default_logger_severity": "session.logs",
    "set_default_logger_verbosity": "session.logs",
    "show_config": "session.config",
}


def __getattr__(name: str) -> object:
    """Import a seldom used name on first use."""
    from importlib import import_module

    if name in ("capi", "pt2"):
        return import_module(f"taper_runtime.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'taper_runtime' has no attribute {name!r}")
    value = getattr(import_module(f"taper_runtime.{_LATER[name]}"), name)
    globals()[name] = value
    return value
