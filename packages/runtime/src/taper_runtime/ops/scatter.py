"""SCATTER: writing where an index tensor says, into a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.gather import along, check_along
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.rules import (
    COMPUTED,
    check_dtype,
    check_indices,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How SCATTER combines with what is there; "none" overwrites.
_COMBINE: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


def _infer_scatter(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index, src = inputs
    check_along("SCATTER", x, index, attrs["axis"])
    if src != TensorType(x.dtype, index.shape):
        fail("SCATTER", f"src of {x.dtype} and of the index's shape {list(index.shape)}", src)
    if attrs["reduce"] != "none":
        if attrs["reduce"] not in _COMBINE:
            fail("SCATTER", f"reduce one of none, {', '.join(_COMBINE)}", repr(attrs["reduce"]))
        check_dtype("SCATTER", "x", x.dtype, COMPUTED)
    return x


def _scatter(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index, src = inputs
    size = x.shape[attrs["axis"]]
    check_indices("SCATTER", index, -size, size)
    out = np.array(x, order="C")
    places = along(index, attrs["axis"])
    if attrs["reduce"] == "none":
        out[places] = src
    else:
        with np.errstate(all="ignore"):
            _COMBINE[attrs["reduce"]].at(out, places, src)
    return out


def _samples_scatter() -> Iterator[Sample]:
    rng = np.random.default_rng(14)
    for dtype in (np.float32, np.int64, np.int32):
        x = (rng.standard_normal((4, 5)) * 9).astype(dtype)
        for axis, size in enumerate(x.shape):
            # Each place is written once: which of several would stay is not defined.
            once = [rng.permutation(size)[:3] - size for _ in range(3)]
            index = np.stack(once, axis=1 - axis)
            src = (rng.standard_normal((3, 3)) * 9).astype(dtype)
            yield Sample([x, index, src], {"axis": axis}, native=False)
            index = np.asarray(rng.integers(-size, size, (3, 3)), np.int32)
            for reduce in _COMBINE:
                yield Sample([x, index, src], {"axis": axis, "reduce": reduce}, native=False)
    flags = rng.random((4, 5)) < 0.5
    index = np.zeros((4, 5), np.int64)
    yield Sample([flags, index, ~flags], {"axis": 1, "reduce": "sum"}, native=False)
    yield Sample([flags, index[:0], flags[:0]], {"axis": 0}, native=False)


SCATTER = OpDef(
    name="SCATTER",
    doc="A copy of x with out[index[i, j], j] = src[i, j] for axis 0, and alike for every axis "
    "and rank, or with src combined by sum, prod, amax or amin with what is there. A negative "
    "index counts from the end; which of several writes to one place stays is not defined.",
    inputs=(3, 3),
    infer=_infer_scatter,
    evaluate=_scatter,
    samples=_samples_scatter,
    attrs={"axis": Attr("int"), "reduce": Attr("string", "none")},
    strided=(ALL_INPUTS,),
    native=False,
)
