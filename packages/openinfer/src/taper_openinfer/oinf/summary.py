"""Describe a model file: sizes, metadata, and elements and statistics of each tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES, to_float32
from taper_openinfer.oinf.contents import ArrayValue, Bitset, ScalarValue
from taper_runtime.file.plain_data import to_json

if TYPE_CHECKING:
    from taper_openinfer.oinf.contents import Quantization
    from taper_openinfer.oinf.payloads import Value
    from taper_openinfer.oinf.reader import Model, TensorInfo

#: How many elements are shown in full, and how many from each end of a longer tensor.
_ALL, _ENDS = 10, 5

#: Integers in a range of at most so many values get a bin per value; all others get ten bins.
_MOST_VALUES, _BINS = 20, 10


def describe_model(model: Model) -> tuple[dict[str, Any], str]:
    """Describe a model as plain data and as text; reads the whole file.

    Raises
    ------
    OinfError
        If a value or a tensor is invalid.
    """
    lines = [f"version {model.version}"]
    lines += [f"{name} := {value}" for name, value in model.sizevars.items()]
    metadata = {}
    for key in model.metadata:
        value = model.metadata.typed(key)
        kind, shown = _described(value)
        metadata[key] = {"type": kind, "value": _plain(value)}
        lines.append(f"{key}: {kind} = {shown}")
    tensors = {}
    for name, info in model.tensors.items():
        data, text = _tensor(info)
        tensors[name] = data
        lines += text
    return {
        "version": model.version,
        "sizevars": dict(model.sizevars),
        "metadata": metadata,
        "tensors": tensors,
    }, "\n".join(lines)


def _described(value: Value) -> tuple[str, str]:
    """Return the type and the text of a value of metadata."""
    if isinstance(value, str):
        return "string", f'"{value}"'
    if isinstance(value, ScalarValue):
        return value.dtype, _text(value.value)
    if isinstance(value, Bitset):
        return f"bitset[{value.count}]", _elements(value.bits.astype(np.uint8))
    return _type(value.dtype, value.values.shape), _elements(_numbers(value.dtype, value.values))


def _plain(value: Value) -> object:
    """Convert a value of metadata for JSON."""
    if isinstance(value, ScalarValue):
        return _numbers_in_json(value.value)
    if isinstance(value, Bitset):
        return value.bits.tolist()
    if isinstance(value, ArrayValue):
        return _numbers_in_json(_numbers(value.dtype, value.values).tolist())
    return value


def _numbers_in_json(value: object) -> object:
    """Convert numbers, or lists of them, for JSON; infinities and NaN become texts."""
    if isinstance(value, list):
        return [_numbers_in_json(each) for each in value]
    return to_json(value, "value") if isinstance(value, float) else value


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]" if shape else dtype


def _numbers(dtype: str, array: np.ndarray) -> np.ndarray:
    """Return the values of elements that are stored as bits."""
    return to_float32(dtype, array) if dtype in ("bf16", "f8") else array


def _elements(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    if flat.size <= _ALL:
        return f"{{ {', '.join(map(_text, flat.tolist()))} }}" if flat.size else "{ }"
    ends = [", ".join(map(_text, part.tolist())) for part in (flat[:_ENDS], flat[-_ENDS:])]
    return f"{{ {ends[0]}, ..., {ends[1]} }}"


def _text(value: bool | int | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).lower()


def _tensor(info: TensorInfo) -> tuple[dict[str, Any], list[str]]:
    """Describe one tensor as plain data and as lines of text."""
    data: dict[str, Any] = {
        "dtype": info.dtype,
        "shape": list(info.shape),
        "has_data": info.has_data,
        "quantization": None,
        "statistics": None,
        "histogram": [],
    }
    head = f"{info.name}: {_type(info.dtype, info.shape)}"
    quant = info.quantization
    lines = []
    if quant is not None:
        data["quantization"] = {
            "scheme": "symmetric" if quant.symmetric else "asymmetric",
            "axis": quant.axis,
            "scales": _numbers_in_json(quant.scales.tolist()),
            "zero_points": None if quant.zero_points is None else quant.zero_points.tolist(),
        }
        lines.append(f"  {_quantization(quant)}")
    if not info.has_data:
        return data, [f"{head} -- uninitialized", *lines]
    values = _numbers(info.dtype, info.read())
    head = f"{head} = {_elements(values)}"
    start, stop = info.value_range or (0, 0)
    numbers = _statistics(values)
    data["statistics"] = {"nbytes": stop - start, **numbers}
    shown = ", ".join(f"{name} {_text(value)}" for name, value in numbers.items())
    lines.append(f"  nbytes {stop - start}" + (f", {shown}" if shown else ""))
    data["histogram"] = _histogram(info.dtype, values)
    lines += [f"  {_bin(low, high):>24} | {count}" for low, high, count in data["histogram"]]
    return data, [head, *lines]


def _quantization(quant: Quantization) -> str:
    text = f"quantized {'symmetric' if quant.symmetric else 'asymmetric'}"
    text += "" if quant.axis is None else f" along axis {quant.axis}"
    text += f", scales {_elements(quant.scales)}"
    return text if quant.zero_points is None else f"{text}, zeros {_elements(quant.zero_points)}"


def _finite(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1)
    return flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat


def _statistics(values: np.ndarray) -> dict[str, int | float]:
    """Return statistics of the finite elements, and the number of all others."""
    finite = _finite(values)
    found: dict[str, int | float] = {}
    if finite.size:
        wide = finite.astype(np.float64)
        found = {
            "min": finite.min().item(),
            "max": finite.max().item(),
            "mean": float(wide.mean()),
            "median": float(np.median(wide)),
            "std": float(_spread(wide)),
        }
    if finite.size < values.size:
        found["not_finite"] = values.size - finite.size
    return found


def _spread(wide: np.ndarray) -> float:
    """Return the standard deviation; large values are scaled, so that squares do not overflow."""
    scale = float(abs(wide).max())
    return float((wide / scale).std() * scale) if scale > 1e100 else float(wide.std())


def _histogram(dtype: str, values: np.ndarray) -> list[tuple[int | float, int | float, int]]:
    """Return the bins that are not empty: lower end, upper end, and count.

    Integers in a small range have a bin per value, with equal ends; so have elements that are all
    equal.
    """
    finite = _finite(values)
    if not finite.size:
        return []
    low, high = finite.min().item() + 0, finite.max().item() + 0  # bools become 0 and 1
    if low == high:
        return [(low, high, finite.size)]
    if DTYPES[dtype].kind != "float":
        if high - low <= _MOST_VALUES:
            bins = zip(*np.unique(finite, return_counts=True), strict=True)
            return [(int(value), int(value), int(count)) for value, count in bins]
        # a float could hold only the digits that they share, so subtract the minimum first
        above = (finite.astype(np.uint64) - np.array(low).astype(np.uint64)) / float(high - low)
    else:
        # high - low may overflow where both are finite
        scale = 4.0 if max(-low, high) > 1e300 else 1.0
        wide = finite.astype(np.float64) / scale
        above = (wide - low / scale) / (high / scale - low / scale)
    counts, parts = np.histogram(above, _BINS, (0.0, 1.0))
    edges = [low * (1 - part) + high * part for part in parts.tolist()]
    return [(edges[i], edges[i + 1], int(n)) for i, n in enumerate(counts) if n]


def _bin(low: float, high: float) -> str:
    return _text(low) if low == high else f"{_text(low)} to {_text(high)}"
