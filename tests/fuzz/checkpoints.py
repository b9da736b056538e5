"""Files of quantized weights, GGUF and safetensors: any bytes are refused, or give such weights."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.quantized_checkpoint.gguf import TYPES, read_gguf
from taper_frontend.quantized_checkpoint.weight_layouts import find_layout
from taper_runtime.base.dtypes import FILE_DTYPES
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.file.weights_file import read_safetensors

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from taper_frontend.quantized_checkpoint.weight import QuantizedWeight

#: What a file without the structure that is to be changed raises in :func:`mutate`.
STRANGE = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error)

_NUMBERS = (0, 1, 2, 3, 5, 7, 8, 9, 12, 16, 31, 32, 33, 64, 256, 2**16, 2**31, 2**32 - 1, 2**40,
            2**61, 2**62, 2**63, 2**64 - 1)  # fmt: skip
_WILD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**63,
    2**70,
    0.5,
    "",
    "F32",
    "I32",
    "F8_E5M2",
    {},
    [],
    [0],
)

#: Rows and columns of the weights, and columns of a group.
N, K, GROUP = 32, 64, 32

_HALF, _INT = ("F16", 2), ("I32", 4)
#: quantization_config and parts, with their types and shapes, by what names begin with.
_CHECKPOINTS: dict[str, tuple[dict[str, Any], dict[str, tuple[str, int, tuple[int, ...]]]]] = {
    "gptq": (
        {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4},
        {
            "qweight": (*_INT, (K // 8, N)),
            "qzeros": (*_INT, (K // GROUP, N // 8)),
            "scales": (*_HALF, (K // GROUP, N)),
            "g_idx": (*_INT, (K,)),
        },
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        {
            "qweight": (*_INT, (K, N // 8)),
            "qzeros": (*_INT, (K // GROUP, N // 8)),
            "scales": (*_HALF, (K // GROUP, N)),
        },
    ),
    "packed": (
        {"quant_method": "compressed-tensors"},
        {
            "weight_packed": (*_INT, (N, K // 8)),
            "weight_scale": ("BF16", 2, (N, K // GROUP)),
            "weight_shape": ("I64", 8, (2,)),
            "weight_zero_point": (*_INT, (N // 8, K // GROUP)),
        },
    ),
    "bytes": ({}, {"weight": ("I8", 1, (N, K)), "weight_scale": ("F32", 4, (N, 1))}),
    "fp8": ({}, {"weight": ("F8_E4M3", 1, (N, K)), "weight_scale_inv": ("F32", 4, (2, 2))}),
    "nvfp4": (
        {},
        {
            "weight_packed": ("U8", 1, (N, K // 2)),
            "weight_scale": ("F8_E4M3", 1, (N, K // 16)),
            "weight_global_scale": ("F32", 4, (1,)),
        },
    ),
    "mxfp4": ({}, {"_blocks": ("U8", 1, (K, N // 32, 16)), "_scales": ("U8", 1, (K, N // 32))}),
    "hqq": (
        {},
        {
            "W_q": ("U8", 1, (N * K // GROUP // 2, GROUP)),
            "scale": (*_HALF, (N * K // GROUP, 1)),
            "zero": (*_HALF, (N * K // GROUP, 1)),
            "nbits": ("I64", 8, (1,)),
            "axis": ("I64", 8, (1,)),
        },
    ),
}
#: What a part has where its bytes are not drawn: numbers of such a layout.
_GIVEN = {"g_idx": np.arange(K, dtype=np.int32) // GROUP, "weight_shape": np.array([N, K])}
_GIVEN |= {"nbits": np.array([4]), "axis": np.array([1])}


def seeds() -> Iterator[bytes]:
    """Files of GGUF with every type, and safetensors with every layout."""
    rng = np.random.default_rng(0)
    for code, kind in TYPES.items():
        rows, row = 4, kind.nbytes * 2
        yield _gguf({"w": (code, (rows, 2 * kind.size), _bytes(rng, rows * row))})
    yield _gguf({f"w{code}": (code, (4, kind.size), _bytes(rng, 4 * kind.nbytes))
                 for code, kind in TYPES.items()})  # fmt: skip
    for prefix, (_, parts) in _CHECKPOINTS.items():
        header, data = {}, b""
        for part, (dtype, size, shape) in sorted(parts.items(), key=lambda x: -x[1][1]):
            given = _GIVEN.get(part)
            more = _bytes(rng, size * int(np.prod(shape))) if given is None else given.tobytes()
            header[_name(prefix, part)] = {
                "dtype": dtype,
                "shape": [*shape],
                "data_offsets": [len(data), len(data) + len(more)],
            }
            data += more
        yield _safetensors(header, data)


def _name(prefix: str, part: str) -> str:
    return prefix + part if part.startswith("_") else f"{prefix}.{part}"


def _bytes(rng: np.random.Generator, count: int) -> bytes:
    """Draw bytes that are small positive floats of any size, and low numbers of all kinds."""
    return bytes(rng.integers(0x2C, 0x38, count, np.uint8))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf(tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 2)
    head += _text("general.alignment") + struct.pack("<II", 4, 32)
    head += _text("tokens") + struct.pack("<IIQ", 9, 8, 1) + _text("a")
    data = b""
    for name, (code, shape, packed) in tensors.items():
        data += bytes(-len(data) % 32)
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", code, len(data))
        data += packed
    return head + bytes(-len(head) % 32) + data


def _safetensors(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def mutate(blob: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return another file: numbers of its header, and bytes, changed, cut or taken from others.

    Raises
    ------
    STRANGE
        If ``blob`` has no header that can be told.
    """
    if rng.random() < 0.15:
        return blob[: rng.randrange(len(blob))]
    if blob[:4] == b"GGUF":
        return _mutate_gguf(bytearray(blob), rng)
    length = int.from_bytes(blob[:8], "little")
    header, data = json.loads(blob[8 : 8 + length]), bytearray(blob[8 + length :])
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*header])
        entry = header[name]
        how = rng.randrange(6)
        if how == 0:
            entry["dtype"] = rng.choice(
                ["F16", "F32", "BF16", "I8", "U8", "I32", "F8_E4M3", *_WILD]
            )
        elif how == 1:
            _change_list(entry["shape"], rng)
        elif how == 2:
            _change_list(entry["data_offsets"], rng)
        elif how == 3:
            header[rng.choice([*header])] = header.pop(name)
        elif how == 4:
            del header[name]
        else:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7C, 0x7F, 0x80, 0xFF))
    return _safetensors(header, bytes(data))


def _change_list(items: list[Any], rng: random.Random) -> None:
    if rng.random() < 0.2:
        items.insert(rng.randint(0, len(items)), rng.choice(_NUMBERS))
    else:
        at = rng.randrange(len(items))
        items[at] = rng.choice((*_NUMBERS, *_WILD, items[at] + 1, items[at] - 1, items[at] // 2))


def _mutate_gguf(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(4, min(len(data) - 8, 400))
        how = rng.randrange(3)
        if how == 0:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif how == 1:
            struct.pack_into("<I", data, at, rng.choice(_NUMBERS) % 2**32)
        else:
            struct.pack_into("<Q", data, at, rng.choice(_NUMBERS))
    return bytes(data)


def check(blob: bytes) -> str:
    """Read a file, and decode its weights; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    try:
        return _check_gguf(blob) if blob[:4] == b"GGUF" else _check_safetensors(blob)
    except (InputError, PlanFormatError) as error:
        text = str(error)
        assert text.isprintable(), text
        assert len(text) < 600, text
        return "refused"


def _check_gguf(blob: bytes) -> str:
    tensors, _ = read_gguf(np.frombuffer(blob, np.uint8))
    for tensor in tensors.values():
        weight = tensor.weight()
        numbers = weight if isinstance(weight, np.ndarray) else weight.decode()
        assert numbers.shape == tensor.shape
    return "ran"


def _check_safetensors(blob: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        path.write_bytes(blob)
        tensors = read_safetensors(path, FILE_DTYPES)
        found = [_read(tensors, prefix) for prefix in _CHECKPOINTS]
    return "ran" if any(found) else "refused"


def _read(tensors: Any, prefix: str) -> bool:
    """Return whether there is a weight."""
    for name in (f"{prefix}.weight", prefix):
        layout = find_layout(tensors, name, _CHECKPOINTS[prefix][0])
        if layout is not None:
            weight: QuantizedWeight = layout[0].read(layout[1], (N, K))
            numbers = weight.decode()
            assert sorted(numbers.shape) == [N, K]
            assert numbers.dtype == np.float32
            return True
    return False
