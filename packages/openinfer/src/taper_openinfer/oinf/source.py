"""Sort the arguments of a writer, a dict, a dataclass or a model, into the parts of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_float32, of_array
from taper_openinfer.errors import OinfError, OpenInferError
from taper_openinfer.oinf.contents import (
    ArrayValue,
    Bitset,
    Quantization,
    ScalarValue,
    SizeVar,
    TensorSpec,
    UninitializedTensor,
)
from taper_openinfer.oinf.layout import fail
from taper_openinfer.oinf.reader import Model, TensorInfo
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from taper_openinfer.oinf.payloads import Value

_UNSIGNED = ("u8", "u16", "u32", "u64")
_SIGNED = ("i8", "i16", "i32", "i64")


class Tensor(NamedTuple):
    """A tensor to be written.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    data : numpy.ndarray, TensorInfo or None
        An array of the type's ``storage``, a tensor of another model, or None.
    quantization : Quantization or None
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray | TensorInfo | None
    quantization: Quantization | None


class Contents(NamedTuple):
    """The parts of a model, by name."""

    sizevars: dict[str, int]
    metadata: dict[str, Value]
    tensors: dict[str, Tensor]


def contents_of(source: object) -> Contents:
    """Sort the items of a dict, a dataclass or a model into sizes, metadata and tensors.

    Raises
    ------
    OinfError
        If the format cannot hold an item; the message names it.
    """
    if isinstance(source, Model):
        return _of_model(source)
    contents = Contents({}, {}, {})
    for name, value, is_size in _items(source):
        if isinstance(value, SizeVar) or (is_size and type(value) is int):
            contents.sizevars[name] = value if isinstance(value, int) else value.value
        elif isinstance(value, (TensorSpec, UninitializedTensor)):
            _add(contents, value.name or name, _tensor(value, f"tensors[{name!r}]"))
        elif isinstance(value, np.ndarray):
            _add(contents, name, _tensor(TensorSpec(value), f"tensors[{name!r}]"))
        else:
            contents.metadata[name] = _value(value, f"metadata[{name!r}]")
    return contents


def _of_model(model: Model) -> Contents:
    tensors = {
        name: Tensor(info.dtype, info.shape, info if info.has_data else None, info.quantization)
        for name, info in model.tensors.items()
    }
    metadata = {key: model.metadata.typed(key) for key in model.metadata}
    return Contents(dict(model.sizevars), metadata, tensors)


def _items(source: object) -> list[tuple[str, object, bool]]:
    """Return names, values, and whether each field is annotated as a size."""
    if isinstance(source, Mapping):
        return [(name, value, False) for name, value in source.items()]
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        return [
            (field.name, getattr(source, field.name), _is_size(field.type))
            for field in dataclasses.fields(source)
        ]
    raise OinfError(
        "source", f"expected a dict, a dataclass or a Model, got {type(source).__name__}"
    )


def _is_size(annotation: object) -> bool:
    """Return whether a field is annotated ``SizeVar``, as a type or as a text."""
    return annotation is SizeVar or (
        isinstance(annotation, str) and annotation.rpartition(".")[2] == "SizeVar"
    )


def _add(contents: Contents, name: str, tensor: Tensor) -> None:
    if name in contents.tensors:
        raise OinfError(f"tensors[{name!r}]", "expected each name once, got it again")
    contents.tensors[name] = tensor


def _tensor(spec: TensorSpec | UninitializedTensor, field: str) -> Tensor:
    data = None if isinstance(spec, UninitializedTensor) else _array(spec.data, f"{field}.data")
    dtype = spec.dtype or _dtype_of(np.asarray(data), field)
    if dtype not in DTYPES or dtype == "bitset":
        expected = ", ".join(name for name in DTYPES if name != "bitset")
        fail(f"{field}.dtype", f"expected one of {expected}", dtype)
    if isinstance(spec, UninitializedTensor):
        return Tensor(dtype, tuple(spec.shape), None, spec.quant)
    array = _stored(np.asarray(data), dtype, f"{field}.data")
    return Tensor(dtype, array.shape, array, spec.quant)


def _stored(array: np.ndarray, dtype: str, field: str) -> np.ndarray:
    """Convert numbers to elements of a type: floats are rounded, integers have to fit."""
    row = DTYPES[dtype]
    if array.dtype == row.storage:
        return array
    if row.kind == "float" and array.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            single = array.astype(np.float64 if dtype == "f64" else np.float32)
        return from_float32(dtype, single) if dtype in ("f16", "bf16", "f8") else single
    if row.kind in ("float", "bool") or array.dtype.kind not in "iu":
        fail(field, f"expected numbers of {dtype}", f"{array.dtype} elements")
    if array.size and not (row.low <= int(array.min()) and int(array.max()) <= row.high):
        got = f"{array.min()} to {array.max()}"
        raise OinfError(field, f"expected numbers of {row.low} to {row.high}, got {got}")
    return array.astype(row.storage)


def _array(data: object, field: str) -> np.ndarray:
    try:
        return np.asarray(data)
    except ValueError:  # lists of different lengths
        raise OinfError(
            field, "expected an array of numbers, got lists of several lengths"
        ) from None


def _dtype_of(array: np.ndarray, field: str) -> str:
    try:
        return of_array(array)
    except OpenInferError as error:
        raise OinfError(f"{field}.dtype", str(error)) from None


def _value(value: object, field: str) -> Value:
    """Return a value of metadata with its type.

    An int gets the smallest unsigned type that holds it, a negative int the smallest signed type, a
    float f32, and a list of ints the smallest signed type.
    """
    if isinstance(value, (str, Bitset, ScalarValue, ArrayValue)):
        return value
    if type(value) is bool:
        return ScalarValue(value, "bool")
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return ScalarValue(
            number, _smallest((number,), _SIGNED if number < 0 else _UNSIGNED, field)
        )
    if isinstance(value, (float, np.floating)):
        return ScalarValue(float(value), "f32")
    if isinstance(value, (list, tuple)):
        return _list(_array(value, field), field)
    raise OinfError(field, f"expected a number, text, list or tensor, got {type(value).__name__}")


def _list(array: np.ndarray, field: str) -> ArrayValue:
    if array.dtype.kind == "f":
        return ArrayValue(array.astype(np.float32), "f32")
    if array.dtype.kind == "b":
        return ArrayValue(array, "bool")
    if array.dtype.kind not in "iu":
        fail(field, "expected a list of numbers or bools", f"{array.dtype} elements")
    ends = (int(array.min()), int(array.max())) if array.size else (0, 0)
    dtype = _smallest(ends, _SIGNED, field)
    return ArrayValue(array.astype(DTYPES[dtype].storage), dtype)


def _smallest(numbers: tuple[int, ...], types: tuple[str, ...], field: str) -> str:
    for name in types:
        if DTYPES[name].low <= min(numbers) and max(numbers) <= DTYPES[name].high:
            return name
    low, high = DTYPES[types[-1]].low, DTYPES[types[-1]].high
    raise OinfError(field, f"expected numbers of {low} to {high}, got {numbers[0]}")
