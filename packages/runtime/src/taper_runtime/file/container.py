"""Read and check the outer layer of a plan file, a safetensors file, to the last byte.

The layout is eight bytes of header length (unsigned, little-endian), that many bytes of JSON, and
the data.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from taper_runtime.base.checks import (
    ALIGNMENT,
    METADATA_NAME,
    check_text,
    check_type,
    describe,
    fail,
    is_size,
)
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.file_limits import UNLIMITED, Limits, refuse_beyond
from taper_runtime.base.loading import current_check, look, watched
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

    from taper_runtime.base.dtypes import DType
    from taper_runtime.ops.opdef import Shape, TensorType

#: The limit of the safetensors format.
MAX_HEADER_BYTES = 100_000_000

_LENGTH_BYTES = 8
#: Characters of JSON that are parsed without a check whether the load should stop: at most 28 ms.
_PIECE = 1 << 18


class StoredArray(NamedTuple):
    """One tensor of the file."""

    dtype: str
    shape: Shape
    start: int  # bytes from the start of the file


class Container(NamedTuple):
    """The contents of a header."""

    metadata: dict[str, str]
    entries: dict[str, StoredArray]


def parse_json(text: str, field: str) -> Any:
    """Parse strict JSON: no duplicate keys, no NaN or Infinity, no lone surrogates.

    Raises
    ------
    PlanFormatError
        If the text is not strict JSON; the message names ``field``.
    """
    value = _parse_json(text, field)
    if "\\u" in text:  # only escapes can be surrogates: UTF-8 cannot encode them
        _check_strings(value, field)
    return value


def _check_strings(value: Any, field: str) -> None:
    """Check that no string, including keys, has a lone surrogate."""
    left = [value]
    while left:
        item = left.pop()
        if type(item) is str and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise PlanFormatError(field, "a string has a lone surrogate") from None
        elif type(item) is list:
            look()
            left += item
        elif type(item) is dict:
            look()
            left += item
            left += item.values()


def _parse_json(text: str, field: str) -> Any:
    """Parse JSON whose strings may have lone surrogates."""
    try:
        if len(text) > _PIECE and current_check() is not None:
            from taper_runtime.file.pieces import Pieces  # for loads that can be stopped

            return Pieces(_DECODER, text).parse()
        return _DECODER.decode(text)
    except RecursionError:
        raise PlanFormatError(field, "nested too deeply") from None
    except ValueError as error:
        raise PlanFormatError(field, f"expected JSON: {error}") from None


def dump_json(value: Any) -> str:
    """Return ``value`` as strict JSON without optional spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {describe(key)}")
            seen.add(key)
    return items


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_finite
)


def parse_header(
    buffer: bytes | mmap,
    limits: Limits = UNLIMITED,
    what: str = "a .taper file",
    dtypes: Mapping[str, DType] = DTYPES,
) -> Container:
    """Read and check the header of a whole file.

    Parameters
    ----------
    buffer : bytes or mmap
    limits : Limits, optional
    what : str
        What the file should be, for the error if it has no such header.
    dtypes : mapping of str to DType
        The element types that the file may have.

    Raises
    ------
    PlanFormatError
        If the header or the file's length breaks a rule of docs/format.md.
    """
    length = int.from_bytes(buffer[:_LENGTH_BYTES], "little")
    data = _LENGTH_BYTES + length
    begins = buffer[_LENGTH_BYTES : _LENGTH_BYTES + 1]
    if length > MAX_HEADER_BYTES or not begins:
        _fail_foreign(buffer, what, "header.length", f"its header would have {length} bytes")
    if begins != b"{":
        _fail_foreign(buffer, what, "header", f"its header begins with {begins!r}, not {b'{'!r}")
    if data > len(buffer):
        fail(
            "header.length",
            f"expected a header within the file's {len(buffer)} bytes (is it truncated?)",
            length,
        )
    refuse_beyond("header.length", "header_bytes", length, limits.header_bytes)
    try:
        text = buffer[_LENGTH_BYTES:data].decode()
    except UnicodeDecodeError as error:
        raise PlanFormatError("header", f"expected UTF-8: {error.reason}") from None
    header = _parse_json(text, "header")
    metadata = header.pop(METADATA_NAME, {})
    if type(metadata) is not dict:
        fail(f"header.{METADATA_NAME}", "expected an object", metadata)
    for key, value in metadata.items():
        check_text(value, f"header.{METADATA_NAME}.{key}")
        check_text(key, f"header.{METADATA_NAME}.{key}")
    refuse_beyond("header", "tensors", len(header), limits.tensors)
    return Container(metadata, _parse_entries(header, data, len(buffer), dtypes))


def _fail_foreign(buffer: bytes | mmap, what: str, field: str, reason: str) -> NoReturn:
    """Raise the error for a file that is not safetensors, naming the type it seems to have."""
    from taper_runtime.file.foreign import identify

    kind = identify(buffer)
    got = kind or f"something else: {reason}"
    error = PlanFormatError(field, f"expected {what}, got {got}")
    error.shows_field = False  # the field means nothing in another file
    raise error


def _parse_entries(
    header: dict[str, Any], data: int, end: int, dtypes: Mapping[str, DType]
) -> dict[str, StoredArray]:
    """Check that the tensors fill the bytes from ``data`` to ``end`` without gaps."""
    by_code = {dtype.code: name for name, dtype in dtypes.items()}
    entries = {}
    spans = []
    for name, info in watched(header.items()):
        field = f"header[{name!r}]"
        check_text(name, field)
        if type(info) is not dict or info.keys() != {"dtype", "shape", "data_offsets"}:
            fail(field, "expected an object of dtype, shape and data_offsets", info)
        code, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
        if type(code) is not str or code not in by_code:
            fail(f"{field}.dtype", f"expected one of {', '.join(by_code)}", code)
        if type(shape) is not list:
            fail(f"{field}.shape", "expected an array of sizes", shape)
        dtype, shape = by_code[code], tuple(shape)
        check_type(dtype, shape, field, dtypes)
        if type(offsets) is not list or len(offsets) != 2 or not all(map(is_size, offsets)):
            fail(f"{field}.data_offsets", "expected two offsets >= 0", offsets)
        start, stop = offsets
        nbytes = math.prod(shape) * dtypes[dtype].size
        if stop - start != nbytes:
            fail(
                f"{field}.data_offsets",
                f"expected {nbytes} bytes for its dtype and shape",
                stop - start,
            )
        entries[name] = StoredArray(dtype, shape, data + start)
        spans.append((start, stop, field))
    filled = 0
    for start, stop, field in watched(sorted(spans)):
        if start != filled:
            what = "an overlap" if start < filled else "a hole"
            raise PlanFormatError(f"{field}.data_offsets", f"{what} between {start} and {filled}")
        if data + stop > end:
            fail(
                f"{field}.data_offsets",
                f"expected an end within {end - data} data bytes (is the file truncated?)",
                stop,
            )
        filled = stop
    if data + filled != end:
        fail("data", f"expected {filled} bytes after the header", end - data)
    return entries


def make_header(
    metadata: Mapping[str, str],
    types: Mapping[str, TensorType],
    dtypes: Mapping[str, DType] = DTYPES,
) -> tuple[bytes, list[str]]:
    """Make a file's header, and choose the order of its tensors.

    Returns
    -------
    bytes
        Everything before the data, padded to a multiple of 64 bytes.
    list of str
        The order of the tensors' bytes, which follow without gaps. Tensors whose sizes are
        multiples of 64 come first and are aligned to 64 bytes. The others are ordered by decreasing
        item size, so that each is aligned to its item size.
    """

    def rank(name: str) -> tuple[bool, int, str]:
        dtype, nbytes = types[name].dtype, stored_bytes(types[name])
        return nbytes % ALIGNMENT != 0, -dtypes[dtype].size, name

    def stored_bytes(type_: TensorType) -> int:
        return math.prod(type_.shape) * dtypes[type_.dtype].size

    order = sorted(types, key=rank)
    header: dict[str, Any] = {METADATA_NAME: metadata}
    stop = 0
    for name in order:
        dtype, shape, _ = types[name]
        start, stop = stop, stop + stored_bytes(types[name])
        header[name] = {
            "dtype": dtypes[dtype].code,
            "shape": shape,
            "data_offsets": [start, stop],
        }
    text = dump_json(header).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        fail("header.length", f"expected at most {MAX_HEADER_BYTES}", len(text))
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, order
