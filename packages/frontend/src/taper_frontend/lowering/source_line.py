"""Find the line of the user's model that called an op."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(r'File "(?P<path>.+?)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code>.*)')
_PACKAGES = re.compile(r".*[\\/](?:site|dist)-packages[\\/]")
_MODULE = re.compile(r" in \S+\.(?=\w+(?:: |$))")
_TORCH = os.path.dirname(torch.__file__) + os.sep


def source_line(node: Node) -> str:
    """Return ``"file.py:12 in encoder.0.forward: code"`` for the innermost frame of user code.

    torch.export records the ``forward`` methods that lead to an op, and no other functions. The
    path of the module precedes the name of the method if torch recorded it. A file of an installed
    package is named by its path from the package on, any other file by its base name, so that a
    plan reveals nothing about the machine. The result is empty if torch recorded only its own
    frames.
    """
    module = _module_path(node)
    for frame in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
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
    if generated or path.startswith(_TORCH) or (installed and name.startswith("torch/")):
        return ""
    if not installed:
        name = name.rpartition("/")[2]
    place = f"{name}:{line} in {function}"
    code = code.strip()
    return f"{place}: {code}" if code else place


def without_module(source: str) -> str:
    """Return a source line without its module's path."""
    return _MODULE.sub(" in ", source, count=1)


def _module_path(node: Node) -> str:
    """Return the path of the innermost user module in which a node was called."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, kind in stack.values() if not str(kind).startswith("torch.nn.modules.")]
    return str(paths[-1]) if paths else ""
