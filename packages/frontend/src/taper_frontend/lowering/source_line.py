"""Find the line of the user's model that called an op."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FRAME = re.compile(r'File "(?P<path>.+?)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code>.*)')
_PACKAGES = re.compile(r".*[\\/](?:site|dist)-packages[\\/]")
_MODULE = re.compile(r" in \S+\.(?=\w+(?:: |$))")


def source_line(stack_trace: str, modules: Mapping[str, tuple[str, object]]) -> str:
    """Return ``"file.py:12 in encoder.0.forward: code"`` for the innermost frame of user code.

    torch.export records the ``forward`` methods that lead to an op, and no other functions. The
    path of the module precedes the name of the method if torch recorded it. A file of an installed
    package is named by its path from the package on, any other file by its base name, so that a
    plan reveals nothing about the machine. The result is empty if torch recorded only its own
    frames.

    Parameters
    ----------
    stack_trace : str
        torch's text.
    modules : mapping of str to (str, object)
        The path and the class of each module on the way to the call, outermost first.
    """
    module = _module_path(modules)
    for frame in reversed(list(_FRAME.finditer(stack_trace))):
        function = f"{module}.{frame['function']}" if module else frame["function"]
        line = describe_line(frame["path"], int(frame["line"]), function, frame["code"])
        if line:
            return line
    return ""


def describe_line(path: str, line: int, function: str, code: str) -> str:
    """Return ``"file.py:12 in forward: code"``; empty for torch's own files or without a file."""
    name, installed = _PACKAGES.subn("", path)
    name = name.replace("\\", "/")
    generated = path.startswith("<eval_with_key>")
    if generated or _is_of_torch(path) or (installed and name.startswith("torch/")):
        return ""
    if not installed:
        name = name.rpartition("/")[2]
    place = f"{name}:{line} in {function}"
    code = code.strip()
    return f"{place}: {code}" if code else place


def _is_of_torch(path: str) -> bool:
    """Return whether a file is one of the torch in this process, wherever that is installed."""
    torch = sys.modules.get("torch")
    return torch is not None and path.startswith(os.path.dirname(str(torch.__file__)) + os.sep)


def without_module(source: str) -> str:
    """Return a source line without its module's path."""
    return _MODULE.sub(" in ", source, count=1)


def _module_path(modules: Mapping[str, tuple[str, object]]) -> str:
    """Return the path of the innermost user module in which a node was called."""
    paths = [
        path for path, kind in modules.values() if not str(kind).startswith("torch.nn.modules.")
    ]
    return str(paths[-1]) if paths else ""
