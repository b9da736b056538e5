"""Convert torch's tensors to arrays, and name their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from taper_frontend.compiler.analysis.float_codes import TORCH_FLOATS
from taper_frontend.lowering.representation import REPRESENTATIONS

if TYPE_CHECKING:
    import numpy as np

#: Taper's names of torch's dtypes, of those that plans have.
DTYPE_NAMES = {getattr(torch, name): name for name in REPRESENTATIONS}

#: torch's floats of 8 bits.
FLOATS_8_BIT = frozenset(getattr(torch, name) for name in TORCH_FLOATS)

#: As what arrays have the bits of dtypes that numpy lacks.
_BITS = {torch.bfloat16: torch.uint16} | dict.fromkeys(FLOATS_8_BIT, torch.uint8)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor to a C-contiguous array in the form of sessions: bfloat16 as its bits."""
    return _array(tensor.detach().clone(memory_format=torch.contiguous_format))


def stored(tensor: torch.Tensor) -> np.ndarray:
    """View a tensor as the C-contiguous array that a plan stores.

    Complex numbers are pairs, floats of 8 bits their codes.

    It is copied if it does not lie like this in memory.
    """
    tensor = tensor.detach()
    return _array(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)


def _array(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.cpu().resolve_conj().contiguous()
    bits = _BITS.get(values.dtype)
    return (values if bits is None else values.view(bits)).numpy()
