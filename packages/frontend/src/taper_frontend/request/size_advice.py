"""Tell what to write instead of a call that fixes a size that is to vary."""

from __future__ import annotations

import re

#: Calls that make a fixed number of a size, or take one alone, and what to write instead.
_FIXING = {
    r"\blen\(": "x.shape[0] for len(x), which makes a fixed number of the size",
    r"\bint\(": "math.trunc(...) for int(...), which makes a fixed number of the size",
    r"\bfloat\(": "torch.sym_float(...) for float(...), which makes a fixed number of the size",
    r"\bmath\.sqrt\(": "torch.sym_sqrt(...) for math.sqrt(...), which makes a fixed number of it",
    r"\bmath\.(log\w*|exp|sin|cos)\(": (
        "torch's function of torch.full((), size) for math's, which makes a number of the size"
    ),
    r"\blinspace\(": "start + step * torch.arange(size) for linspace, whose steps torch fixes",
}


def size_advice(line: str) -> str:
    """Return what to write instead of a call that fixes a size; empty if a line has none."""
    found = (f"; write {what}" for call, what in _FIXING.items() if re.search(call, line))
    return next(found, "")
