"""Convert torch's tensors to arrays, and name their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from taper_frontend.lowering.representation import REPRESENTATIONS

if TYPE_CHECKING:
    import numpy as np

#: Taper's names of torch's dtypes, of those that plans have.
DTYPE_NAMES = {getattr(torch, name): name for name in REPRESENTATIONS}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor to a C-contiguous array in the form of sessions: bfloat16 as its bits."""
    return _array(tensor.detach().clone(memory_format=torch.contiguous_format))


def stored(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as the C-contiguous array that a plan stores: complex numbers as pairs.

    It is copied if it does not lie like this in memory.
    """
    tensor = tensor.detach()
    return _array(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)


def _array(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.cpu().resolve_conj().contiguous()
    return (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()
