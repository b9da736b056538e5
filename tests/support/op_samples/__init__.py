"""Samples of every op: a module for each of taper_runtime.ops, with ``SAMPLES`` by op.

They are small, and cover every attr and every special case. Also their types, and arrays for types.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

import blocks_of
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.formats import PLAIN, encode
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from op_samples.sample import Sample

#: The ops that have samples: a block is more than a sample can hold.
SAMPLED = [op for op in REGISTRY.values() if not op.blocks]


@cache
def all_samples() -> dict[str, Callable[[], Iterable[Sample]]]:
    """Return what yields the samples, by op."""
    found: dict[str, Callable[[], Iterable[Sample]]] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= getattr(import_module(f"{__name__}.{module.name}"), "SAMPLES", {})
    return found


def samples_of(op: str) -> Iterable[Sample]:
    """Yield the samples of an op of the registry, the same at each call."""
    return all_samples()[op]()


_NAMES = {dtype.storage: name for name, dtype in DTYPES.items()}


def type_of(array):
    """The type of an array; one of uint16 holds bfloat16. None is an input that is absent."""
    if array is None:
        return None
    return TensorType(_NAMES[array.dtype], array.shape)


def types_of(arrays):
    return [type_of(array) for array in arrays]


def sample_types(sample):
    """The types of a sample's inputs, in their formats."""
    return [
        type_ and type_._replace(format=sample.formats.get(index, PLAIN))
        for index, type_ in enumerate(types_of(sample.inputs))
    ]


def stored_inputs(sample):
    """What stores a sample's inputs."""
    types = sample_types(sample)
    return [t and stored(a, t) for a, t in zip(sample.inputs, types, strict=True)]


def stored(array, tensor_type):
    """What stores an array, in blocks one of :func:`array_of`."""
    if tensor_type.format.startswith("blocks."):
        return blocks_of.stored(array, tensor_type.format)
    return encode(array, tensor_type)


def present(values):
    """Those that are no absent input's."""
    return [value for value in values if value is not None]


def array_of(tensor_type, rng):
    """Small values of a type: as indices mostly in range, as bfloat16 numbers, in blocks levels."""
    dtype, shape, format_ = tensor_type
    storage = DTYPES[dtype].storage
    if format_.startswith("blocks."):
        return np.asarray(rng.integers(-2, 2, shape) / 8, storage)
    if dtype == "bfloat16":
        return rng.integers(0x3F00, 0x4100, shape, storage)
    if storage.kind == "f":
        return np.asarray(rng.standard_normal(shape), storage)
    return np.asarray(rng.integers(0, 2, shape), storage)


def name_of(value):
    """For the ids of parametrised tests."""
    return value.name
