"""Read the tensors that quantizers store in safetensors files for a weight.

Each layout has a reader, which is found by the names of what is stored beside a weight. The layouts
are those of the projects' own unpacking functions: GPTQModel and AutoGPTQ, AutoAWQ, AutoRound,
compressed-tensors, ModelOpt, HQQ, and transformers for fine-grained FP8 and MXFP4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.analysis.float_codes import E2M1, E4M3, E5M2, E8M0
from taper_frontend.quantized_checkpoint.weight import QuantizedWeight, Scale
from taper_runtime.base.dtypes import cast
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taper_runtime.file.weights_file import StoredWeight

_FLOATS = ("float16", "bfloat16", "float32")
_PACKED = ("int32", "uint32")

#: Where AWQ stores each of 8 numbers in an int32: number i is in bits 4 * _AWQ[i].
_AWQ = np.array([0, 4, 1, 5, 2, 6, 3, 7])


class StoredParts:
    """Parts that a file has for a weight.

    Parameters
    ----------
    tensors : mapping of str to StoredWeight
        All of the file.
    name : str
        The name of the weight in it.
    prefix : str
        What the names of the parts begin with.
    config : mapping
        What the checkpoint says of its quantization.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredWeight],
        name: str,
        prefix: str,
        config: Mapping[str, Any],
    ) -> None:
        self.tensors = tensors
        self.name = name
        self.prefix = prefix
        self.config = config

    def has(self, part: str) -> bool:
        """Return whether the file has a part."""
        return self.prefix + part in self.tensors

    def dtype(self, part: str) -> str:
        """Return the dtype of a part, empty without it."""
        return self.tensors[self.prefix + part].dtype if self.has(part) else ""

    def get(self, part: str, dtypes: tuple[str, ...], rank: int | None = None) -> np.ndarray:
        """Return a part of such dtypes and such a rank.

        Raises
        ------
        InputError
            If the file has another one, or none.
        """
        name = self.prefix + part
        if name not in self.tensors:
            raise InputError(f"{self.name}: expected the tensor {name!r} too, got none")
        dtype, array = self.tensors[name]
        if dtype not in dtypes or (rank is not None and array.ndim != rank):
            rank_text = "" if rank is None else f" of rank {rank}"
            raise InputError(
                f"{name}: expected {' or '.join(dtypes)}{rank_text}, got {dtype}{[*array.shape]}"
            )
        if not array.size:
            raise InputError(f"{name}: expected elements, got {dtype}{[*array.shape]}")
        return array

    def scales(self, part: str, rank: int | None = None) -> np.ndarray:
        """Return scales, which are finite and positive."""
        scales = self.get(part, _FLOATS, rank)
        self.check_scales(part, cast(scales, "float32"))
        return scales

    def check_scales(self, part: str, numbers: np.ndarray, least: str = "positive") -> None:
        """Raise InputError unless numbers are finite, and positive or 0 if `least` says so."""
        are = np.isfinite(numbers) & (numbers > 0 if least == "positive" else numbers >= 0)
        if not are.all():
            place = tuple(map(int, np.argwhere(~are)[0]))
            raise InputError(
                f"{self.prefix}{part}: expected finite {least} scales, got "
                f"{numbers[place]:.3g} at {place}"
            )

    def wrong(self, part: str, expected: str) -> InputError:
        """Return the error for a part of another shape."""
        return InputError(
            f"{self.prefix}{part}: expected {expected}, got "
            f"{[*self.tensors[self.prefix + part].array.shape]}"
        )

    def groups(self, part: str, size: int, count: int) -> int:
        """Return the length of ``count`` groups of an axis.

        Raises
        ------
        InputError
            If they do not divide it.
        """
        if count < 1 or size % count:
            raise InputError(
                f"{self.prefix}{part}: expected scales of groups that divide {size} elements, "
                f"got {count} groups"
            )
        return size // count

    def columns(self, part: str, size: int, count: int, length: int | None = None) -> int:
        """Return the length of ``count`` groups of a row.

        Parameters
        ----------
        part : str
        size, count : int
        length : int, optional
            What the format says; by default what the checkpoint says.

        Raises
        ------
        InputError
            If they do not divide it, or are of another length.
        """
        known = self.said("group_size") if length is None else length
        if type(known) is int:
            expected = -(-size // known) if known > 0 else 1
            if count != expected:
                raise InputError(
                    f"{self.prefix}{part}: expected {expected} groups of {known} in a row of "
                    f"{size}, got {count} groups"
                )
        return self.groups(part, size, count)

    def said(self, key: str) -> Any:
        """Return what the checkpoint says of all of its weights; None if that is nothing."""
        groups = self.config.get("config_groups")
        if not isinstance(groups, dict):
            return self.config.get(key)
        weights = [each.get("weights") for each in groups.values() if isinstance(each, dict)]
        values = [each.get(key) for each in weights if isinstance(each, dict)]
        return values[0] if values and all(value == values[0] for value in values) else None

    def needs(self, part: str, why: str) -> None:
        """Raise InputError unless the file has a part, for a reason."""
        if not self.has(part):
            raise InputError(f"{self.prefix}{part}: expected it, since {why}; got none")

    def setting(self, key: str, allowed: tuple[Any, ...]) -> Any:
        """Return a setting of the checkpoint.

        Raises
        ------
        InputError
            If it is another one, or the checkpoint does not say.
        """
        value = self.config.get(key)
        if value not in allowed:
            raise InputError(
                f"{self.name}: expected quantization_config[{key!r}] one of "
                f"{', '.join(map(repr, allowed))}; got {value!r}"
            )
        return value


def _unpacked(packed: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Return the numbers of int32 along an axis, the first one in the lowest bits, uint8."""
    places = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.moveaxis(packed, axis, -1).view(np.uint32)[..., None]
    numbers = (words >> places & np.uint32(2**bits - 1)).astype(np.uint8)
    numbers = numbers.reshape(*numbers.shape[:-2], -1)
    return np.asarray(np.moveaxis(numbers, -1, axis), order="C")


def _signed(levels: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned levels minus their middle, int8."""
    return np.asarray(levels.astype(np.int16) - 2 ** (bits - 1), np.int8)


# -- GPTQ, AWQ, AutoRound --------------------------------------------------------------------------


def _read_columns(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``qweight`` of GPTQ or AWQ: AutoRound stores either."""
    method = str(parts.config.get("quant_method", ""))
    packing = str(parts.config.get("packing_format", parts.config.get("checkpoint_format", "")))
    if method == "awq" or "awq" in packing:
        return _read_awq(parts, shape)
    if method in ("gptq", "auto-round", "intel/auto-round"):
        return _read_gptq(parts, shape, packing)
    raise InputError(
        f"{parts.name}: expected quantization_config['quant_method'] 'gptq', 'awq' or "
        f"'auto-round' for qweight, got {parts.config.get('quant_method')!r}"
    )


#: Numbers that are added to the zero points that a format stores.
_GPTQ_FORMATS = {
    "": 1,
    "gptq": 1,
    "gptq_v2": 0,
    "auto_round": 1,
    "auto_round:gptq": 1,
    "auto_round:auto_gptq": 1,
    "auto_round:gptq_v2": 0,
}


def _read_gptq(parts: StoredParts, shape: tuple[int, ...], packing: str) -> QuantizedWeight:
    """Read int32 ``qweight [K/n, N]``, ``qzeros [groups, N/n]``, scales and ``g_idx [K]``."""
    bits = parts.setting("bits", (2, 4, 8))
    if packing not in _GPTQ_FORMATS:
        raise InputError(
            f"{parts.name}: expected a format "
            f"{', '.join(repr(each) for each in _GPTQ_FORMATS if each)}; got {packing!r}"
        )
    n, k = shape
    levels = _unpacked(parts.get("qweight", _PACKED, 2), bits, 0)
    if levels.shape != (k, n):
        raise parts.wrong("qweight", f"int32[{k * bits // 32}, {n}] for {n} x {k} weights")
    scales = parts.scales("scales", 2)
    zeros = _unpacked(parts.get("qzeros", _PACKED, 2), bits, 1).astype(np.int16)
    zeros += _GPTQ_FORMATS[packing]
    if zeros.shape != scales.shape or scales.shape[1] != n:
        raise parts.wrong("qzeros", f"int32[{len(scales)}, {n * bits // 32}]")
    if zeros.size and zeros.max() >= 2**bits:
        raise InputError(
            f"{parts.prefix}qzeros: expected zero points below {2**bits}, got {zeros.max()}; the "
            "checkpoint may be of version 'gptq_v2'"
        )
    if parts.config.get("desc_act"):
        parts.needs("g_idx", "quantization_config['desc_act'] is true")
    group = _group(parts, k, len(scales))
    return _from_rows(levels, scales, zeros, group)


def _group(parts: StoredParts, k: int, groups: int, scales: str = "scales") -> np.ndarray | None:
    """Return the groups of rows where they are not one behind the other."""
    parts.columns(scales, k, groups)
    if parts.has("g_idx"):
        index = parts.get("g_idx", ("int32", "int64"), 1)
        if index.shape != (k,) or (index.size and not 0 <= index.min() <= index.max() < groups):
            raise parts.wrong("g_idx", f"{k} positions of {groups} groups")
        if k % groups or not np.array_equal(index, np.arange(k) // (k // groups)):
            return np.asarray(index, np.int64)
    return None


def _from_rows(
    levels: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: np.ndarray | None = None
) -> QuantizedWeight:
    """Return a weight of levels ``[K, N]``."""
    return QuantizedWeight(
        np.asarray(levels.T, order="C"),
        Scale(np.asarray(scales.T, order="C")),
        np.asarray(zeros.T, np.uint8, order="C"),
        group=group,
    )


def _read_awq(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read int32 ``qweight [K, N/8]``, ``qzeros [groups, N/8]`` and scales ``[groups, N]``."""
    parts.setting("bits", (4,))
    if str(parts.config.get("version", "gemm")).lower() != "gemm":
        parts.setting("version", ("gemm",))
    n, k = shape
    qweight, qzeros = (parts.get(part, _PACKED, 2) for part in ("qweight", "qzeros"))
    scales = parts.scales("scales", 2)
    if qweight.shape != (k, n // 8) or n % 8:
        raise parts.wrong("qweight", f"int32[{k}, {n}/8] for {n} x {k} weights")
    if scales.shape[1] != n or qzeros.shape != (len(scales), n // 8):
        raise parts.wrong("qzeros", f"int32[{len(scales)}, {n // 8}]")
    parts.columns("scales", k, len(scales))

    def unpacked(packed: np.ndarray) -> np.ndarray:
        numbers = _unpacked(packed, 4, 1).reshape(len(packed), -1, 8)[..., _AWQ]
        return numbers.reshape(len(packed), n)

    return _from_rows(unpacked(qweight), scales, unpacked(qzeros))


# -- compressed-tensors ----------------------------------------------------------------------------


def _read_packed(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``weight_packed``: integers in int32, or floats of 4 bits in bytes."""
    if parts.dtype("weight_packed") == parts.dtype("weight_scale") == "uint8":  # MXFP4
        codes = parts.get("weight_scale", ("uint8",), len(shape))
        scale = _exponents(parts, "weight_scale", codes, shape)
        return QuantizedWeight(_fours(parts, "weight_packed", shape), scale, table=E2M1)
    if parts.dtype("weight_packed") == "uint8":
        return _read_nvfp4(parts, shape, "weight_packed", "weight_global_scale", True)
    n, k = shape
    packed = parts.get("weight_packed", _PACKED, 2)
    bits = parts.said("num_bits")
    if bits not in (4, 8):
        bits = 4 if packed.shape[1] == -(-k // 8) else 8
    levels = _unpacked(packed, bits, 1)
    if len(levels) != n or packed.shape[1] != -(-k * bits // 32):
        raise parts.wrong("weight_packed", f"int32[{n}, {-(-k * bits // 32)}] of {bits} bits")
    if parts.has("weight_shape"):
        stored = parts.get("weight_shape", ("int64", "int32"), 1).tolist()
        if stored != [n, k]:
            raise InputError(f"{parts.prefix}weight_shape: expected {[n, k]}, got {stored}")
    scales = parts.scales("weight_scale", 2)
    zeros = None
    if parts.has("weight_zero_point"):
        zeros = _unpacked(parts.get("weight_zero_point", _PACKED, 2), bits, 0)[:n]
        if zeros.shape != scales.shape:
            raise parts.wrong("weight_zero_point", f"int32[{-(-n * bits // 32)}, groups]")
        zeros = _signed(zeros, bits)
    elif parts.said("symmetric") is False:
        parts.needs("weight_zero_point", "the weights are not symmetric")
    if len(scales) != n:
        raise parts.wrong("weight_scale", f"scales of {n} rows")
    if parts.said("actorder") in ("group", "dynamic"):
        parts.needs("weight_g_idx", "groups are by the order of activations")
    moved = StoredParts(parts.tensors, parts.name, parts.prefix + "weight_", parts.config)
    group = _group(moved, k, scales.shape[1], "scale")
    levels = _signed(levels[:, :k], bits)
    return QuantizedWeight(levels, Scale(scales), zeros, group=group)


_CODES = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2}


def _read_scaled(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``weight`` of bytes with ``weight_scale``: int8, or floats of 8 bits."""
    if parts.has("weight_scale_2"):
        return _read_nvfp4(parts, shape, "weight", "weight_scale_2", False)
    levels = parts.get("weight", ("int8", *_CODES))
    if levels.shape != shape:
        raise parts.wrong("weight", str([*shape]))
    table = _CODES.get(parts.dtype("weight"))
    zeros = None
    if parts.has("weight_zero_point"):
        zeros = _spread(
            parts, "weight_zero_point", parts.get("weight_zero_point", ("int8",)), shape
        )
    elif parts.said("symmetric") is False:
        parts.needs("weight_zero_point", "the weights are not symmetric")
    scales = _spread(parts, "weight_scale", parts.scales("weight_scale"), shape)
    if zeros is not None and zeros.shape != scales.shape:
        raise parts.wrong("weight_zero_point", "one for each scale")
    return _checked_codes(
        parts, "weight", QuantizedWeight(levels, Scale(scales), zeros, table=table)
    )


def _spread(
    parts: StoredParts, part: str, scales: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return scales of a tensor, of rows, or of blocks of rows and columns, for each row."""
    scales = scales.reshape(1, 1) if scales.size == 1 else scales
    scales = scales[:, None] if scales.ndim == 1 else scales
    n, k = shape
    if scales.ndim != 2 or not scales.size:
        raise parts.wrong(part, f"scales of blocks of {[n, k]}")
    return np.repeat(_by_blocks(parts, part, scales, 1, k), _block(parts, part, scales, 0, n), 0)[
        :n
    ]


def _block(parts: StoredParts, part: str, scales: np.ndarray, axis: int, size: int) -> int:
    """Return the length of blocks along an axis; the last one may be shorter if the file says."""
    count = scales.shape[axis]
    known = parts.config.get("weight_block_size")
    if isinstance(known, (list, tuple)) and len(known) == 2:
        length = known[axis]
        if isinstance(length, int) and length > 0 and -(-size // length) == count:
            return length
        raise parts.wrong(part, f"scales of blocks {[*known]}")
    return parts.columns(part, size, count) if axis else parts.groups(part, size, count)


def _by_blocks(
    parts: StoredParts, part: str, scales: np.ndarray, axis: int, size: int
) -> np.ndarray:
    """Return scales whose blocks divide an axis."""
    length = _block(parts, part, scales, axis, size)
    if length * scales.shape[axis] == size:
        return scales
    even = int(np.gcd(length, size))  # the last block is shorter
    return np.repeat(scales, length // even, axis)[:, : size // even]


def _checked_codes(parts: StoredParts, part: str, weight: QuantizedWeight) -> QuantizedWeight:
    if weight.table is not None and np.isnan(weight.table[weight.levels]).any():
        raise InputError(f"{parts.prefix}{part}: expected finite numbers, got NaN")
    return weight


# -- floats of 8 and 4 bits ------------------------------------------------------------------------


def _read_blocks_of_8_bits(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``weight`` of 8-bit floats with ``weight_scale_inv`` for blocks of rows and columns."""
    levels = parts.get("weight", tuple(_CODES))
    if levels.shape != shape:
        raise parts.wrong("weight", str([*shape]))
    table = _CODES[parts.dtype("weight")]
    if parts.dtype("weight_scale_inv") == "uint8":  # MXFP8
        codes = parts.get("weight_scale_inv", ("uint8",), 2)
        scale = _exponents(parts, "weight_scale_inv", codes, shape)
    else:
        scales = parts.scales("weight_scale_inv", len(shape))
        flat = scales.reshape(-1, *scales.shape[-2:])
        spread = [_spread(parts, "weight_scale_inv", each, shape[-2:]) for each in flat]
        scale = Scale(np.stack(spread).reshape(*shape[:-1], -1))
    return _checked_codes(parts, "weight", QuantizedWeight(levels, scale, table=table))


def _exponents(parts: StoredParts, part: str, codes: np.ndarray, shape: tuple[int, ...]) -> Scale:
    if codes.shape[:-1] != shape[:-1]:
        raise parts.wrong(part, f"scales of rows of {[*shape]}")
    parts.columns(part, shape[-1], codes.shape[-1], 32)
    parts.check_scales(part, E8M0[codes])
    return Scale(None, codes, E8M0)


def _fours(parts: StoredParts, part: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return codes that are two in a byte, the first in the low half."""
    packed = parts.get(part, ("uint8",), len(shape))
    if packed.shape != (*shape[:-1], shape[-1] // 2) or shape[-1] % 2:
        raise parts.wrong(part, f"uint8{[*shape[:-1], shape[-1] // 2]}")
    return np.stack([packed & 15, packed >> 4], -1).reshape(shape)


def _read_nvfp4(
    parts: StoredParts, shape: tuple[int, ...], part: str, common: str, divides: bool
) -> QuantizedWeight:
    """Read codes of 4 bits with scales of 8-bit floats.

    The scales are multiplied with one number, or divided by it.
    """
    levels = _fours(parts, part, shape)
    codes = parts.get("weight_scale", ("float8_e4m3fn",), len(shape))
    if codes.shape[:-1] != shape[:-1]:
        raise parts.wrong("weight_scale", f"scales of rows of {[*shape]}")
    parts.columns("weight_scale", shape[-1], codes.shape[-1], 16)
    numbers = E4M3[codes]
    parts.check_scales("weight_scale", numbers, "nonnegative")
    number = cast(parts.scales(common), "float32")
    if number.size != 1:
        raise parts.wrong(common, "one number")
    number = number.reshape(())
    factor = np.float32(1) / number if divides else number
    codes = np.where(codes == 128, 0, codes).astype(np.uint8)  # -0
    if divides and not np.array_equal(numbers / number, numbers * factor):
        return QuantizedWeight(levels, Scale(numbers / number), table=E2M1)
    whole = np.full((*shape[:-1], 1), factor, np.float32)
    return QuantizedWeight(levels, Scale(whole, codes, E4M3), table=E2M1)


def _read_mxfp4(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``_blocks [..., N, groups, 16]`` of codes and ``_scales [..., N, groups]`` of exponents.

    The parameters of gpt-oss are ``[experts, K, N]``: the weight is transposed.
    """
    packed, codes = parts.get("_blocks", ("uint8",)), parts.get("_scales", ("uint8",))
    rows = (*shape[:-2], shape[-1], shape[-2])
    groups = rows[-1] // 32
    if packed.shape != (*rows[:-1], groups, 16) or rows[-1] % 32:
        raise parts.wrong("_blocks", f"uint8{[*rows[:-1], groups, 16]}")
    if codes.shape != packed.shape[:-1]:
        raise parts.wrong("_scales", f"uint8{[*packed.shape[:-1]]}")
    levels = np.stack([packed & 15, packed >> 4], -1).reshape(rows)
    return QuantizedWeight(levels, _exponents(parts, "_scales", codes, rows), table=E2M1)


# -- HQQ -------------------------------------------------------------------------------------------


def _read_hqq(parts: StoredParts, shape: tuple[int, ...]) -> QuantizedWeight:
    """Read ``W_q``, whose bytes have rows of the first half in their high bits.

    The matrix that it has is ``[groups, group]``, in the order of the weight.
    """
    nbits = int(parts.get("nbits", ("int64", "int32", "uint8")).reshape(-1)[0])
    if nbits not in (2, 4, 8):
        raise InputError(f"{parts.prefix}nbits: expected 2, 4 or 8, got {nbits}")
    axis = int(parts.get("axis", ("int64", "int32", "uint8")).reshape(-1)[0])
    if axis != 1:
        raise InputError(f"{parts.prefix}axis: expected groups along axis 1, got axis {axis}")
    packed = parts.get("W_q", ("uint8",), 2)
    places = range(8 - nbits, -1, -nbits)
    levels = np.concatenate([packed >> place & (2**nbits - 1) for place in places])
    scales, zeros = parts.scales("scale"), parts.get("zero", _FLOATS)
    n, k = shape
    if levels.size != n * k or scales.size != len(levels) or k % levels.shape[1]:
        raise parts.wrong("W_q", f"groups of {n} x {k} weights and {scales.size} scales")
    if zeros.size != scales.size or not np.isfinite(cast(zeros, "float32")).all():
        raise parts.wrong("zero", f"{scales.size} finite zero points")
    return QuantizedWeight(
        levels.reshape(shape), Scale(scales.reshape(n, -1)), cast(zeros.reshape(n, -1), "float32")
    )


class WeightLayout(NamedTuple):
    """A way in which files store weights.

    Attributes
    ----------
    marks : tuple of str
        Endings of names: a file that has all of them for a weight has it in this layout.
    weight : str
        How the name of the weight itself ends; the others begin with what is before it.
    read : callable
        Takes the parts and the shape of the weight.
    is_transposed : bool
        Whether the module's parameter is the transposed weight.
    takes_stacks : bool
        Whether a weight may be a stack of matrices.
    """

    marks: tuple[str, ...]
    weight: str
    read: Callable[[StoredParts, tuple[int, ...]], QuantizedWeight]
    is_transposed: bool = False
    takes_stacks: bool = False


LAYOUTS = (
    WeightLayout(("qweight", "scales"), "weight", _read_columns),
    WeightLayout(("weight_packed", "weight_scale"), "weight", _read_packed),
    WeightLayout(("weight", "weight_scale"), "weight", _read_scaled),
    WeightLayout(
        ("weight", "weight_scale_inv"), "weight", _read_blocks_of_8_bits, takes_stacks=True
    ),
    WeightLayout(("_blocks", "_scales"), "", _read_mxfp4, is_transposed=True, takes_stacks=True),
    WeightLayout(("W_q", "scale"), "weight", _read_hqq),
)


def find_layout(
    tensors: Mapping[str, StoredWeight], name: str, config: Mapping[str, Any]
) -> tuple[WeightLayout, StoredParts] | None:
    """Return the layout and the parts of a weight; None if it is not stored quantized."""
    for layout in LAYOUTS:
        if not name.endswith(layout.weight):
            continue
        prefix = name[: len(name) - len(layout.weight)]
        if all(prefix + mark in tensors for mark in layout.marks):
            return layout, StoredParts(tensors, name, prefix, config)
    return None
