"""The line of the user's model that called an op."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(r'File "(?P<path>.+?)", line (?P<line>\d+), in (?P<function>.+)\n(?P<code>.*)')
_PACKAGES = re.compile(r".*[\\/](?:site|dist)-packages[\\/]")
_TORCH = os.path.dirname(torch.__file__) + os.sep


def source_line(node: Node) -> str:
    """Return ``"file.py:12 in forward: code"`` for the innermost frame that is not torch's.

    torch.export records the ``forward`` methods on the way to an op and no other functions. A file
    of an installed package is named from the package on, any other by its base name: a plan tells
    nothing about the machine it was made on. Empty if torch recorded no such frame.
    """
    for frame in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        line = describe_line(frame["path"], int(frame["line"]), frame["function"], frame["code"])
        if line:
            return line
    return ""


def describe_line(path: str, line: int, function: str, code: str) -> str:
    """Return ``"file.py:12 in forward: code"``; empty for a file of torch's or no file."""
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
