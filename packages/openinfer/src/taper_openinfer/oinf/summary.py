"""Show a model file: sizes, metadata, and of each tensor some elements and how they lie."""

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

#: Elements that are shown all, else so many from each end.
_ALL, _ENDS = 10, 5

#: Integers that span at most so many values have a bin for each; others, and floats, have ten bins.
_MOST_VALUES, _BINS = 20, 10


def describe_model(model: Model) -> tuple[dict[str, Any], str]:
    """Return everything that a model says, as plain data and as text; reads the whole file.

    Raises
    ------
    OinfError
        If some value or tensor is not as it should be.
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
    """Return a value of metadata as it may stand in JSON."""
    if isinstance(value, ScalarValue):
        return _numbers_in_json(value.value)
    if isinstance(value, Bitset):
        return value.bits.tolist()
    if isinstance(value, ArrayValue):
        return _numbers_in_json(_numbers(value.dtype, value.values).tolist())
    return value


def _numbers_in_json(value: object) -> object:
    """Return numbers, or lists of them, with what JSON cannot write as plans spell it."""
    if isinstance(value, list):
        return [_numbers_in_json(each) for each in value]
    return to_json(value, "value") if isinstance(value, float) else value


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]" if shape else dtype


def _numbers(dtype: str, array: np.ndarray) -> np.ndarray:
    """Return the values of elements that are held as bits."""
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
    """Return what is to be said of the finite elements, and how many others there are."""
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
    """Return the standard deviation; computed of halves of the range where squares overflow."""
    scale = float(abs(wide).max())
    return float((wide / scale).std() * scale) if scale > 1e100 else float(wide.std())


def _histogram(dtype: str, values: np.ndarray) -> list[tuple[int | float, int | float, int]]:
    """Return bins that are not empty: the least value, the largest or the next bin's, and a count.

    Integers that span few values have a bin for each, both ends the same; so have equal values.
    """
    finite = _finite(values)
    if not finite.size:
        return []
    low, high = finite.min().item() + 0, finite.max().item() + 0  # of a bool 0 and 1
    if low == high:
        return [(low, high, finite.size)]
    if DTYPES[dtype].kind != "float":
        if high - low <= _MOST_VALUES:
            bins = zip(*np.unique(finite, return_counts=True), strict=True)
            return [(int(value), int(value), int(count)) for value, count in bins]
        # what they have in common may be all that a float holds of them
        above = (finite.astype(np.uint64) - np.array(low).astype(np.uint64)) / float(high - low)
    else:
        scale = 4.0 if max(-low, high) > 1e300 else 1.0  # so that the width of the range is finite
        wide = finite.astype(np.float64) / scale
        above = (wide - low / scale) / (high / scale - low / scale)
    counts, parts = np.histogram(above, _BINS, (0.0, 1.0))
    edges = [low * (1 - part) + high * part for part in parts.tolist()]
    return [(edges[i], edges[i + 1], int(n)) for i, n in enumerate(counts) if n]


def _bin(low: float, high: float) -> str:
    return _text(low) if low == high else f"{_text(low)} to {_text(high)}"
