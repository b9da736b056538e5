"""How the elements of a tensor are stored: a file per format, and the registry.

Ops speak of a tensor's dtype and shape; its format says which array holds it. A new format is one
file here, one line in :data:`FAMILIES`, and rows for the kernels that read it; whatever has no
kernel is decoded and computed by numpy.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from taper_runtime.errors import OpError
from taper_runtime.formats import blocks, grouped_panels, panels, plain, winograd
from taper_runtime.formats.format import Family, Format

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.ops.opdef import TensorType

__all__ = ["FAMILIES", "PLAIN", "Family", "Format", "decode", "encode", "find"]

PLAIN = plain.PLAIN.name

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (plain, panels, grouped_panels, winograd, blocks)
}

_NAME = re.compile(r"([a-z][a-z0-9_]*)((?:\.(?:0|[1-9][0-9]*))*)")
_MAX_LENGTH = 100


@lru_cache(maxsize=256)
def find(name: str) -> Format:
    """Return the format of this name: a family's, then its parameters, as in ``panels.1``.

    Raises
    ------
    OpError
        If there is no such family, or it does not take these parameters.
    """
    match = _NAME.fullmatch(name) if len(name) <= _MAX_LENGTH else None
    family = FAMILIES.get(match[1]) if match else None
    if match is None or family is None:
        raise OpError(f"expected a format, one of {', '.join(FAMILIES)}; got {name[:60]!r}")
    parameters = tuple(map(int, match[2].split(".")[1:]))
    if len(parameters) != len(family.parameters) or not all(
        value in allowed for value, allowed in zip(parameters, family.parameters, strict=True)
    ):
        raise OpError(f"expected a format {family.spelling}, got {name!r}")
    return family.make(*parameters)


def encode(array: np.ndarray, type: TensorType) -> np.ndarray:
    """Return what stores ``array``, the values of a tensor of this type."""
    return array if type.format == PLAIN else find(type.format).encode(array)


def decode(stored: np.ndarray, type: TensorType) -> np.ndarray:
    """Return the values, of the type's dtype and shape, of a stored array."""
    if type.format == PLAIN:
        return stored
    return find(type.format).decode(stored, type.dtype, type.shape)
