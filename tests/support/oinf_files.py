"""Model files (.oinf) as parts that a test can break, told apart by a reader of the test's own."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.oinf.contents import (
    ArrayValue,
    Bitset,
    Quantization,
    ScalarValue,
    SizeVar,
    TensorSpec,
    UninitializedTensor,
)

#: Of tensors that can be written.
TENSOR_TYPES = [name for name in DTYPES if name != "bitset"]


class Field(NamedTuple):
    """A number of a file: where it stands, and how struct reads it."""

    offset: int
    form: str


def rich_source() -> dict[str, object]:
    """Something of every kind; needs version 2."""
    quant = Quantization(
        np.array([0.5, 0.25, 2.0], np.float32), np.array([1, 0, -1], np.int32), 1, symmetric=False
    )
    return {
        "B": SizeVar(3),
        "D": SizeVar(2),
        "bits": Bitset.of([True, False, True] * 4),
        "count": 300,
        "eps": 0.5,
        "flag": True,
        "kind": "llama-2.7",
        "list": [1, 2, -3],
        "small": ArrayValue(np.array([[1, -2], [3, 7]], np.int8), "i4"),
        "tiny": ScalarValue(-1.5, "f8"),
        "later": UninitializedTensor("u16", (4, 2)),
        "packed": TensorSpec(np.array([-1, 0, 1, 1, -1], np.int8), "t2"),
        "scalar": TensorSpec(np.array(7, np.int64)),
        "w": TensorSpec(np.arange(6, dtype=np.int8).reshape(2, 3), quant=quant),
    }


def plain_source() -> dict[str, object]:
    """Something of every kind that version 1 has."""
    return {
        "B": SizeVar(3),
        "bits": Bitset.of([True] * 9),
        "count": -5,
        "kind": "a",
        "list": [0.5, 1.5],
        "later": UninitializedTensor("f64", (4,)),
        "w": TensorSpec(np.ones((2, 3), np.float32)),
    }


def fields(blob: bytes) -> dict[str, Field]:
    """Every number and the first character of every string of a valid file, by name."""
    found = {}

    def put(name: str, offset: int, form: str) -> int:
        found[name] = Field(offset, form)
        (value,) = struct.unpack_from(form, blob, offset)
        return value

    for name, offset in (
        *(("version", 5), ("flags", 9), ("n_sizevars", 13), ("n_metadata", 17)),
        *(("n_tensors", 21), ("reserved", 25)),
    ):
        put(f"header.{name}", offset, "<I")
    for place, name in enumerate(("sizevars", "metadata", "tensors", "data")):
        put(f"header.offset_{name}", 29 + 8 * place, "<Q")
    put("header.file_size", 61, "<Q")

    def numbers(prefix: str, at: int, parts: list[tuple[str, str]]) -> tuple[int, list[int]]:
        values = []
        for name, form in parts:
            values.append(put(f"{prefix}.{name}", at, form))
            at += struct.calcsize(form)
        return at, values

    def string(prefix: str, at: int) -> tuple[int, str]:
        length = put(f"{prefix}.length", at, "<I")
        put(f"{prefix}.text", at + 4, "<B")
        return at + -(-(4 + length) // 8) * 8, blob[at + 4 : at + 4 + length].decode()

    _, n_sizevars, n_metadata, n_tensors = (
        struct.unpack_from("<I", blob, offset)[0] for offset in (5, 13, 17, 21)
    )
    version = blob[5]
    at = struct.unpack_from("<Q", blob, 29)[0]
    for i in range(n_sizevars):
        at, name = string(f"sizevars[{i}]", at)
        at, _ = numbers(f"sizevars[{name}]", at, [("value", "<Q")])
    at = struct.unpack_from("<Q", blob, 37)[0]
    for i in range(n_metadata):
        at, name = string(f"metadata[{i}]", at)
        parts = [("type", "<I"), ("flags", "<I"), ("nbytes", "<Q"), ("offset", "<Q")]
        at, (code, _, _, offset) = numbers(f"metadata[{name}]", at, parts)
        if code == 13:
            numbers(f"metadata[{name}]", offset, [("bits", "<I"), ("bytes", "<I")])
        if code == 14:
            string(f"metadata[{name}]", offset)
        if code == 15:
            parts = [("element", "<I"), ("ndim", "<I")]
            offset, (_, ndim) = numbers(f"metadata[{name}]", offset, parts)
            numbers(f"metadata[{name}]", offset, [(f"dim{k}", "<Q") for k in range(min(ndim, 32))])
    at = struct.unpack_from("<Q", blob, 45)[0]
    for i in range(n_tensors):
        at, name = string(f"tensors[{i}]", at)
        parts = [("dtype", "<I"), ("ndim", "<I"), ("flags", "<I")]
        at, (_, ndim, flags) = numbers(f"tensors[{name}]", at, parts)
        parts = [(f"dim{k}", "<Q") for k in range(min(ndim, 32))]
        parts += [("data_nbytes", "<Q"), ("data_offset", "<Q")]
        if version == 2:
            parts += [("quant_nbytes", "<Q"), ("quant_offset", "<Q")]
        at, values = numbers(f"tensors[{name}]", at, parts)
        if flags & 2:
            parts = [(f, "<I") for f in ("scheme", "scale_mode", "zp_mode", "zero")]
            parts += [(f, "<Q") for f in ("scale_axis", "scale_count", "zp_axis", "zp_count")]
            numbers(f"tensors[{name}].quant", values[-1], parts)
    return found


def patched(blob: bytes, name: str, value: int) -> bytes:
    """The file with one number replaced."""
    field = fields(blob)[name]
    data = bytearray(blob)
    struct.pack_into(field.form, data, field.offset, value)
    return bytes(data)


def read_all(model: object) -> Iterator[tuple[str, object]]:
    """Everything that a model says, in a form that can be compared, bit for bit."""
    yield "version", model.version
    yield from (("sizevar", item) for item in model.sizevars.items())
    for key in model.metadata:
        value = model.metadata.typed(key)
        if isinstance(value, ArrayValue):
            value = (value.dtype, value.values.shape, value.values.tobytes())
        elif isinstance(value, ScalarValue):
            value = (value.dtype, str(value.value))
        yield key, value
    for name, info in model.tensors.items():
        quant = info.quantization
        yield name, (info.dtype, info.shape, info.read().tobytes() if info.has_data else None)
        if quant is not None:
            zeros = None if quant.zero_points is None else quant.zero_points.tobytes()
            yield name, (quant.scales.tobytes(), zeros, quant.axis, quant.symmetric)
