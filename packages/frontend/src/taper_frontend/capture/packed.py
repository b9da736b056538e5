"""Find the calls of a module that take parameters packed by torch, which no plan can hold."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taper_frontend.errors import UnsupportedNode
from taper_frontend.request.refusals import user_line

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The reason for which such a call is refused.
PACKED = (
    "it takes a parameter that torch has packed, memory that only torch can read; export the "
    "module before torch packs or quantizes its parameters"
)


def is_packed(value: Any) -> bool:
    """Return whether a value is an object of one of torch's C++ classes, such as packed weights."""
    known = isinstance(value, torch.ScriptObject | CustomObjArgument)
    return known or type(value).__name__ == "FakeScriptObject"


def packed_calls(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[UnsupportedNode]:
    """Run a module and return the calls that take packed parameters, each once."""
    calls = _PackedCalls()
    try:
        with torch.no_grad(), calls:
            module(*args, **kwargs)
    except Exception:  # what was called before is of use
        pass
    return list(calls.found) or [
        UnsupportedNode(f"{name or 'the module itself'} ({type(part).__name__})", "op", PACKED, "")
        for name, part in module.named_modules()
        if any(map(is_packed, tree_leaves(list(vars(part).values()))))
    ]


class _PackedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[UnsupportedNode, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a call that takes a packed parameter."""
        if any(map(is_packed, tree_leaves((args, kwargs or {})))):
            frames = traceback.extract_stack()
            begin = max(i for i, frame in enumerate(frames) if frame.name == packed_calls.__name__)
            line = user_line(frames[begin + 1 :])
            self.found[UnsupportedNode(str(func), "op", PACKED, line)] = None
        return func(*args, **(kwargs or {}))
