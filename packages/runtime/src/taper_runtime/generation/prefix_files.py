"""Save the states of texts as a safetensors file, and map them again.

Text ``i`` is a tensor ``i/ids``, int64 ``[n]``, and one for each state, ``i/keys_0`` and so on,
with what its first ``n`` tokens wrote. The header's metadata have the fingerprint of the plan.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.buffers import address
from taper_runtime.base.checks import fail
from taper_runtime.base.file_limits import Limits
from taper_runtime.file.container import make_header, parse_header
from taper_runtime.file.mapping import mapped
from taper_runtime.file.reader import map_array
from taper_runtime.file.replacing import replace_file
from taper_runtime.generation.decoder_convention import POSITION_AXIS, counts_positions
from taper_runtime.generation.prefix_cache import KeptPrefix
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_runtime.base.loading import FilePath
    from taper_runtime.generation.decoder_convention import DecoderConvention
    from taper_runtime.plan.plan import Plan

_FORMAT = "taper prefixes"
_IDS = "ids"


def write_prefixes(path: FilePath, plan: Plan, prefixes: Iterable[KeptPrefix]) -> None:
    """Write states of texts; an existing file is replaced at once.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    arrays, types = {}, {}
    for number, each in enumerate(prefixes):
        for name, array in {_IDS: each.ids, **each.arrays}.items():
            dtype = "int64" if name == _IDS else plan.tensors[name].dtype
            arrays[f"{number}/{name}"] = np.ascontiguousarray(array)
            types[f"{number}/{name}"] = TensorType(dtype, array.shape)
    header, order = make_header({"format": _FORMAT, "plan": plan.fingerprint()}, types)
    parts = (arrays[name].reshape(-1).view("u1").data for name in order)
    replace_file(os.fsdecode(path), chain([header], parts))


def read_prefixes(path: FilePath, plan: Plan, convention: DecoderConvention) -> list[KeptPrefix]:
    """Map states of texts, checked to be those of a plan.

    Raises
    ------
    PlanFormatError
        If it is no such file, or one of another plan.
    OSError
        If it cannot be opened, or is not a regular file.
    """
    with mapped(path) as buffer:
        header = parse_header(buffer, Limits(), "a file of prefixes")
        for key, expected in (("format", _FORMAT), ("plan", plan.fingerprint())):
            found = header.metadata.get(key)
            if found != expected:
                fail(f"header.__metadata__.{key}", f"expected {expected!r}", found)
        base = address(buffer)
        texts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for whole, entry in header.entries.items():
            number, _, name = whole.partition("/")
            texts[number][name] = map_array(buffer, entry, base)
            if name != _IDS and name not in plan.states:
                fail(f"header[{whole!r}]", f"expected a state of {[*plan.states]}", name)
            dtype = "int64" if name == _IDS else plan.tensors[name].dtype
            if entry.dtype != dtype:
                fail(f"header[{whole!r}].dtype", f"expected {dtype}", entry.dtype)
        return [_checked(plan, convention, number, texts[number]) for number in texts]


def _checked(
    plan: Plan, convention: DecoderConvention, number: str, arrays: dict[str, np.ndarray]
) -> KeptPrefix:
    """Return a text whose ids and shapes are those of a plan."""
    if arrays.keys() != {_IDS, *plan.states}:
        fail(f"header[{number!r}]", f"expected {[_IDS, *plan.states]}", sorted(arrays))
    ids = arrays.pop(_IDS)
    if ids.ndim != 1 or not 1 <= len(ids) <= convention.context:
        fail(f"header['{number}/{_IDS}']", f"expected 1 to {convention.context} ids", ids.shape)
    if ids.min() < 0 or ids.max() >= convention.vocabulary:
        got = f"{ids.min()} to {ids.max()}"
        fail(f"{number}/{_IDS}", f"expected ids from 0 to {convention.vocabulary - 1}", got)
    for name, array in arrays.items():
        shape = [1, *plan.tensors[name].shape[1:]]
        if counts_positions(name):
            shape[POSITION_AXIS] = min(shape[POSITION_AXIS], len(ids))
        if [*array.shape] != shape:
            fail(f"header['{number}/{name}'].shape", f"expected {shape}", [*array.shape])
    return KeptPrefix(ids, arrays)
