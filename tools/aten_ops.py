"""Write the list of ATen's ops that the runtime checks targets of users' kernels against.

Run with ``python -m tools.aten_ops``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch

FILE = Path("packages/runtime/src/taper_runtime/extend/aten_ops.py")

TEXT = '''"""List ATen's functional ops, so that torch is not needed to find a misspelled target.

Written by ``python -m tools.aten_ops``.
"""

from __future__ import annotations

#: Names with their overloads, if they have others than ``default``.
_OPS = """
{ops}
"""


def aten_ops() -> list[str]:
    """Return the names, such as ``aten.relu.default``."""
    found = []
    for word in _OPS.split():
        name, *overloads = word.split(".")
        found += [f"aten.{{name}}.{{overload}}" for overload in overloads or ("default",)]
    return found
'''


def functional_ops() -> dict[str, list[str]]:
    """Return the overloads of each ATen op that returns tensors and writes to none."""
    found: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        returns_tensor = any("Tensor" in str(each.type) for each in schema.returns)
        is_out = any(argument.is_out for argument in schema.arguments)
        if not schema.name.startswith("aten::") or is_out or schema.is_mutable:
            continue
        if returns_tensor:
            name = schema.name.removeprefix("aten::")
            found.setdefault(name, []).append(schema.overload_name or "default")
    return {name: sorted(set(overloads)) for name, overloads in sorted(found.items())}


def text() -> str:
    """Return the file."""
    words = [
        name if overloads == ["default"] else ".".join([name, *overloads])
        for name, overloads in functional_ops().items()
    ]
    lines = textwrap.fill(" ".join(words), 98, break_long_words=False, break_on_hyphens=False)
    return TEXT.format(ops=lines)


if __name__ == "__main__":
    FILE.write_text(text())
