"""Ops that read or write where an index tensor says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import InputError, OpError
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.rules import COMPUTED, REALS, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INDICES = ("int64", "int32")


def _check_range(op: str, index: np.ndarray, low: int, size: int) -> None:
    if index.size and (index.min() < low or index.max() >= size):
        raise InputError(
            f"{op}: expected indices in [{low}, {size}), got {index.min()} to {index.max()}"
        )


def _infer_embedding(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    weight, indices = inputs
    check_dtype("EMBEDDING", "indices", indices.dtype, _INDICES)
    if not weight.shape:
        raise OpError("EMBEDDING: expected weight of rank 1 or more, got a 0-d tensor")
    return TensorType(weight.dtype, indices.shape + weight.shape[1:])


def _embedding(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    weight, indices = inputs
    _check_range("EMBEDDING", indices, 0, weight.shape[0])
    return np.ascontiguousarray(weight[indices]).reshape(indices.shape + weight.shape[1:])


def _infer_index_select(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index = inputs
    check_dtype("INDEX_SELECT", "index", index.dtype, _INDICES)
    axis = check_axis("INDEX_SELECT", attrs["axis"], len(x.shape))
    return TensorType(x.dtype, x.shape[:axis] + index.shape + x.shape[axis + 1 :])


def _index_select(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index = inputs
    axis = attrs["axis"]
    _check_range("INDEX_SELECT", index, -x.shape[axis], x.shape[axis])
    shape = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
    return np.ascontiguousarray(x.take(index, axis)).reshape(shape)


def _check_along(op: str, x: TensorType, index: TensorType, axis: int) -> None:
    """An index of x's rank, no larger than x but along ``axis``."""
    check_dtype(op, "index", index.dtype, _INDICES)
    check_axis(op, axis, len(x.shape))
    if len(index.shape) != len(x.shape) or any(
        a > b for i, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis
    ):
        raise OpError(
            f"{op}: expected an index of rank {len(x.shape)}, within {list(x.shape)} but for axis "
            f"{axis}, got {list(index.shape)}"
        )


def _infer_gather(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index = inputs
    _check_along("GATHER", x, index, attrs["axis"])
    return TensorType(x.dtype, index.shape)


def _gather(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index = inputs
    axis = attrs["axis"]
    _check_range("GATHER", index, -x.shape[axis], x.shape[axis])
    within = tuple(
        slice(None) if i == axis else slice(0, size) for i, size in enumerate(index.shape)
    )
    return np.ascontiguousarray(np.take_along_axis(x[within], index, axis))


#: How SCATTER combines: as numpy's ufunc.at; "none" overwrites, the last of equals wins.
REDUCTIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


def _infer_scatter(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index, src = inputs
    _check_along("SCATTER", x, index, attrs["axis"])
    if src != TensorType(x.dtype, index.shape):
        raise OpError(f"SCATTER: src: expected {x.dtype} {list(index.shape)}, got {src}")
    if attrs["reduce"] != "none":
        if attrs["reduce"] not in REDUCTIONS:
            expected = ["none", *REDUCTIONS]
            raise OpError(f"SCATTER: reduce: expected one of {expected}, got {attrs['reduce']!r}")
        check_dtype("SCATTER", "x", x.dtype, COMPUTED)
    return x


def _scatter(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index, src = inputs
    axis = attrs["axis"]
    _check_range("SCATTER", index, -x.shape[axis], x.shape[axis])
    out = np.array(x, order="C")
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    if attrs["reduce"] == "none":
        out[tuple(places)] = src
    else:
        with np.errstate(all="ignore"):
            REDUCTIONS[attrs["reduce"]].at(out, tuple(places), src)
    return out


def _infer_argsort(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x = inputs[0]
    check_dtype("ARGSORT", "x", x.dtype, (*REALS, "bool"))
    check_axis("ARGSORT", attrs["axis"], len(x.shape))
    return TensorType("int64", x.shape)


def _argsort(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0], attrs["axis"]
    if not attrs["descending"]:
        return np.ascontiguousarray(np.argsort(x, axis, kind="stable").astype(np.int64))
    # Stable and descending: sort the reversed axis ascending and read it backwards. NaN, which
    # numpy sorts last, comes first, as in torch.
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.ascontiguousarray((x.shape[axis] - 1 - order).astype(np.int64))


def _samples_embedding() -> Iterator[Sample]:
    rng = np.random.default_rng(10)
    weight = rng.standard_normal((7, 5)).astype(np.float32)
    for index_dtype in (np.int64, np.int32):
        for shape in ((), (4,), (2, 3), (0,)):
            index = np.asarray(rng.integers(0, 7, shape), index_dtype)
            yield Sample([weight, index])
            yield Sample([weight.astype(np.int64), index])


def _samples_index_select() -> Iterator[Sample]:
    rng = np.random.default_rng(11)
    for dtype in (np.float32, np.int64, np.bool_):
        x = (rng.standard_normal((4, 5, 3)) * 9).astype(dtype)
        for axis in range(3):
            size = x.shape[axis]
            yield Sample([x, rng.integers(-size, size, (6,))], {"axis": axis})
            yield Sample([x, rng.integers(-size, size, (2, 2))], {"axis": axis})
            yield Sample([x, np.asarray(rng.integers(0, size))], {"axis": axis})


def _samples_gather() -> Iterator[Sample]:
    rng = np.random.default_rng(12)
    for dtype in (np.float32, np.int64, np.bool_):
        x = (rng.standard_normal((4, 5, 3)) * 9).astype(dtype)
        for axis in range(3):
            shape = [3, 4, 2]
            shape[axis] = 6
            index = rng.integers(-x.shape[axis], x.shape[axis], shape)
            yield Sample([x, index], {"axis": axis})


def _samples_scatter() -> Iterator[Sample]:
    rng = np.random.default_rng(13)
    x = rng.standard_normal((4, 5)).astype(np.float32)
    for axis in range(2):
        index = np.stack([rng.permutation(4)[:3] for _ in range(3)], axis=1 - axis)
        src = rng.standard_normal((3, 3)).astype(np.float32)
        for reduce in ("none", *REDUCTIONS):
            yield Sample([x, index, src], {"axis": axis, "reduce": reduce}, native=False)


def _samples_argsort() -> Iterator[Sample]:
    rng = np.random.default_rng(14)
    x = rng.integers(0, 4, (3, 9)).astype(np.float32)
    for axis in range(2):
        for descending in (False, True):
            yield Sample([x], {"axis": axis, "descending": descending}, native=False)


def _rows_moved(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Only what is read of the table moves, not the table."""
    return Cost(0, 2 * output.nbytes + inputs[1].nbytes)


EMBEDDING = OpDef(
    name="EMBEDDING",
    doc="Rows of weight [V, ...] at indices in [0, V), of any shape.",
    inputs=(2, 2),
    infer=_infer_embedding,
    evaluate=_embedding,
    samples=_samples_embedding,
    cost=_rows_moved,
)
INDEX_SELECT = OpDef(
    name="INDEX_SELECT",
    doc="x at an index of any rank along an axis; negative indices count from the end.",
    inputs=(2, 2),
    infer=_infer_index_select,
    evaluate=_index_select,
    samples=_samples_index_select,
    attrs={"axis": Attr("int")},
    cost=_rows_moved,
)
GATHER = OpDef(
    name="GATHER",
    doc="out[i][j] = x[index[i][j]][j] along axis 0, and alike along others.",
    inputs=(2, 2),
    infer=_infer_gather,
    evaluate=_gather,
    samples=_samples_gather,
    attrs={"axis": Attr("int")},
    cost=_rows_moved,
)
SCATTER = OpDef(
    name="SCATTER",
    doc="A copy of x with src written, or combined, where an index along an axis says.",
    inputs=(3, 3),
    infer=_infer_scatter,
    evaluate=_scatter,
    samples=_samples_scatter,
    attrs={"axis": Attr("int"), "reduce": Attr("string", "none")},
    native=False,
)
ARGSORT = OpDef(
    name="ARGSORT",
    doc="Order that sorts an axis, equals in their own order; NaN is the largest.",
    inputs=(1, 1),
    infer=_infer_argsort,
    evaluate=_argsort,
    samples=_samples_argsort,
    attrs={"axis": Attr("int"), "descending": Attr("bool", False)},
    native=False,
)
