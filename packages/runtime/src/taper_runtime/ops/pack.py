"""PACK and UNPACK: a tensor in another format, its values the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.formats import PLAIN, family, find
from taper_runtime.ops.opdef import Attr, Attrs, OpDef, Sample, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer_pack(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = inputs[0]
    format_ = find(attrs["format"])
    format_.storage(dtype, shape)  # refuses a tensor that cannot be stored so
    return TensorType(dtype, shape, format_.name)


def _infer_unpack(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return inputs[0]._replace(format=PLAIN)


def _same(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.array(inputs[0], order="C")


def _arrays() -> Iterator[tuple[np.ndarray, str]]:
    rng = np.random.default_rng(5)
    for format, shape in (
        ("plain", (2, 3)),
        ("panels.0", (20, 3)),
        ("panels.1", (3, 20)),
        ("grouped_panels.2", (3, 3, 2, 40)),
        ("winograd.2", (3, 3, 4, 18)),
        ("winograd.4", (3, 3, 4, 18)),
    ):
        yield np.asarray(rng.standard_normal(shape), np.float32), format
    for format in family("blocks").examples:
        yield np.asarray(rng.integers(0, 16, (64, 20)) / 8 - 1, np.float32), format


def _samples_pack() -> Iterator[Sample]:
    for array, format in _arrays():
        yield Sample([array], {"format": format}, native=False)


def _samples_unpack() -> Iterator[Sample]:
    for array, format in _arrays():
        yield Sample([array], native=False, formats={0: format})


PACK = OpDef(
    name="PACK",
    doc="The tensor, stored in a format. Export folds it over constants.",
    inputs=(1, 1),
    infer=_infer_pack,
    evaluate=_same,
    samples=_samples_pack,
    attrs={"format": Attr("string")},
    native=False,
)

UNPACK = OpDef(
    name="UNPACK",
    doc="The tensor, stored plainly.",
    inputs=(1, 1),
    infer=_infer_unpack,
    evaluate=_same,
    samples=_samples_unpack,
    formatted=(0,),
    native=False,
)

OPS = (PACK, UNPACK)
