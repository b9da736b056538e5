"""Write the table of ATen ops' parameters with which PT2 archives are read where torch is not.

python -m tools.schemas          writes it, for the torch that is installed
python -m tools.schemas --check  fails if it is another
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.ao.quantization.fx._decomposed  # registers its ops
from transformers.integrations import moe  # noqa: F401  (registers its op)

import taper_frontend.pt2
import torchao_ops  # noqa: F401  (registers torchao's ops)
from taper_frontend.capture.read_exported import schema
from taper_frontend.lowering import HANDLERS
from taper_frontend.pt2.schemas import TABLE

#: Where ops with handlers come from.
_NAMESPACES = ("aten", "quantized", "quantized_decomposed", "torchao", "transformers")

PATH = Path(taper_frontend.pt2.__file__).with_name(TABLE)


def table() -> dict[str, object]:
    """Return the table for the ops that have a handler and that torch has."""
    ops = {name: op for name in sorted(HANDLERS) if (op := _op(name)) is not None}
    return {
        "draws": [n for n, op in ops.items() if torch.Tag.nondeterministic_seeded in op.tags],
        "parameters": {name: [list(each) for each in schema(op)] for name, op in ops.items()},
    }


def text() -> str:
    """Return the file's content: one op a line."""
    made = table()
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(p)}" for n, p in made["parameters"].items())
    return f'{{"draws": {json.dumps(made["draws"])},\n"parameters": {{\n{lines}\n}}}}\n'


def _op(name: str) -> torch._ops.OpOverload | None:
    namespace, *parts = name.split(".")
    if len(parts) != 2 or namespace not in _NAMESPACES:
        return None
    packet = getattr(getattr(torch.ops, namespace), parts[0], None)
    return getattr(packet, parts[1], None)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if PATH.read_text() == text() else f"{PATH} is for another torch")
    PATH.write_text(text())
