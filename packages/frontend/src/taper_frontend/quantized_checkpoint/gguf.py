"""Read GGUF files: a header, descriptions of tensors, and their blocks.

The layouts are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of the block
types in ggml-common.h.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.analysis.float_codes import E2M1, E8M0
from taper_frontend.quantized_checkpoint.weight import QuantizedWeight, Scale
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_DIMS = 4

#: struct's codes of the types of values. Type 8 is a string, and type 9 an array.
_VALUES = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Type(NamedTuple):
    """A type of tensors.

    Attributes
    ----------
    name : str
    size, nbytes : int
        The elements of a block, and its bytes.
    read : callable or None
        Takes blocks ``[N, K/size, nbytes]`` as bytes. None for other types of numbers.
    dtype : str
        The numpy type of plain numbers, empty for blocks; bfloat16 is uint16.
    """

    name: str
    size: int
    nbytes: int
    read: Callable[[np.ndarray], QuantizedWeight] | None = None
    dtype: str = ""


class GgufTensor(NamedTuple):
    """A tensor of a file: its type, its shape in the order of torch, and its bytes."""

    type: Type
    shape: tuple[int, ...]
    data: np.ndarray

    def weight(self) -> QuantizedWeight | np.ndarray:
        """Return the tensor's blocks, or its numbers where it is plain."""
        if self.type.read is None:
            return self.data.view(self.type.dtype).reshape(self.shape)
        blocks = self.shape[-1] // self.type.size
        found = self.type.read(self.data.reshape(-1, blocks, self.type.nbytes))
        return _shaped(found, self.shape[:-1])


def read_gguf(data: np.ndarray) -> tuple[dict[str, GgufTensor], dict[str, Any]]:
    """Read the tensors and the metadata of a file.

    Parameters
    ----------
    data : numpy.ndarray
        The bytes of the file, such as a map of it.

    Raises
    ------
    InputError
        Saying what is wrong: another type of file or version, a file cut short, a tensor of an
        unknown type or of a shape that has no whole blocks. It names the tensor.
    """
    reader = _GgufReader(data)
    if bytes(data[:4]) != _MAGIC:
        raise InputError(f"expected a GGUF file, got one that begins with {bytes(data[:4])!r}")
    reader.at = 4
    (version,) = reader.numbers("I")
    if version not in _VERSIONS:
        raise InputError(
            f"expected GGUF of version {' or '.join(map(str, _VERSIONS))}, little-endian; "
            f"got version {version}"
        )
    tensors, pairs = reader.numbers("QQ")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.string("a key of the metadata")
        if key in metadata:
            raise InputError(f"metadata {key[:60]!r}: expected it once, got it twice")
        (kind,) = reader.numbers("I")
        metadata[key] = reader.value(kind, key)
    described = [reader.tensor() for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise InputError(f"general.alignment: expected a power of 2, got {alignment!r}")
    start = -(-reader.at // alignment) * alignment
    found: dict[str, GgufTensor] = {}
    for name, kind, shape, offset in described:
        if name in found:
            raise InputError(f"tensor {name[:60]!r}: expected it once, got it twice")
        end = start + offset + math.prod(shape) // kind.size * kind.nbytes
        if end > len(data):
            raise InputError(
                f"tensor {name[:60]!r}: expected {kind.name}{list(shape)} up to byte {end}, "
                f"got a file of {len(data)} bytes"
            )
        found[name] = GgufTensor(kind, shape, data[start + offset : end])
    return found, metadata


#: The tensors of LLaMA that have the rows of a head in another order, with their counts of heads.
_ROTATED = {
    "attn_q": "llama.attention.head_count",
    "attn_k": "llama.attention.head_count_kv",
}


def in_module_order(
    tensors: dict[str, GgufTensor], metadata: dict[str, Any]
) -> dict[str, GgufTensor]:
    """Return tensors with their rows in the order of transformers' modules.

    llama.cpp's converter puts the two halves of each head of LLaMA's queries and keys in turns.
    Files of other architectures, and those that do not say how many heads there are, stay as they
    are. The blocks of a row stay together, so that no weight is rounded.
    """
    if metadata.get("general.architecture") != "llama":
        return tensors
    found = dict(tensors)
    for name, tensor in tensors.items():
        part = name.split(".")[-2] if name.startswith("blk.") else ""
        heads = metadata.get(_ROTATED.get(part, ""))
        rows = tensor.shape[0]
        if type(heads) is not int or heads < 1 or rows % (2 * heads):
            continue
        order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
        data = tensor.data.reshape(rows, -1)[order].reshape(-1)
        found[name] = tensor._replace(data=data)
    return found


class _GgufReader:
    """The position in a file."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data.data  # parts of a memoryview are made faster than an array's
        self.at = 0

    def take(self, count: int, what: str) -> bytes:
        """Return the next ``count`` bytes, and continue after them."""
        if count > len(self.data) - self.at:
            raise InputError(
                f"expected {what} of {count} bytes at byte {self.at}, got a file of "
                f"{len(self.data)} bytes"
            )
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def numbers(self, codes: str) -> tuple[Any, ...]:
        """Return numbers, little-endian."""
        return struct.unpack(f"<{codes}", self.take(struct.calcsize(f"<{codes}"), "numbers"))

    def string(self, what: str) -> str:
        """Return a string with its length before it."""
        (length,) = self.numbers("Q")
        text = self.take(length, what)
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{what}: expected UTF-8, got {text[:40]!r}") from error

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """Return a value of the metadata."""
        if kind in _VALUES:
            return self.numbers(_VALUES[kind])[0]
        if kind == _STRING:
            return self._text(key)
        if kind != _ARRAY or depth > 1:
            raise InputError(
                f"metadata {key[:60]!r}: expected a value of a known type, got type {kind}"
            )
        of, count = self.numbers("IQ")
        if of in _VALUES:
            size = struct.calcsize(f"<{_VALUES[of]}")
            text = self.take(size * count, f"metadata {key[:60]!r}")
            return np.frombuffer(text, np.dtype(f"<{_VALUES[of]}"))
        if count > (len(self.data) - self.at) // 8:  # each has its length
            raise InputError(
                f"metadata {key[:60]!r}: expected {count} values, got a file cut short"
            )
        return [self.value(of, key, depth + 1) for _ in range(count)]

    def _text(self, key: str) -> str:
        """Return a string of a vocabulary, which may have parts of characters."""
        (length,) = self.numbers("Q")
        return self.take(length, f"metadata {key[:60]!r}").decode(errors="surrogateescape")

    def tensor(self) -> tuple[str, Type, tuple[int, ...], int]:
        """Return the name, type, shape and offset of a tensor."""
        name = self.string("a name of a tensor")
        (rank,) = self.numbers("I")
        if not 1 <= rank <= _MOST_DIMS:
            raise InputError(
                f"tensor {name[:60]!r}: expected 1 to {_MOST_DIMS} dimensions, got {rank}"
            )
        shape = self.numbers("Q" * rank)[::-1]
        if 0 in shape:
            raise InputError(f"tensor {name[:60]!r}: expected elements, got {list(shape)}")
        code, offset = self.numbers("IQ")
        kind = TYPES.get(code)
        if kind is None:
            known = ", ".join(each.name for each in TYPES.values())
            raise InputError(f"tensor {name[:60]!r}: expected one of {known}; got type {code}")
        if shape[-1] % kind.size:
            raise InputError(
                f"tensor {name[:60]!r}: expected rows of whole blocks of {kind.size} elements for "
                f"{kind.name}, got {list(shape)}"
            )
        return name, kind, shape, offset


def _shaped(found: QuantizedWeight, outer: tuple[int, ...]) -> QuantizedWeight:
    """Reshape the rows of a weight and of its parameters to more dims."""

    def shaped(x: np.ndarray | None) -> np.ndarray | None:
        return None if x is None else x.reshape(*outer, x.shape[-1])

    def scale(x: Scale) -> Scale:
        return Scale(shaped(x.common), shaped(x.factors), x.table)

    levels = shaped(found.levels)
    assert levels is not None
    return found._replace(
        levels=levels,
        scale=scale(found.scale),
        offset=None if found.offset is None else scale(found.offset),
    )


# -- blocks [N, blocks, bytes] ---------------------------------------------------------------------


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return a float16 of each block."""
    return np.asarray(blocks[..., at : at + 2], order="C").view("<f2")[..., 0]


def _flat(levels: np.ndarray) -> np.ndarray:
    """Return parameters of blocks, [N, blocks, ...], as rows."""
    return levels.reshape(len(levels), math.prod(levels.shape[1:]))


def _halves(packed: np.ndarray) -> np.ndarray:
    """Return the low halves of some bytes, and then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """Return 32 bits of 4 bytes, as 16."""
    bits = np.unpackbits(np.asarray(packed, order="C"), axis=-1, bitorder="little")
    return bits << 4


def _read_q4_0(blocks: np.ndarray) -> QuantizedWeight:
    levels = _halves(blocks[..., 2:]).astype(np.int8) - np.int8(8)
    return QuantizedWeight(_flat(levels), Scale(_half(blocks, 0)))


def _read_q4_1(blocks: np.ndarray) -> QuantizedWeight:
    scale, offset = Scale(_half(blocks, 0)), Scale(_half(blocks, 2))
    return QuantizedWeight(_flat(_halves(blocks[..., 4:])), scale, offset=offset)


def _read_q5_0(blocks: np.ndarray) -> QuantizedWeight:
    levels = _halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return QuantizedWeight(_flat(levels.astype(np.int8) - np.int8(16)), Scale(_half(blocks, 0)))


def _read_q5_1(blocks: np.ndarray) -> QuantizedWeight:
    levels = _halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return QuantizedWeight(_flat(levels), Scale(_half(blocks, 0)), offset=Scale(_half(blocks, 2)))


def _read_q8_0(blocks: np.ndarray) -> QuantizedWeight:
    levels = np.asarray(blocks[..., 2:], order="C").view(np.int8)
    return QuantizedWeight(_flat(levels), Scale(_half(blocks, 0)))


def _sixes(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 8 factors of scales and 8 of offsets, of 6 bits each, from 12 bytes."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    offsets = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    return _flat(scales), _flat(offsets)


def _by_sixes(blocks: np.ndarray, levels: np.ndarray) -> QuantizedWeight:
    scales, offsets = _sixes(blocks[..., 4:16])
    least = Scale(-_half(blocks, 2), offsets)
    return QuantizedWeight(_flat(levels), Scale(_half(blocks, 0), scales), offset=least)


def _in_fours(packed: np.ndarray) -> np.ndarray:
    """Return the halves of 128 bytes as 8 parts of 32: low and high ones in turn."""
    return _halves(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], 8, 32)


def _read_q4_k(blocks: np.ndarray) -> QuantizedWeight:
    return _by_sixes(blocks, _in_fours(blocks[..., 16:]))


def _read_q5_k(blocks: np.ndarray) -> QuantizedWeight:
    places = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[..., None, 16:48] >> places & 1) << 4
    return _by_sixes(blocks, _in_fours(blocks[..., 48:]) | high)


def _read_q6_k(blocks: np.ndarray) -> QuantizedWeight:
    shape = blocks.shape[:-1]
    low = _halves(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> places & 3
    levels = (low | high << 4).astype(np.int8) - np.int8(32)
    factors = np.asarray(blocks[..., 192:208], order="C").view(np.int8)
    return QuantizedWeight(_flat(levels), Scale(_half(blocks, 208), _flat(factors)))


def _read_mxfp4(blocks: np.ndarray) -> QuantizedWeight:
    return QuantizedWeight(
        _flat(_halves(blocks[..., 1:])), Scale(None, blocks[..., 0], E8M0), table=E2M1
    )


#: By their codes in a file.
TYPES = {
    0: Type("F32", 1, 4, dtype="<f4"),
    1: Type("F16", 1, 2, dtype="<f2"),
    2: Type("Q4_0", 32, 18, _read_q4_0),
    3: Type("Q4_1", 32, 20, _read_q4_1),
    6: Type("Q5_0", 32, 22, _read_q5_0),
    7: Type("Q5_1", 32, 24, _read_q5_1),
    8: Type("Q8_0", 32, 34, _read_q8_0),
    12: Type("Q4_K", 256, 144, _read_q4_k),
    13: Type("Q5_K", 256, 176, _read_q5_k),
    14: Type("Q6_K", 256, 210, _read_q6_k),
    30: Type("BF16", 1, 2, dtype="<u2"),
    39: Type("MXFP4", 32, 17, _read_mxfp4),
}
