"""Tell which of torch's tensors a plan can have, and what it calls their dtypes."""

from __future__ import annotations

import torch

from taper_runtime.dtypes import DTYPES

DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES}


def refused_type(value: torch.Tensor) -> str:
    """Return what is wrong with the type of a tensor, empty if nothing is."""
    if value.layout != torch.strided:
        return f"expected a dense tensor, got {value.layout}"
    if value.dtype not in DTYPE_NAMES:
        return f"expected one of {', '.join(DTYPES)}, got {value.dtype}"
    return ""
