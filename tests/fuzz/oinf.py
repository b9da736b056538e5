"""Model files of OpenInfer: any bytes are refused with the field's name, or are a right model."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np

from oinf_files import TENSOR_TYPES, fields, plain_source, read_all, rich_source
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import OinfError
from taper_openinfer.oinf.contents import ArrayValue, ScalarValue, TensorSpec
from taper_openinfer.oinf.reader import Model
from taper_openinfer.oinf.summary import describe_model
from taper_openinfer.oinf.writer import dump_model

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

#: What a file without the structure that is to be changed raises in :func:`mutate`.
STRANGE = (ValueError, KeyError, IndexError, OverflowError, struct.error)

_NUMBERS = (0, 1, 2, 3, 7, 8, 12, 14, 15, 16, 17, 25, 26, 33, 64, 72, 2**16, 2**31, 2**32 - 1,
            2**40, 2**48, 2**61, 2**63, 2**64 - 8, 2**64 - 1)  # fmt: skip

_HEADER_BYTES = 72


def seeds() -> Iterator[bytes]:
    """Files of both versions, and of every element type."""
    yield dump_model({})
    yield dump_model(plain_source())
    yield dump_model(plain_source(), 2)
    yield dump_model(rich_source())
    for name in TENSOR_TYPES:
        row = DTYPES[name]
        array = np.ones((2, 5), row.storage)
        values = ArrayValue(array, name), ScalarValue(1 if row.high >= 1 else -1, name)
        if row.high < 1:
            values[0].values[...] = -1
        yield dump_model({"t": TensorSpec(values[0].values, name), "a": values[0], "s": values[1]})


def mutate(blob: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return another file: numbers, bytes and blobs changed, cut, moved or taken from others.

    Raises
    ------
    STRANGE
        If ``blob`` is no model file whose parts can be told.
    """
    data = bytearray(blob)
    for _ in range(rng.randint(1, 3)):
        rng.choice((_number, _number, _number, _byte, _cut, _insert, _graft))(data, rng, others)
    if rng.random() < 0.9 and len(data) >= _HEADER_BYTES:
        data[61:69] = len(data).to_bytes(8, "little")
    return bytes(data)


def _number(data: bytearray, rng: random.Random, others: list[bytes]) -> None:
    """Change one number that the structure has."""
    field = rng.choice(list(fields(bytes(data)).values()))
    bits = 8 * struct.calcsize(field.form)
    (old,) = struct.unpack_from(field.form, data, field.offset)
    new = rng.choice((*_NUMBERS, old + 1, old - 1, old + 8, old - 8, old * 2, old ^ 1))
    struct.pack_into(field.form, data, field.offset, new % (1 << bits))


def _byte(data: bytearray, rng: random.Random, others: list[bytes]) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(data: bytearray, rng: random.Random, others: list[bytes]) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 4, 8, 16, 64))]


def _insert(data: bytearray, rng: random.Random, others: list[bytes]) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice((bytes(8), bytes(16), b"\xff" * 8, rng.randbytes(4)))


def _graft(data: bytearray, rng: random.Random, others: list[bytes]) -> None:
    """Put a part of another file over this one's."""
    other = rng.choice(others)
    start = rng.randrange(len(other)) & ~7
    part = other[start : start + rng.choice((8, 16, 32, 64))]
    at = rng.randrange(len(data)) & ~7
    data[at : at + len(part)] = part


def _check_message(error: OinfError) -> None:
    message = str(error)
    assert message.isprintable()
    assert len(message) < 600
    assert message.startswith(error.field[:100])


def check(blob: bytes) -> str:
    """Read a file, show it, write it again; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    try:
        model = Model.from_bytes(blob)
        assert model.bytes_read <= len(blob)
        data, text = describe_model(model)
        found = list(read_all(model))
    except OinfError as error:
        _check_message(error)
        return "refused"
    json.dumps(data, allow_nan=False)
    assert all(line.isprintable() for line in text.splitlines())
    again = Model.from_bytes(dump_model(model, model.version))
    assert sorted(map(str, read_all(again))) == sorted(map(str, found))
    return "ran"
