"""Read files of weights: saved state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.buffers import address
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.file_limits import Limits
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.container import parse_header
from taper_runtime.file.mapping import mapped
from taper_runtime.file.reader import map_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taper_runtime.base.dtypes import DType
    from taper_runtime.base.loading import FilePath


class StoredWeight(NamedTuple):
    """One tensor of a file.

    Attributes
    ----------
    dtype : str
    array : numpy.ndarray
        Read-only; a view of the mapped file if it is aligned there.
    """

    dtype: str
    array: np.ndarray


def read_safetensors(
    path: FilePath, dtypes: Mapping[str, DType] = DTYPES
) -> dict[str, StoredWeight]:
    """Map a safetensors file; return its tensors by name.

    ``dtypes`` are the element types that it may have. It is checked like a plan's file. While
    arrays of it are in use the file may be deleted or replaced, but must not be changed in place.

    Raises
    ------
    PlanFormatError
        If it is not a safetensors file, or has an unknown dtype.
    OSError
        If it cannot be opened, or is not a regular file.
    """
    with mapped(path) as buffer:
        entries = parse_header(buffer, Limits(), "a safetensors file", dtypes).entries
        base = address(buffer)
        return {
            name: StoredWeight(entry.dtype, map_array(buffer, entry, base))
            for name, entry in entries.items()
        }
