"""Define ops that read elements at positions in index tensors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Relation, Same, Window
from taper_runtime.ops.type_rules import (
    FLOATS,
    INDICES,
    check_axis,
    check_dtype,
    check_indices,
    fail,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer_embedding(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    weight, indices = inputs
    check_dtype("EMBEDDING", "indices", indices.dtype, INDICES)
    if not weight.shape:
        fail("EMBEDDING", "weight of rank 1 or more", list(weight.shape))
    return TensorType(weight.dtype, indices.shape + weight.shape[1:])


def _check_embedding(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    weight, indices = inputs
    check_indices("EMBEDDING", indices, 0, weight.shape[0])


def _embedding(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    weight, indices = inputs
    _check_embedding(inputs, attrs)
    return np.asarray(weight[indices], order="C")


_MODES = ("sum", "mean", "max")


def _infer_embedding_bag(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check the inputs and the mode; return the type ``[bags, features]``."""
    op = "EMBEDDING_BAG"
    table, indices, offsets, *weights = inputs
    check_dtype(op, "weight", table.dtype, FLOATS)
    for name, type_ in (("indices", indices), ("offsets", offsets)):
        check_dtype(op, name, type_.dtype, INDICES)
        if len(type_.shape) != 1:
            fail(op, f"{name} of rank 1", list(type_.shape))
    if len(table.shape) != 2:
        fail(op, "weight of rank 2", list(table.shape))
    if attrs["mode"] not in _MODES:
        fail(op, f"a mode of {', '.join(_MODES)}", attrs["mode"])
    if weights and attrs["mode"] != "sum":
        fail(op, f"no factors of rows in mode {attrs['mode']}", weights[0])
    if weights and weights[0] != TensorType(table.dtype, indices.shape):
        fail(op, f"a factor for each index, {table.dtype} {list(indices.shape)}", weights[0])
    return TensorType(table.dtype, (*offsets.shape, table.shape[1]))


def _check_embedding_bag(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    table, indices, offsets = inputs[:3]
    if not offsets.size:  # the indices are not read
        return
    check_indices("EMBEDDING_BAG", indices, 0, table.shape[0])
    ends = np.append(offsets, indices.size)
    if ends[0] != 0 or (np.diff(ends) < 0).any():
        raise InputError(
            f"EMBEDDING_BAG: expected offsets that rise from 0 to at most {indices.size}, "
            f"got {np.array2string(offsets, threshold=8)}"
        )


def _embedding_bag(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Reduce the rows of each bag; indices equal to ``padding`` are left out."""
    table, indices, offsets, *weights = inputs
    _check_embedding_bag(inputs, attrs)
    if not offsets.size:
        return np.empty((0, table.shape[1]), table.dtype)
    bags = np.repeat(np.arange(offsets.size), np.diff(np.append(offsets, indices.size)))
    present = indices != attrs["padding"]
    bags, rows = bags[present], table[indices[present]]
    if weights:
        rows = rows * weights[0][present, None]
    is_max = attrs["mode"] == "max"
    y = np.full((offsets.size, table.shape[1]), -np.inf if is_max else 0, table.dtype)
    (np.maximum if is_max else np.add).at(y, bags, rows)
    sizes = np.bincount(bags, minlength=offsets.size)[:, None]
    if is_max:
        return np.where(sizes > 0, y, table.dtype.type(0))
    if attrs["mode"] == "mean":
        return y / np.maximum(sizes, 1).astype(table.dtype)
    return y


#: The attrs of ops that select elements or slices along an axis by an index tensor.
PLACES = {"axis": Attr("int", role="axis"), "wrap": Attr("bool", True)}


def _infer_index_select(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index = inputs
    check_dtype("INDEX_SELECT", "index", index.dtype, INDICES)
    axis = check_axis("INDEX_SELECT", attrs["axis"], len(x.shape))
    return TensorType(x.dtype, replace(x.shape, axis, *index.shape))


def _index_select(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index = inputs
    check_places("INDEX_SELECT", inputs, attrs)
    return np.asarray(np.take(x, index, attrs["axis"]), order="C")


def check_places(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    """Check, at run time, that the second input's positions exist along ``axis`` of the first."""
    size = inputs[0].shape[attrs["axis"]]
    check_indices(op, inputs[1], -size if attrs["wrap"] else 0, size)


def check_along(op: str, x: TensorType, index: TensorType, axis: int) -> None:
    """Check the type of an index with a position along one axis for each position in the others."""
    check_dtype(op, "index", index.dtype, INDICES)
    check_axis(op, axis, len(x.shape))
    within = len(index.shape) == len(x.shape) and all(
        i == axis or size <= limit
        for i, (size, limit) in enumerate(zip(index.shape, x.shape, strict=True))
    )
    if not within:
        fail(op, f"an index within {list(x.shape)} except along axis {axis}", list(index.shape))


def along(index: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Return numpy's subscript for such an index: positions along ``axis``, ranges elsewhere."""
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    return tuple(places)


def _infer_gather(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, index = inputs
    check_along("GATHER", x, index, attrs["axis"])
    return TensorType(x.dtype, index.shape)


def _gather(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, index = inputs
    check_places("GATHER", inputs, attrs)
    return np.asarray(x[along(index, attrs["axis"])], order="C")


def _region_embedding(
    inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> list[Region]:
    weight, indices = (len(t.shape) for t in inputs)
    columns = range(indices, indices + weight - 1)
    table: Region = (WHOLE, *map(Same, columns))
    return [table, tuple(map(Same, range(indices)))]


def _region_index_select(
    inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> list[Region]:
    axis = attrs["axis"]
    behind = axis + len(inputs[1].shape)  # the axes that come from the index
    before = map(Same, range(axis))
    after = map(Same, range(behind, len(output.shape)))
    return [(*before, WHOLE, *after), tuple(map(Same, range(axis, behind)))]


def _region_gather(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    x, index = (t.shape for t in inputs)
    # An axis of x may be longer than that of the index; the rest is not read.
    region: list[Relation] = [
        Same(axis) if size == count else Window(axis)
        for axis, (size, count) in enumerate(zip(x, index, strict=True))
    ]
    region[attrs["axis"]] = WHOLE
    return [tuple(region), tuple(map(Same, range(len(index))))]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of reading only the rows that are taken from the table."""
    return Cost(0, 2 * output.nbytes + sum(index.nbytes for index in inputs[1:]))


def _cost_embedding_bag(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of reading the rows taken from the table, and of adding each once."""
    table, indices = inputs[:2]
    taken = indices.size * table.shape[1]
    read = TensorType(table.dtype, (taken,)).nbytes + sum(t.nbytes for t in inputs[1:])
    return Cost(taken, read + output.nbytes)


OPS = (
    OpDef(
        name="EMBEDDING",
        doc="Rows of weight [V, ...] at indices, in [0, V), of any shape.",
        inputs=(2, 2),
        infer=_infer_embedding,
        evaluate=_embedding,
        check=_check_embedding,
        formatted=(0,),
        region=_region_embedding,
        weights=(0,),
        cost=_cost,
    ),
    OpDef(
        name="EMBEDDING_BAG",
        doc="Rows of weight [V, D] at indices [n], in [0, V), combined bag by bag: their sum, mean "
        "or max. A bag begins at each of the offsets, which rise from 0, and ends where the "
        "next one begins. Rows at the index `padding` are skipped, unless it is negative; a "
        "bag without rows is 0. Rows of a sum may have factors [n].",
        inputs=(3, 4),
        infer=_infer_embedding_bag,
        evaluate=_embedding_bag,
        check=_check_embedding_bag,
        attrs={"mode": Attr("string"), "padding": Attr("int", -1)},
        weights=(0,),
        cost=_cost_embedding_bag,
    ),
    OpDef(
        name="INDEX_SELECT",
        doc="Slices of x at an index, of any rank, into one axis. With `wrap` a negative index "
        "counts from the end; without it a negative index is an error.",
        inputs=(2, 2),
        infer=_infer_index_select,
        evaluate=_index_select,
        check=partial(check_places, "INDEX_SELECT"),
        attrs=PLACES,
        formatted=(0,),
        region=_region_index_select,
        cost=_cost,
    ),
    OpDef(
        name="GATHER",
        doc="out[i, j] = x[index[i, j], j] for axis 0, and likewise for every axis and rank. With "
        "`wrap` a negative index counts from the end; without it a negative index is an error.",
        inputs=(2, 2),
        infer=_infer_gather,
        evaluate=_gather,
        check=partial(check_places, "GATHER"),
        attrs=PLACES,
        region=_region_gather,
        cost=_cost,
    ),
)
