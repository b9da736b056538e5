"""Parse and check the header and the tables of a model file.

All numbers are little-endian. A file is a header, a table of sizes, one of metadata, one of tensors
and the data; each part, and each blob of the data, begins on a multiple of :data:`ALIGNMENT`.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, NoReturn

from taper_openinfer.dtypes import BY_CODE, NDARRAY, STRING, stored_bytes
from taper_openinfer.errors import OinfError
from taper_runtime.base.checks import MAX_RANK, MAX_TENSOR_BYTES, describe
from taper_runtime.base.file_limits import refuse_beyond
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container

    from taper_runtime.base.file_limits import Limits

MAGIC = b"OINF\0"
VERSIONS = (1, 2)
ALIGNMENT = 8

#: Magic; version, flags, counts of the three tables, reserved; their offsets, that of the data, and
#: the size of the file.
HEADER = struct.Struct("<5s6I5Q")

#: Fields after the name of a metadata entry, type and flags; of a tensor entry, element type, count
#: of dims and flags, then dims. Spans of blobs, their bytes and offset, stand at the end of both.
TYPE_FLAGS = struct.Struct("<II")
TENSOR = struct.Struct("<III")
SPAN = struct.Struct("<QQ")
U64 = struct.Struct("<Q")

#: Flags of a tensor entry.
HAS_DATA, HAS_QUANT = 1, 2

#: A fixed part of quantisation info: scheme, modes of scales and zero points, reserved; axis and
#: count of both.
QUANTIZATION = struct.Struct("<4I4Q")

#: The numbers of the types that a file may hold, and of those that a writer puts into version 1.
#: Version 1 files of OpenInfer may also hold the others: they were written before version 2
#: existed.
CODES, VERSION_1_CODES = frozenset(range(1, 26)), frozenset(range(1, 16))

_NAME = re.compile(rb"[A-Za-z0-9._-]+")


class Header(NamedTuple):
    """The fields of a header; offsets are in bytes from the start of the file."""

    version: int
    n_sizevars: int
    n_metadata: int
    n_tensors: int
    offset_sizevars: int
    offset_metadata: int
    offset_tensors: int
    offset_data: int
    file_size: int


class Span(NamedTuple):
    """A range of bytes of the file."""

    nbytes: int
    offset: int


class MetadataEntry(NamedTuple):
    """The table's entry for one value of metadata."""

    code: int
    span: Span


class TensorEntry(NamedTuple):
    """The table's entry for one tensor; a span is None if the tensor has no such part."""

    dtype: str
    shape: tuple[int, ...]
    data: Span | None
    quantization: Span | None


class Tables(NamedTuple):
    """The three tables, by name."""

    sizevars: dict[str, int]
    metadata: dict[str, MetadataEntry]
    tensors: dict[str, TensorEntry]


def fail(field: str, expected: str, got: object) -> NoReturn:
    """Raise :class:`OinfError` with the expected and the actual value."""
    raise OinfError(field, f"{expected}, got {describe(got)}")


def padded(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def parse_header(head: bytes, file_bytes: int, limits: Limits) -> Header:
    """Read and check the header.

    Parameters
    ----------
    head : bytes
        The first bytes of the file, at least a header's.
    file_bytes : int
        The size of the file.
    limits : Limits
        ``header_bytes`` limits the tables' bytes, ``tensors`` the entries of each table.

    Raises
    ------
    OinfError
        If a field is wrong; the message names it.
    """
    if len(head) < HEADER.size:
        if not MAGIC.startswith(head[: len(MAGIC)]):
            _fail_foreign(head)
        fail("header", f"expected at least {HEADER.size} bytes", len(head))
    magic, version, flags, *rest = HEADER.unpack_from(head)
    if magic != MAGIC:
        _fail_foreign(head)
    if version not in VERSIONS:
        fail("header.version", "expected 1 or 2", version)
    if flags != 0:
        fail("header.flags", "expected 0", flags)
    if rest.pop(3) != 0:
        fail("header.reserved", "expected 0", HEADER.unpack_from(head)[6])
    header = Header(version, *rest)
    if header.file_size != file_bytes:
        fail(
            "header.file_size",
            f"expected the size of the file, {file_bytes} (truncated?)",
            header.file_size,
        )
    least, before = HEADER.size, "the header's end"
    for name in ("offset_sizevars", "offset_metadata", "offset_tensors", "offset_data"):
        offset = getattr(header, name)
        if offset % ALIGNMENT:
            fail(f"header.{name}", f"expected a multiple of {ALIGNMENT}", offset)
        if offset < least:
            fail(f"header.{name}", f"expected at least {before}, {least}", offset)
        if offset > file_bytes:
            fail(f"header.{name}", f"expected at most the file's {file_bytes}", offset)
        least, before = offset, name
    for name in ("n_sizevars", "n_metadata", "n_tensors"):
        refuse_beyond(f"header.{name}", "tensors", getattr(header, name), limits.tensors, OinfError)
    nbytes = header.offset_data - header.offset_sizevars
    refuse_beyond("header.offset_data", "header_bytes", nbytes, limits.header_bytes, OinfError)
    return header


def _fail_foreign(head: bytes) -> NoReturn:
    from taper_runtime.file.foreign import identify

    kind = identify(head) or repr(head[: len(MAGIC)])
    raise OinfError(
        "header.magic", f"expected a .oinf file, which begins with {MAGIC!r}, got {kind}"
    )


class _Cursor:
    """A position in one table."""

    def __init__(self, table: memoryview, field: str) -> None:
        self._table, self._field, self._at = table, field, 0

    def take(self, form: struct.Struct, field: str) -> tuple[int, ...]:
        self._expect(form.size, field)
        found = form.unpack_from(self._table, self._at)
        self._at += form.size
        return found

    def string(self, field: str) -> str:
        self._expect(4, field)
        text, taken = parse_string(self._table[self._at :], field)
        self._at += taken
        return text

    def _expect(self, nbytes: int, field: str) -> None:
        left = len(self._table) - self._at
        if nbytes > left:
            fail(field, f"expected {nbytes} bytes before the end of {self._field}", left)


def parse_string(data: memoryview, field: str) -> tuple[str, int]:
    """Return the string at the start of ``data``, and its size in bytes with padding."""
    (length,) = struct.unpack_from("<I", data)
    taken = padded(4 + length)
    if length == 0:
        fail(field, "expected a string of at least one character", 0)
    if taken > len(data):
        fail(field, f"expected a string of {length} bytes within the table or blob", len(data))
    raw = bytes(data[4 : 4 + length])
    if not _NAME.fullmatch(raw):
        fail(field, "expected only letters, digits, '.', '_' and '-'", raw)
    return raw.decode("ascii"), taken


def dump_string(text: object, field: str) -> bytes:
    """Return the bytes of a string in a file.

    Raises
    ------
    OinfError
        If the string is empty, or has characters that the format does not allow.
    """
    raw = text.encode() if isinstance(text, str) else b""
    if not _NAME.fullmatch(raw):
        fail(field, "expected a string of letters, digits, '.', '_' and '-', at least one", text)
    return (len(raw).to_bytes(4, "little") + raw).ljust(padded(4 + len(raw)), b"\0")


def parse_tables(header: Header, tables: memoryview) -> Tables:
    """Read and check the tables.

    Parameters
    ----------
    header : Header
    tables : memoryview
        The bytes from ``offset_sizevars`` to ``offset_data``.

    Raises
    ------
    OinfError
        If an entry is wrong; the message names it and the field.
    """
    start = header.offset_sizevars
    ends = (header.offset_metadata, header.offset_tensors, header.offset_data)
    starts = (header.offset_sizevars, *ends)
    names = ("the sizevars", "the metadata index", "the tensor index")
    cursors = [
        _Cursor(tables[first - start : end - start], name)
        for first, end, name in zip(starts, ends, names, strict=False)
    ]
    sizevars: dict[str, int] = {}
    for i in range(header.n_sizevars):
        name = _new_name(cursors[0], sizevars, "sizevars", i)
        (sizevars[name],) = cursors[0].take(U64, f"sizevars[{name!r}]")
    metadata: dict[str, MetadataEntry] = {}
    for i in range(header.n_metadata):
        name = _new_name(cursors[1], metadata, "metadata", i)
        metadata[name] = _metadata_entry(cursors[1], header, f"metadata[{name!r}]")
    tensors: dict[str, TensorEntry] = {}
    for i in range(header.n_tensors):
        name = _new_name(cursors[2], tensors, "tensors", i)
        tensors[name] = _tensor_entry(cursors[2], header, f"tensors[{name!r}]")
    return Tables(sizevars, metadata, tensors)


def _new_name(cursor: _Cursor, known: Container[str], table: str, place: int) -> str:
    name = cursor.string(f"{table}[{place}].name")
    if name in known:
        raise OinfError(f"{table}[{place}].name", f"expected each name once, got {name!r} again")
    return name


def _metadata_entry(cursor: _Cursor, header: Header, field: str) -> MetadataEntry:
    """Read one entry of the table of metadata, and check it."""
    code, flags = cursor.take(TYPE_FLAGS, field)
    nbytes, offset = cursor.take(SPAN, field)
    if code not in CODES:
        fail(f"{field}.value_type", f"expected a type from 1 to {max(CODES)}", code)
    if flags != 0:
        fail(f"{field}.flags", "expected 0", flags)
    span = _span(nbytes, offset, header, field, "")
    if code in (STRING, NDARRAY) or BY_CODE[code].name == "bitset":
        if nbytes < ALIGNMENT or nbytes % ALIGNMENT:
            fail(f"{field}.nbytes", f"expected a multiple of {ALIGNMENT} above 0", nbytes)
    elif nbytes != stored_bytes(BY_CODE[code].name, 1):
        expected = stored_bytes(BY_CODE[code].name, 1)
        fail(f"{field}.nbytes", f"expected {expected} bytes of {BY_CODE[code].name}", nbytes)
    return MetadataEntry(code, span)


def _tensor_entry(cursor: _Cursor, header: Header, field: str) -> TensorEntry:
    """Read one entry of the table of tensors, and check its type, flags and spans."""
    code, ndim, flags = cursor.take(TENSOR, field)
    if code not in BY_CODE:
        fail(f"{field}.dtype", "expected the number of an element type", code)
    dtype = BY_CODE[code].name
    if ndim > MAX_RANK:
        fail(f"{field}.ndim", f"expected at most {MAX_RANK}", ndim)
    known = HAS_DATA if header.version == 1 else HAS_DATA | HAS_QUANT
    if flags & ~known:
        fail(f"{field}.flags", f"expected only bits of {known}", flags)
    shape = cursor.take(struct.Struct(f"<{ndim}Q"), f"{field}.dims")
    nbytes = checked_bytes(dtype, shape, f"{field}.dims")
    data = _optional(cursor, header, field, "data", bool(flags & HAS_DATA))
    if data and data.nbytes != nbytes:
        fail(
            f"{field}.data_nbytes", f"expected {nbytes} bytes of {dtype}{list(shape)}", data.nbytes
        )
    quantization = None
    if header.version > 1:
        quantization = _optional(cursor, header, field, "quant", bool(flags & HAS_QUANT))
        if quantization and (
            quantization.nbytes < QUANTIZATION.size or quantization.nbytes % ALIGNMENT
        ):
            expected = f"expected a multiple of {ALIGNMENT}, at least {QUANTIZATION.size}"
            fail(f"{field}.quant_nbytes", expected, quantization.nbytes)
    return TensorEntry(dtype, shape, data, quantization)


def checked_bytes(dtype: str, shape: tuple[int, ...], field: str) -> int:
    """Return the size in bytes of a tensor's data.

    Raises
    ------
    OinfError
        If it exceeds what a process can address, with dims of 0 counted as 1.
    """
    least = stored_bytes(dtype, math.prod(size or 1 for size in shape))
    if least > MAX_TENSOR_BYTES:
        fail(field, f"expected at most {MAX_TENSOR_BYTES} bytes", least)
    return stored_bytes(dtype, math.prod(shape))


def _optional(
    cursor: _Cursor, header: Header, field: str, part: str, is_there: bool
) -> Span | None:
    nbytes, offset = cursor.take(SPAN, f"{field}.{part}_nbytes")
    if is_there:
        return _span(nbytes, offset, header, field, f"{part}_")
    if nbytes or offset:
        what = f"expected 0 for {part}_nbytes and {part}_offset without the flag of {part}"
        fail(f"{field}.{part}_{'nbytes' if nbytes else 'offset'}", what, nbytes or offset)
    return None


def _span(nbytes: int, offset: int, header: Header, field: str, part: str) -> Span:
    """Return a blob's span after checking that it lies in the data section."""
    where = f"{field}.{part}offset"
    if offset % ALIGNMENT:
        fail(where, f"expected a multiple of {ALIGNMENT}", offset)
    if offset < header.offset_data:
        fail(where, f"expected at least offset_data, {header.offset_data}", offset)
    if offset + nbytes > header.file_size:
        fail(f"{field}.{part}nbytes", f"expected an end within {header.file_size}", offset + nbytes)
    return Span(nbytes, offset)
