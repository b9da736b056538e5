"""Define an access to a persistent variable, and helpers that the kinds of caches share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from taper_openinfer.errors import StepError

#: One index of an access: a position, or the start and the end of a slice; None if left out.
Index = int | tuple[int | None, int | None]


#: A callback that gets the cells which are about to change, so that views of them are copied first.
Keep = Callable[[np.ndarray], None]


def filled_box(name: str, shape: tuple[int, ...], fill: np.ndarray) -> np.ndarray:
    """Return an array of one repeated value; zeros take no memory until they are written."""
    size = math.prod(shape) * fill.dtype.itemsize
    try:
        if size > np.iinfo(np.intp).max:
            raise MemoryError
        is_zero = not fill.tobytes().strip(b"\0")
        return np.zeros(shape, fill.dtype) if is_zero else np.full(shape, fill)
    except MemoryError:
        raise StepError(
            f"{name}: expected memory for {size} bytes of shape {shape}, got too little"
        ) from None


def wrong_shape(name: str, expected: tuple[int, ...], value: np.ndarray) -> StepError:
    """Return the error for a value of the wrong shape."""
    return StepError(f"{name}: expected a value of shape {expected}, got {value.shape}")


def show_access(access: Sequence[Index]) -> str:
    """Return indices in the spelling of programs: ``[1, 2..]``."""
    words = [
        "..".join("" if end is None else str(end) for end in index)
        if isinstance(index, tuple)
        else str(index)
        for index in access
    ]
    return f"[{', '.join(words)}]"
