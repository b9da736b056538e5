"""SCATTER and WRITE: writing where an index tensor says, into a copy."""

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
    Sample,
    Save,
    TensorType,
)
from taper_runtime.ops.region import WHOLE, Region, Same, Window
from taper_runtime.ops.rules import (
    COMPUTED,
    INDICES,
    check_axis,
    check_dtype,
    fail,
    replace,
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
    # Along the axis, and where the index is shorter, it means positions in the whole of x.
    alike = [
        size == count and axis != attrs["axis"]
        for axis, (size, count) in enumerate(zip(x, index, strict=True))
    ]
    region = tuple(Same(axis) if same else Window(axis) for axis, same in enumerate(alike))
    part = tuple(Same(axis) if same else WHOLE for axis, same in enumerate(alike))
    return [region, part, part]


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(14)
    for dtype in COMPUTED:
        x = (rng.standard_normal((4, 5)) * 9).astype(dtype)
        for axis, size in enumerate(x.shape):
            # Each place is written once: which of several would stay is not defined.
            once = [rng.permutation(size)[:3] - size for _ in range(3)]
            index = np.stack(once, axis=1 - axis)
            src = (rng.standard_normal((3, 3)) * 9).astype(dtype)
            yield Sample([x, index, src], {"axis": axis})
            index = np.asarray(rng.integers(-size, size, (3, 3)), np.int32)
            for reduce in _COMBINE:
                attrs = {"axis": axis, "reduce": reduce}
                yield Sample([x, index, src], attrs)
                yield Sample([x, index % size, src], attrs | {"wrap": False})
    flags = rng.random((4, 5)) < 0.5
    index = np.zeros((4, 5), np.int64)
    yield Sample([flags, index[:0], flags[:0]], {"axis": 0})
    narrow = flags.astype(np.float16)
    yield Sample([narrow, np.zeros((4, 1), np.int64), narrow[:, :1].copy()], {"axis": 1})
    yield from _samples_of_rows(rng)


def _samples_of_rows(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield rows sent to the same places, one index for all columns; and special shapes."""

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for shape, count, axis in (((9, 40), 70, 0), ((3, 6, 5, 4), 11, 1), ((70000,), 90, 0)):
        spot = (*shape[:axis], count, *shape[axis + 1 :])
        one = rng.integers(0, shape[axis], (count, *[1] * (len(shape) - axis - 1)))
        for reduce in _COMBINE:
            attrs = {"axis": axis, "reduce": reduce}
            index = np.array(np.broadcast_to(one, spot), order="C")
            yield Sample([floats(*shape), index, floats(*spot)], attrs)
    special = np.array([np.nan, np.inf, -np.inf, 1, 0, 2], np.float32)
    for reduce in _COMBINE:
        places = np.array([1, 1, 2, 0, 3, 3])
        yield Sample([np.ones(5, np.float32), places, special], {"axis": 0, "reduce": reduce})
    for x, spot, axis in (((0, 3), (0, 3), 0), ((3, 0), (7, 0), 0), ((3, 4), (3, 0), 1)):
        arrays = [floats(*x), np.zeros(spot, np.int64), floats(*spot)]
        yield Sample(arrays, {"axis": axis, "reduce": "sum"})
    narrow = rng.integers(0, 2, (2, 4, 2))
    yield Sample([floats(3, 2, 5), narrow, floats(2, 4, 2)], {"axis": 1, "reduce": "sum"})


def _infer_write(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, places, src = inputs
    check_dtype("WRITE", "places", places.dtype, INDICES)
    axis = check_axis("WRITE", attrs["axis"], len(x.shape))
    if len(places.shape) != 1:
        fail("WRITE", "places of rank 1", list(places.shape))
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
    src = tuple(WHOLE if i == axis else Same(i) for i in range(rank))
    return [x, (WHOLE,), src]


def _cost_write(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """The written slices, and a copy of x where the output does not take over its memory."""
    _, places, src = inputs
    copied = 2 * output.nbytes
    return Cost(0, copied + 2 * src.nbytes + places.nbytes, copied=copied)


def _save_write(attrs: Attrs) -> Save:
    places = {name: attrs[name] for name in PLACES}
    return Save("INDEX_SELECT", places, "WRITE", places)


def _samples_write() -> Iterator[Sample]:
    rng = np.random.default_rng(15)
    for dtype in (np.float32, np.int64, np.bool_, np.float16):
        for shape, axis in (
            ((6,), 0),
            ((4, 5), 0),
            ((4, 5), 1),
            ((2, 6, 3), 1),
            ((1, 3, 40, 4), 2),
        ):
            x = (rng.standard_normal(shape) * 9).astype(dtype)
            for count, kind in ((0, np.int64), (1, np.int32), (3, np.int64), (9, np.int64)):
                src = (rng.standard_normal(replace(shape, axis, count)) * 9).astype(dtype)
                places = np.asarray(rng.integers(-shape[axis], shape[axis], count), kind)
                yield Sample([x, places, src], {"axis": axis})
                yield Sample([x, places % shape[axis], src], {"axis": axis, "wrap": False})
    empty = np.ones((0, 3), np.float32)
    yield Sample([empty, np.zeros(0, np.int64), empty], {"axis": 0})
    yield Sample([empty, np.zeros(2, np.int64), empty[:, :2].copy()], {"axis": 1})


WRITE = OpDef(
    name="WRITE",
    doc="A copy of x whose slices at `places`, of rank 1, along `axis` are those of src, in order: "
    "of several to one place the last stays. With `wrap` a negative place counts from the end, "
    "without it is refused.",
    inputs=(3, 3),
    infer=_infer_write,
    evaluate=_write,
    check=partial(check_places, "WRITE"),
    samples=_samples_write,
    attrs=PLACES,
    region=_region_write,
    inplace=(0,),
    save=_save_write,
    strided=(ALL_INPUTS,),
    cost=_cost_write,
)

SCATTER = OpDef(
    name="SCATTER",
    doc="A copy of x with out[index[i, j], j] = src[i, j] for axis 0, and alike for every axis "
    "and rank, or with src combined by sum, prod, amax or amin with what is there. With `wrap` a "
    "negative index counts from the end, without it is refused; which of several writes to one "
    "place stays is not defined.",
    inputs=(3, 3),
    infer=_infer_scatter,
    evaluate=_scatter,
    check=partial(check_places, "SCATTER"),
    samples=_samples,
    attrs={**PLACES, "reduce": Attr("string", "none")},
    region=_region,
    inplace=(0,),
    strided=(ALL_INPUTS,),
)

OPS = (SCATTER, WRITE)
