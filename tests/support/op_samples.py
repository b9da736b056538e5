"""Samples of the registry as types, and arrays for types."""

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.formats import PLAIN, encode
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType

#: The ops that have samples: a block is more than a sample can hold.
SAMPLED = [op for op in REGISTRY.values() if not op.blocks]

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
    return [t and encode(a, t) for a, t in zip(sample.inputs, types, strict=True)]


def present(values):
    """Those that are no absent input's."""
    return [value for value in values if value is not None]


def array_of(tensor_type, rng):
    """Small values of a type: as indices mostly in range, as bfloat16 numbers, in blocks levels."""
    dtype, shape, format_ = tensor_type
    storage = DTYPES[dtype].storage
    if format_.startswith("blocks."):
        return np.asarray(rng.integers(0, 16, shape) * 0.3 - 0.7, storage)
    if dtype == "bfloat16":
        return rng.integers(0x3F00, 0x4100, shape, storage)
    if storage.kind == "f":
        return np.asarray(rng.standard_normal(shape), storage)
    return np.asarray(rng.integers(0, 2, shape), storage)


def name_of(value):
    """For the ids of parametrised tests."""
    return value.name
