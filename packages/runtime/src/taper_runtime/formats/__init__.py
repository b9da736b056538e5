"""Store the elements of a tensor: a file per format, and the registry.

Ops work with a tensor's dtype and shape; its format decides how an array stores the elements. To
add a format, write one file here, add its name to :data:`FAMILIES`, and add rows for the kernels
that read it. If no kernel reads the format, the tensor is decoded and numpy computes the node.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import largest
from taper_runtime.formats.plain import PLAIN as _PLAIN

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.formats.format import Family, Format, Shape

PLAIN = _PLAIN.name

#: The families, by the names of their files. A file is imported when a tensor has such a format.
FAMILIES = ("plain", "panels", "grouped_panels", "winograd", "blocks", "dots")

_NAME = re.compile(r"([a-z][a-z0-9_]*)((?:\.(?:0|[1-9][0-9]*|[a-z][a-z0-9]*))*)")
_MAX_LENGTH = 100


def family(name: str) -> Family:
    """Return the format family of this name, one of :data:`FAMILIES`."""
    found: Family = import_module(f"{__name__}.{name}").FAMILY
    return found


@lru_cache(maxsize=256)
def find(name: str) -> Format:
    """Return the format of this name: a family's name and its parameters, as in ``panels.1``.

    Raises
    ------
    OpError
        If there is no such family, or it does not take these parameters.
    """
    match = _NAME.fullmatch(name) if len(name) <= _MAX_LENGTH else None
    if match is None or match[1] not in FAMILIES:
        raise OpError(f"expected a format, one of {', '.join(FAMILIES)}; got {name[:60]!r}")
    kind = family(match[1])
    parameters = tuple(int(p) if p.isdigit() else p for p in match[2].split(".")[1:])
    if len(parameters) != len(kind.parameters) or not all(
        value in allowed for value, allowed in zip(parameters, kind.parameters, strict=True)
    ):
        raise OpError(f"expected a format {kind.spelling}, got {name!r}")
    return kind.make(*parameters)


class TensorType(NamedTuple):
    """The dtype, the shape and the format of a tensor: what type inference works on."""

    dtype: str
    shape: Shape
    format: str = PLAIN

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def storage(self) -> TensorType:
        """Return the plain type of the array that stores the tensor.

        Raises
        ------
        OpError
            If the format is unknown, or cannot hold this dtype and shape.
        """
        if self.format == PLAIN:
            return self
        return TensorType(*find(self.format).storage(self.dtype, self.shape))

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the contiguous tensor as it is stored."""
        storage = self.storage
        return storage.size * DTYPES[storage.dtype].size


def counted_bytes(tensor: TensorType) -> int:
    """Return the bytes of a tensor with zero dims counted as one, for :data:`.MAX_TENSOR_BYTES`."""
    dtype, shape, _ = tensor.storage
    return DTYPES[dtype].size * math.prod(largest(size, 1) for size in shape)


def encode(array: np.ndarray, type: TensorType) -> np.ndarray:
    """Return the array that stores ``array``, the values of a tensor of this type.

    Raises
    ------
    OpError
        If the format stores more than the values show: it stores what PACK is given.
    """
    if type.format == PLAIN:
        return array
    format_ = find(type.format)
    format_.packs([(type.dtype, type.shape)])
    return format_.encode(array)


def decode(stored: np.ndarray, type: TensorType) -> np.ndarray:
    """Return the values, of the type's dtype and shape, of a stored array."""
    if type.format == PLAIN:
        return stored
    return find(type.format).decode(stored, type.dtype, type.shape)
