"""Write a model file; equal models give equal bytes."""

from __future__ import annotations

import os
import struct
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.oinf.layout import (
    HAS_DATA,
    HAS_QUANT,
    HEADER,
    MAGIC,
    SPAN,
    TENSOR,
    TYPE_FLAGS,
    U64,
    VERSION_1_CODES,
    VERSIONS,
    checked_bytes,
    dump_string,
    fail,
    padded,
)
from taper_openinfer.oinf.payloads import dump_quantization, dump_value, encoded, type_code
from taper_openinfer.oinf.source import Contents, Tensor, contents_of
from taper_runtime.base.checks import MAX_RANK, is_size
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.mapping import check_path
from taper_runtime.file.replacing import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taper_openinfer.oinf.reader import TensorInfo
    from taper_runtime.base.loading import FilePath


class _Blob(NamedTuple):
    """A piece of the data section, whose bytes are made when they are written."""

    nbytes: int
    make: Callable[[], bytes]


class _Entry(NamedTuple):
    """An entry of a table: its leading bytes, and the blobs whose spans follow them."""

    head: bytes
    blobs: tuple[_Blob | None, ...] = ()

    @property
    def nbytes(self) -> int:
        return len(self.head) + SPAN.size * len(self.blobs)


def write_model(path: FilePath, source: object, version: int | None = None) -> None:
    """Write a model file atomically: other processes see the old file or the new one.

    Parameters
    ----------
    path : path
    source : dict, dataclass or Model
        Each item or field is

        - a named size: a :class:`SizeVar`, or an int in a field annotated ``SizeVar``;
        - a tensor: a :class:`TensorSpec`, an :class:`UninitializedTensor` or an array;
        - metadata: a bool, int, float, str or list, a :class:`Bitset`, a :class:`ScalarValue` or an
          :class:`ArrayValue`. An int is stored in the smallest unsigned type, a negative one in the
          smallest signed, a list of ints in the smallest signed, a float in f32.
    version : int, optional
        1 or 2; by default 1, unless something needs 2.

    Raises
    ------
    OinfError
        If the format, or this version of it, cannot hold an item; the message names it.
    InputError
        If ``path`` is not a path.
    OSError
        If the file cannot be written. An existing file at ``path`` is then unchanged.
    """
    check_path(path)
    replace_file(os.fsdecode(path), _chunks(contents_of(source), version))


def dump_model(source: object, version: int | None = None) -> bytes:
    """Return the bytes that :func:`write_model` writes."""
    return b"".join(_chunks(contents_of(source), version))


def _chunks(contents: Contents, version: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file, part by part."""
    version = _version(contents, version)
    values = {name: dump_value(v, f"metadata[{name!r}]") for name, v in contents.metadata.items()}
    tables = [
        [_size(name, value) for name, value in sorted(contents.sizevars.items())],
        [_metadata(name, *value) for name, value in sorted(values.items())],
        [_tensor(name, tensor, version) for name, tensor in sorted(contents.tensors.items())],
    ]
    starts = [padded(HEADER.size)]
    for table in tables:
        starts.append(padded(starts[-1] + sum(entry.nbytes for entry in table)))
    placed, file_size = _placed(tables, starts[-1])
    counts = [len(table) for table in tables]
    yield HEADER.pack(MAGIC, version, 0, *counts, 0, *starts, file_size).ljust(starts[0], b"\0")
    for data, (start, stop) in zip(placed, pairwise(starts), strict=True):
        yield data.ljust(stop - start, b"\0")
    for blob in _blobs(tables):
        yield blob.make()
        yield bytes(padded(blob.nbytes) - blob.nbytes)


def _placed(tables: Sequence[Sequence[_Entry]], start: int) -> tuple[list[bytes], int]:
    """Place the blobs one after the other; return the tables' bytes and the end of the data.

    A blob that is absent has the span 0, 0.
    """
    end = start
    written = []
    for table in tables:
        parts = []
        for entry in table:
            parts.append(entry.head)
            for blob in entry.blobs:
                parts.append(SPAN.pack(blob.nbytes, end) if blob else SPAN.pack(0, 0))
                end += padded(blob.nbytes) if blob else 0
        written.append(b"".join(parts))
    return written, end


def _blobs(tables: Sequence[Sequence[_Entry]]) -> Iterator[_Blob]:
    """Yield the blobs in their order in the file."""
    return (blob for table in tables for entry in table for blob in entry.blobs if blob)


def _size(name: str, value: object) -> _Entry:
    if not (type(value) is int and 0 <= value < 2**64):
        fail(f"sizevars[{name!r}]", "expected an integer of 0 to 2**64 - 1", value)
    return _Entry(dump_string(name, "sizevars") + U64.pack(value))


def _metadata(key: str, code: int, data: bytes) -> _Entry:
    head = dump_string(key, "metadata") + TYPE_FLAGS.pack(code, 0)
    return _Entry(head, (_Blob(len(data), lambda: data),))


def _tensor(name: str, tensor: Tensor, version: int) -> _Entry:
    """Make the table entry of a tensor."""
    field = f"tensors[{name!r}]"
    dtype, shape, source, quantization = tensor
    if len(shape) > MAX_RANK or not all(map(is_size, shape)):
        fail(f"{field}.dims", f"expected at most {MAX_RANK} sizes", shape)
    nbytes = checked_bytes(dtype, shape, f"{field}.dims")
    data = quant = None
    if source is not None:
        data = _Blob(nbytes, partial(_bytes_of, dtype, source, field))
    if quantization is not None:
        info = dump_quantization(quantization, shape, f"{field}.quantization")
        quant = _Blob(len(info), lambda: info)
    flags = HAS_DATA * (data is not None) | HAS_QUANT * (quant is not None)
    head = dump_string(name, "tensors") + TENSOR.pack(DTYPES[dtype].code, len(shape), flags)
    head += struct.pack(f"<{len(shape)}Q", *shape)
    return _Entry(head, (data,) if version == 1 else (data, quant))


def _bytes_of(dtype: str, source: np.ndarray | TensorInfo, field: str) -> bytes:
    return encoded(dtype, source if isinstance(source, np.ndarray) else source.read(), field)


def _version(contents: Contents, asked: int | None) -> int:
    """Return the version asked for, or the first that holds everything."""
    if asked is not None and (type(asked) is not int or asked not in VERSIONS):
        fail("version", "expected 1 or 2", asked)
    later = next(_beyond_version_1(contents), None)
    if later and asked == 1:
        fail(*later)
    return asked or (2 if later else 1)


def _beyond_version_1(contents: Contents) -> Iterator[tuple[str, str, object]]:
    """Yield what version 1 cannot hold: the field, the expected type, the actual one."""
    for name, value in contents.metadata.items():
        field = f"metadata[{name!r}]"
        if type_code(value, field) not in VERSION_1_CODES:
            yield field, "expected a type of version 1", value
    for name, tensor in contents.tensors.items():
        field = f"tensors[{name!r}]"
        if DTYPES[tensor.dtype].code not in VERSION_1_CODES:
            yield f"{field}.dtype", "expected a type of version 1", tensor.dtype
        if tensor.quantization is not None:
            yield f"{field}.quantization", "expected none in version 1", tensor.quantization
