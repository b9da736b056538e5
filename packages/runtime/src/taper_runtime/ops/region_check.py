"""Check an op's region rule against its evaluator."""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.formats import PLAIN
from taper_runtime.ops.opdef import NO_ATTRS, TensorType
from taper_runtime.ops.region import BROADCAST, Grouped, Range, Same, Window, output_axes, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taper_runtime.ops.opdef import Attrs, OpDef, Shape
    from taper_runtime.ops.region import Region, Relation

_NAMES = {dtype.storage: name for name, dtype in DTYPES.items()}

_ALL_PLAIN: Mapping[int, str] = MappingProxyType({})

#: Tolerances between a part computed alone and within the whole: sums may be in another order.
_RTOL = {"float32": 1e-5, "float64": 1e-12}


def check_region(
    op: OpDef,
    inputs: Sequence[Any],
    attrs: Attrs = NO_ATTRS,
    formats: Mapping[int, str] = _ALL_PLAIN,
) -> None:
    """Check the claims of an op's ``region`` on one call of the op.

    - *Form*: there is a relation for each axis of each input, and sizes agree.
    - *Reach*: change the input elements that an output element claims not to need; the element must
      keep its bits.
    - *Parts*: if ``OpDef.part`` returns ranges of the inputs, the op must compute from them the
    type
      and the values of that range of the whole output.

    Parameters
    ----------
    op : OpDef
    inputs : sequence of numpy.ndarray or None
        The inputs; None for absent ones. Give each axis several elements: one element proves
        nothing.
    attrs : mapping, optional
    formats : mapping of int to str, optional
        The formats of inputs that are not plain.

    Raises
    ------
    OpError
        If a claim is false. The message names the op, the shapes of the inputs, and the expected
        and the actual result.
    """
    types = [
        None
        if array is None
        else TensorType(_NAMES[array.dtype], array.shape, formats.get(index, PLAIN))
        for index, array in enumerate(inputs)
    ]
    _Check(op, inputs, types, attrs).run()


class _Check:
    """The check of one call of one op."""

    def __init__(
        self,
        op: OpDef,
        arrays: Sequence[Any],  # None for an absent input
        types: Sequence[TensorType | None],
        attrs: Attrs,
    ) -> None:
        self._op = op
        shapes = ["absent" if t is None else list(t.shape) for t in types]
        self._where = f"inputs of {', '.join(map(str, shapes))}"
        self._arrays, self._types, self._attrs = arrays, types, attrs
        self._output, *others = op.infer_types(types, attrs)
        if others and op.region is not whole:
            self._fail("no region rule for an op with several outputs", op.region)
        self._regions = op.needs(types, self._output, attrs)

    def run(self) -> None:
        self._check_form()
        if self._output.size == 0 or self._op.region is whole:
            return
        result = self._evaluate(self._arrays, self._attrs)
        for element in _some_elements(self._output.shape):
            self._check_reach(result, element)
        for cuts in _some_cuts(self._output.shape):
            self._check_part(result, cuts)

    def _fail(self, expected: str, got: object) -> NoReturn:
        raise OpError(f"{self._op.name}, {self._where}: expected {expected}, got {got}")

    def _evaluate(self, arrays: Sequence[Any], attrs: Attrs) -> np.ndarray:
        (value,) = self._op.evaluate_all(arrays, self._op.complete(attrs))
        return value

    # -- form --------------------------------------------------------------------------------------

    def _check_form(self) -> None:
        for index, (t, region) in enumerate(zip(self._types, self._regions, strict=True)):
            for axis, relation in enumerate(region):
                if t is not None and not self._fits(t.shape, axis, relation):
                    what = f"axis {axis} of input {index}, {list(t.shape)}, to be related to axes"
                    self._fail(f"{what} of the output, {list(self._output.shape)}", relation)

    def _fits(self, shape: Shape, axis: int, relation: Relation) -> bool:
        output = self._output.shape
        if not all(0 <= other < len(output) for other in output_axes(relation)):
            return False
        match relation:
            case Same():
                return shape[axis] == output[relation.axis]
            case Grouped(inputs, outputs):
                sizes = [shape[i] for i in inputs], [output[j] for j in outputs]
                return axis in inputs and math.prod(sizes[0]) == math.prod(sizes[1])
        return relation is not BROADCAST or shape[axis] == 1

    # -- reach -------------------------------------------------------------------------------------

    def _check_reach(self, result: np.ndarray, element: Shape) -> None:
        """Check that an output element keeps its bits if elements it does not need change."""
        for index, (array, region) in enumerate(zip(self._arrays, self._regions, strict=True)):
            if array is None:
                continue
            needed = _needed(region, array.shape, self._output.shape, element)
            kept = np.zeros(array.shape, np.bool_)
            kept[tuple(slice(*part) for part in needed)] = True
            if kept.all():
                continue
            changed = [*self._arrays]
            changed[index] = np.where(kept, array, _other_values(array))
            try:
                got = self._evaluate(changed, self._attrs)[element]
            except InputError:  # values that the op does not accept prove nothing
                continue
            if got.tobytes() != result[element].tobytes():
                what = f"element {list(element)} to need only these ranges of input {index}:"
                self._fail(
                    f"{what} {list(map(list, needed))}, hence {result[element]}",
                    f"{got} after other elements changed",
                )

    # -- parts -------------------------------------------------------------------------------------

    def _check_part(self, result: np.ndarray, cuts: Mapping[int, Range]) -> None:
        """Check that the op computes a range of its output from the ranges in its ``Part``."""
        part = self._op.part(self._types, self._output, self._attrs, cuts)
        if part is None:
            return
        arrays = [
            None
            if array is None
            else np.array(array[tuple(slice(*limits) for limits in ranges)], order="C")
            for array, ranges in zip(self._arrays, part.inputs, strict=True)
        ]
        types = [
            None if t is None or a is None else t._replace(shape=a.shape)
            for t, a in zip(self._types, arrays, strict=True)
        ]
        want = result[tuple(slice(*cuts.get(axis, (None,))) for axis in range(result.ndim))]
        ranges = f"ranges {dict(cuts)} of the output's axes to be computed from {part}"
        try:
            made = self._op.infer_type(types, part.attrs)
            got = self._evaluate(arrays, part.attrs)
        except (InputError, OpError) as error:
            self._fail(ranges, error)
        if made != self._output._replace(shape=want.shape):
            self._fail(f"{ranges}, of shape {list(want.shape)}", made)
        if not _is_close(got, want):
            self._fail(f"{ranges}, with the values {want.ravel()[:8]}...", f"{got.ravel()[:8]}...")


def _some_elements(shape: Shape) -> Iterator[Shape]:
    """Yield some positions: the first, the last, and some between."""
    size = math.prod(shape)
    for place in sorted({0, size // 3, size // 2, 2 * size // 3, size - 1}):
        yield tuple(map(int, np.unravel_index(place, shape)))


def _some_cuts(shape: Shape) -> Iterator[dict[int, Range]]:
    """Yield ranges of single axes, then of two neighbouring axes at once."""
    parts = {
        axis: [(0, (size + 1) // 2), (size // 2, size), (size // 2, size // 2 + 1)]
        for axis, size in enumerate(shape)
        if size > 1
    }
    for axis, ranges in parts.items():
        yield from ({axis: part} for part in ranges)
    for first, second in itertools.pairwise(parts):
        yield {first: parts[first][1], second: parts[second][0]}


def _needed(region: Region, shape: Shape, output: Shape, element: Shape) -> list[Range]:
    """Return, per axis of an input, the range that one element of the output needs."""
    needed = []
    for axis, relation in enumerate(region):
        part = (0, shape[axis])
        match relation:
            case Same(other):
                part = (element[other], element[other] + 1)
            case Window():
                at = element[relation.axis]
                first, stop = relation.needs((at, at + 1))
                part = (max(0, first), max(0, min(shape[axis], stop)))
            case Grouped(inputs, outputs):
                place = np.ravel_multi_index(
                    [element[other] for other in outputs], [output[other] for other in outputs]
                )
                at = int(np.unravel_index(place, [shape[i] for i in inputs])[inputs.index(axis)])
                part = (at, at + 1)
        needed.append(part)
    return needed


def _other_values(array: np.ndarray) -> np.ndarray:
    """Return different values that an op accepts if it accepts those of ``array``.

    Matrices stay positive definite, rows stay sorted, and indices stay in range.
    """
    if array.dtype == np.bool_:
        return ~array
    if array.dtype.kind != "f":
        return np.roll(array.ravel(), 1).reshape(array.shape)
    with np.errstate(all="ignore"):
        return 2 * array + 1


def _is_close(got: np.ndarray, want: np.ndarray) -> bool:
    if want.dtype.kind != "f":
        return bool((got == want).all())
    rtol = _RTOL.get(want.dtype.name, 0.0)
    finite = np.abs(want[np.isfinite(want)])
    return np.allclose(got, want, rtol, rtol * float(finite.max(initial=0.0)), equal_nan=True)
