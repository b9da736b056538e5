"""Convert tensors of plans and safetensors files to model files, and back to safetensors."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_taper_name, taper_name
from taper_openinfer.oinf.contents import TensorSpec
from taper_runtime.base.checks import METADATA_NAME
from taper_runtime.base.dtypes import FILE_DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.container import make_header
from taper_runtime.file.replacing import replace_file
from taper_runtime.file.weights_file import read_safetensors
from taper_runtime.formats import PLAIN, decode, find
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.recipes import PARAMETER
from taper_runtime.plan.replaceable import completed, weight_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_openinfer.oinf.reader import Model, TensorInfo
    from taper_runtime.base.loading import FilePath
    from taper_runtime.plan.plan import Plan
    from taper_runtime.plan.recipes import RecipeStep

#: Element types of safetensors files that plans lack. OpenInfer has no ``float8_e4m3fn``, but every
#: number of it is exact in f16.
_FILE_NAMES = {"u16": "uint16", "u32": "uint32", "u64": "uint64", "f8": "float8_e5m2"}
_FROM_FILE = {name: dtype for dtype, name in _FILE_NAMES.items()}
_E4M3 = "float8_e4m3fn"


class PlanTensors(NamedTuple):
    """The weights of a plan.

    Attributes
    ----------
    tensors : dict of str to TensorSpec
    parameters : tuple of str
        The names of the tensors that are parameters or buffers of the module, as in its state dict.
    computed : tuple of str
        The names of all others: constants that the compiler made, as in the plan.
    """

    tensors: dict[str, TensorSpec]
    parameters: tuple[str, ...]
    computed: tuple[str, ...]


def plan_tensors(plan: Plan) -> PlanTensors:
    """Return the weights of a plan, as the module had them if possible.

    If the plan's weights can be replaced, these are the weights, and the constants that depend on
    no weight. Otherwise a constant that only rearranges the elements of one parameter is turned
    back into that parameter. All other constants stay as the compiler made them; packed ones are
    unpacked if that is exact. Tied parameters have the first of their names.
    """
    plan = completed(plan)
    specs: dict[str, TensorSpec] = {}
    for name, array in sorted(weight_values(plan).items()):
        specs[name] = TensorSpec(array, from_taper_name(plan.weights[name].dtype))
    parameters = set(specs)
    for name in sorted(plan.constants.keys() - plan.derived.keys()):
        array, dtype = _plain_constant(plan, name)
        found = _parameter(plan.provenance.get(name, ()), array) if dtype else None
        if found and found[0] not in specs:
            parameters.add(found[0])
            name, array = found
        specs[name] = TensorSpec(array, from_taper_name(dtype or plan.tensors[name].storage.dtype))
    computed = tuple(name for name in specs if name not in parameters)
    return PlanTensors(specs, tuple(sorted(parameters)), computed)


def _plain_constant(plan: Plan, name: str) -> tuple[np.ndarray, str]:
    """Return a constant in plain order and its dtype, or as stored with "" if it stays packed."""
    array, type_ = plan.constants[name], plan.tensors[name].type
    if type_.format == PLAIN:
        return array, type_.dtype
    if find(type_.format).tolerance:
        return array, ""
    return decode(array, type_), type_.dtype


def _parameter(recipe: Sequence[RecipeStep], array: np.ndarray) -> tuple[str, np.ndarray] | None:
    """Return the name and the elements of the parameter that a constant rearranges, or None."""
    if not recipe or recipe[0].op != PARAMETER:
        return None
    for place, step in reversed(list(enumerate(recipe))[1:]):
        if step.inputs != (place - 1,):
            return None
        if step.op == "TRANSPOSE":
            array = array.swapaxes(step.attrs["axis0"], step.attrs["axis1"])
        elif step.op == "PERMUTE":
            array = array.transpose(np.argsort(step.attrs["axes"]))
        elif step.op != "PACK":
            return None
    return recipe[0].attrs["names"][0], np.ascontiguousarray(array)


class SafetensorsTensors(NamedTuple):
    """The tensors of a safetensors file.

    Attributes
    ----------
    tensors : dict of str to TensorSpec
    widened : tuple of str
        The names of the tensors that got a wider type.
    """

    tensors: dict[str, TensorSpec]
    widened: tuple[str, ...]


def safetensors_source(path: FilePath) -> SafetensorsTensors:
    """Return the tensors of a safetensors file, with exactly the same values.

    Raises
    ------
    PlanFormatError
        If it is not a safetensors file, or has an unknown dtype.
    OSError
        If the file cannot be opened.
    """
    tensors = {}
    widened = []
    for name, (dtype, array) in read_safetensors(path, FILE_DTYPES).items():
        if dtype == _E4M3:
            widened.append(name)
            tensors[name] = TensorSpec(_from_e4m3(array), "f16")
        else:
            tensors[name] = TensorSpec(array, _FROM_FILE.get(dtype) or from_taper_name(dtype))
    return SafetensorsTensors(tensors, tuple(widened))


def _from_e4m3(bits: np.ndarray) -> np.ndarray:
    """Convert float8_e4m3fn (4 exponent bits, 3 mantissa bits, no infinities) to f16."""
    magnitude = (bits & 0x7F).astype(np.uint16)
    exponent, mantissa = magnitude >> 3, (magnitude & 7).astype(np.float32)
    small = mantissa * np.float32(2.0**-9)  # subnormal
    normal = (1 + mantissa / 8) * np.exp2(exponent.astype(np.float32) - 7)
    numbers = np.where(exponent == 0, small, normal)
    numbers = np.where(magnitude == 0x7F, np.float32(np.nan), numbers)
    return np.asarray(np.where(bits & 0x80, -numbers, numbers), np.float16)


class Written(NamedTuple):
    """The parts of a model that were written to a safetensors file, and those that were not.

    Attributes
    ----------
    tensors : tuple of str
    widened : tuple of str
        The names of the tensors that have a wider type there.
    left_out : tuple of str
        What such a file cannot hold: sizes, metadata, quantisation, tensors without data.
    """

    tensors: tuple[str, ...]
    widened: tuple[str, ...]
    left_out: tuple[str, ...]


def write_safetensors(path: FilePath, model: Model) -> Written:
    """Write the tensors of a model to a safetensors file, atomically and with exact values.

    Raises
    ------
    OinfError
        If a tensor's data are invalid.
    OSError
        If the file cannot be written. An existing file at ``path`` is then unchanged.
    """
    left_out = [*model.sizevars, *model.metadata]
    types: dict[str, TensorType] = {}
    for name, info in model.tensors.items():
        if not info.has_data or name == METADATA_NAME:
            left_out.append(name)
            continue
        types[name] = TensorType(_file_name(_wider(info.dtype)), info.shape)
        if info.is_quantized:
            left_out.append(f"{name} (quantization)")
    header, order = make_header({}, types, FILE_DTYPES)
    parts = (_stored(model.tensors[name]) for name in order)
    replace_file(os.fsdecode(path), chain([header], parts))
    dtypes = {name: model.tensors[name].dtype for name in types}
    widened = tuple(name for name, dtype in dtypes.items() if _wider(dtype) != dtype)
    return Written(tuple(types), widened, tuple(left_out))


def _file_name(dtype: str) -> str:
    return taper_name(dtype) or _FILE_NAMES[dtype]


def _wider(dtype: str) -> str:
    """Return an element type of safetensors files that holds all values of this one."""
    if DTYPES[dtype].is_packed:
        return "u8" if DTYPES[dtype].kind == "packed_unsigned" else "i8"
    return "u8" if dtype == "bitset" else dtype


def _stored(info: TensorInfo) -> bytes:
    """Return the bytes of a tensor in its type in a safetensors file."""
    storage = DTYPES[_wider(info.dtype)].storage
    return info.read().astype(storage.newbyteorder("<"), copy=False).tobytes()
