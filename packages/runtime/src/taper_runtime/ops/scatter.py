"""Define SCATTER and WRITE: write at the positions in an index tensor, into a copy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.gather import PLACES, along, check_along, check_places
from taper_runtime.ops.opdef import (
    ALL_INPUTS,
    Attr,
    Attrs,
    Cost,
    OpDef,
    Save,
    TensorType,
)
from taper_runtime.ops.region import WHOLE, Region, Same, Window
from taper_runtime.ops.type_rules import (
    COMPUTED,
    INDICES,
    check_axis,
    check_dtype,
    fail,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How SCATTER combines a value with the present one; "none" overwrites it.
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
            fail("SCATTER", f"a reduce of none, {', '.join(_COMBINE)}", repr(attrs["reduce"]))
        check_dtype("SCATTER", "x", x.dtype, COMPUTED)
    return x


def _scatter(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index, src = inputs
    check_places("SCATTER", inputs, attrs)
    out = np.array(x, order="C")
    places = along(index, attrs["axis"])
    if attrs["reduce"] == "none":
        out[places] = src
    else:
        with np.errstate(all="ignore"):
            _COMBINE[attrs["reduce"]].at(out, places, src)
    return out


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    x, index = (t.shape for t in inputs[:2])
    # Along the axis, and if the index is shorter, positions are those in the whole of x.
    alike = [
        size == count and axis != attrs["axis"]
        for axis, (size, count) in enumerate(zip(x, index, strict=True))
    ]
    region = tuple(Same(axis) if same else Window(axis) for axis, same in enumerate(alike))
    part = tuple(Same(axis) if same else WHOLE for axis, same in enumerate(alike))
    return [region, part, part]


def _infer_write(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, places, src = inputs
    check_dtype("WRITE", "places", places.dtype, INDICES)
    axis = check_axis("WRITE", attrs["axis"], len(x.shape))
    wanted = TensorType(x.dtype, replace(x.shape, axis, *places.shape))
    if src != wanted:
        fail("WRITE", f"src {wanted.dtype}{list(wanted.shape)}", f"{src.dtype}{list(src.shape)}")
    return x


def _write(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, places, src = inputs
    check_places("WRITE", inputs, attrs)
    out = np.array(x, order="C")
    out[(slice(None),) * attrs["axis"] + (places,)] = src
    return out


def _region_write(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    axis, rank = attrs["axis"], len(output.shape)
    x = tuple(Window(i) if i == axis else Same(i) for i in range(rank))
    places = (WHOLE,) * len(inputs[1].shape)
    return [x, places, (*map(Same, range(axis)), *places, *map(Same, range(axis + 1, rank)))]


def _cost_write(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of the written slices, and of copying x unless it is overwritten in place."""
    _, places, src = inputs
    copied = 2 * output.nbytes
    return Cost(0, copied + 2 * src.nbytes + places.nbytes, copied=copied)


def _save_write(attrs: Attrs) -> Save:
    places = {name: attrs[name] for name in PLACES}
    return Save("INDEX_SELECT", places, "WRITE", places)


WRITE = OpDef(
    name="WRITE",
    doc="A copy of x in which the slices at `places` along `axis` are those of src, which has the "
    "dims of places instead of the axis; of several slices for one place the last one is kept. "
    "With `wrap` a negative place counts from the end; without it a negative place is an error.",
    inputs=(3, 3),
    infer=_infer_write,
    evaluate=_write,
    check=partial(check_places, "WRITE"),
    attrs=PLACES,
    region=_region_write,
    inplace=(0,),
    save=_save_write,
    strided=(ALL_INPUTS,),
    cost=_cost_write,
)

SCATTER = OpDef(
    name="SCATTER",
    doc="A copy of x with out[index[i, j], j] = src[i, j] for axis 0, and likewise for every axis "
    "and rank, or with src combined with the elements of x by sum, prod, amax or amin. With "
    "`wrap` a negative index counts from the end; without it a negative index is an error. It "
    "is not defined which of several writes to one place is kept.",
    inputs=(3, 3),
    infer=_infer_scatter,
    evaluate=_scatter,
    check=partial(check_places, "SCATTER"),
    attrs={**PLACES, "reduce": Attr("string", "none")},
    region=_region,
    inplace=(0,),
    strided=(ALL_INPUTS,),
)

OPS = (SCATTER, WRITE)
