"""Draw nodes for every kernel of every ISA level, and compare it with its op's evaluator.

    PYTHONPATH=tests/support python -m tests.fuzz.kernels --minutes 10

Each row of the kernel table is prepared alone, so that none hides behind those before it. A node
begins as a sample of the op: its dims, dtypes, attrs and values are changed, and it is kept where
the op's type rule allows it and the row takes it. Inputs are views with any strides where the op
takes them. Memory around the arrays is watched, and all bits are the same on two threads, and over
an input where the op allows that.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import sys
import time
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from op_samples import array_of, sample_types, samples_of, stored, stored_inputs
from taper_runtime.base.checks import MAX_TENSOR_BYTES
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.formats import PLAIN, counted_bytes, decode
from taper_runtime.machine.choices import Choice
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import OpDef, TensorType, contiguous_strides
from taper_runtime.plan.compare import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.machine.choices import ChosenNode
    from taper_runtime.native.variants import Offer

#: Dims of tensors that hold data; of those whose shapes are only looked at, or that are empty.
_SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 130, 257)
_HUGE = (0, 0, 1, 2, 3, 16, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**46)

_INTS = (0, 1, 2, 3, -1, 5, 16, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, 0.5, 1.0, -1.5, 1e-45, 1e308, math.inf, -math.inf, math.nan)

#: Bytes of all arrays of a node that is run.
_RUN_BYTES = 1 << 18

#: Draws of which one is a node that the op allows, at the very least.
_TRIES = 60

#: Bytes beside an array that nobody may write. As floats they are NaN, so that what is read of
#: them shows in the result.
_GUARD_BYTES, _GUARD = 256, 0xFF

#: What values an array has.
PLAIN_VALUES, SPECIAL, LARGEST = "plain", "special", "largest"

#: Ops that are not compared where inputs are not finite: which zeros an infinity or NaN meets is
#: the algorithm's choice.
FINITE_ONLY = {
    "ATTENTION": "weights of keys that no query attends, whose values are not read",
    "CONV": "Winograd's transforms, and the zeros of a padded x",
    "CONV_TRANSPOSE": "the zeros between the elements of x",
    "FFT": "roots of unity",
    "RFFT": "roots of unity",
    "IRFFT": "roots of unity",
    "PROD": "products that vanish",
    "CUMPROD": "products that vanish",
}

#: Ops whose steps amplify rounding errors: their inputs are small.
_RECURRENT = {"LSTM", "GRU", "RNN"}

#: Ops that multiply many elements: their inputs are near 1 or -1, as a product in another order may
#: overflow on the way.
_PRODUCTS = {"PROD", "CUMPROD"}

#: Ops that solve equations: their first input is a batch of matrices.
_EQUATIONS = {"INVERSE", "SOLVE"}

#: Errors of equations, relative to the result, from which results are not compared.
_TOO_CLOSE = 2.0**-7

#: By how much a result may differ: relative to itself, and to the largest.
_TOLERANCE = {np.dtype(np.float32): (1e-5, 4e-6), np.dtype(np.float64): (1e-11, 1e-12)}


class Row(NamedTuple):
    """A kernel of an ISA level."""

    isa: str
    op: OpDef
    kernel: _kernels.Kernel

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"{self.isa} {self.op.name} {self.kernel.name}"


class Draw(NamedTuple):
    """A node that its op allows.

    Attributes
    ----------
    types : list of TensorType or None
        Of the inputs.
    attrs : dict
        Complete.
    outputs : list of TensorType
    values : list of numpy.ndarray or None
        Of a sample's inputs, each of that shape and dtype or not.
    """

    types: list[TensorType | None]
    attrs: dict[str, Any]
    outputs: list[TensorType]
    values: list[Any]


def rows() -> list[Row]:
    """Return the kernels of each level that this CPU can run."""
    return [
        Row(isa, op, kernel)
        for isa in _kernels.available_isas()
        for op in REGISTRY.values()
        if op.native
        for kernel in _kernels.find_kernels(op.name, isa)
    ]


# -- nodes ----------------------------------------------------------------------------------------


@cache
def _samples(op: str) -> list[tuple[list[TensorType | None], Mapping[str, Any], list[Any]]]:
    """Return types, attrs and values of an op's samples, those of many elements left out."""
    return [
        (sample_types(sample), sample.attrs, list(sample.inputs))
        for sample in samples_of(op)
        if sum(x.nbytes for x in stored_inputs(sample) if x is not None) <= _RUN_BYTES
    ]


@cache
def _fitting(isa: str, op: str, kernel: str) -> list[int]:
    """Return the samples whose tensors a row takes as they are, or all if it takes none."""
    (row,) = (k for k in _kernels.find_kernels(op, isa) if k.name == kernel)
    known = _samples(op)
    fitting = [
        i
        for i, (types, attrs, _) in enumerate(known)
        if _takes(row, types, REGISTRY[op].infer_types(types, attrs))
    ]
    return fitting or list(range(len(known)))


def _takes(
    kernel: _kernels.Kernel, types: Sequence[TensorType | None], outputs: Sequence[TensorType]
) -> bool:
    *inputs, output = kernel.operands
    operands = [*_for_each(inputs, len(types)), *[output] * len(outputs)]
    return all(
        type_ is None
        or (type_.dtype in dtypes and any(_is_of(type_.format, family) for family in formats))
        for type_, (dtypes, formats) in zip([*types, *outputs], operands, strict=True)
    )


def _for_each(operands: Sequence[Any], count: int) -> list[Any]:
    """Return the operand of each input: the last stands for all further ones."""
    return [operands[min(i, len(operands) - 1)] for i in range(count)] if operands else []


def _is_of(format_: str, family: str) -> bool:
    return format_ == family or format_.startswith(f"{family}.")


def draw(row: Row, rng: np.random.Generator, *, huge: bool = False) -> Draw | None:
    """Draw a node whose tensors the row takes; None where none of many is one that is allowed."""
    op = row.op
    fitting = _fitting(row.isa, op.name, row.kernel.name)
    for _ in range(_TRIES):
        types, attrs, values = _samples(op.name)[fitting[rng.integers(len(fitting))]]
        changed = dict(attrs)
        if rng.random() < 0.9:
            types, changed = _with_dims(op, types, changed, rng, _HUGE if huge else _SIZES)
        types = _with_dtypes(row.kernel, types, rng)
        if rng.random() < 0.4:
            changed = _with_attrs(op, changed, rng)
        if "dtype" in op.attrs:
            changed["dtype"] = str(rng.choice(row.kernel.operands[-1][0]))
        try:
            complete = op.complete(changed)
            outputs = list(op.infer_types(types, changed))
            sizes = [counted_bytes(t) for t in (*types, *outputs) if t is not None]
        except OpError:
            continue
        if max(sizes, default=0) <= MAX_TENSOR_BYTES and _takes(row.kernel, types, outputs):
            return Draw(types, complete, outputs, values)
    return None


def _with_dims(
    op: OpDef,
    types: list[TensorType | None],
    attrs: dict[str, Any],
    rng: np.random.Generator,
    sizes: Sequence[int],
) -> tuple[list[TensorType | None], dict[str, Any]]:
    """Give equal dims other sizes, in attrs and formats too; sometimes one dim alone."""
    known = {size for t in types if t is not None for size in t.shape}
    new = {size: size for size in known}
    for size in known:
        if rng.random() < 0.6:
            new[size] = int(sizes[rng.integers(len(sizes))])

    def at(value: Any) -> Any:
        return new.get(value, value) if type(value) is int else value

    changed: list[TensorType | None] = []
    for type_ in types:
        if type_ is None:
            changed.append(None)
            continue
        shape = [at(size) for size in type_.shape]
        if shape and rng.random() < 0.1:
            shape[rng.integers(len(shape))] = int(sizes[rng.integers(len(sizes))])
        name, _, parameter = type_.format.partition(".")
        grouped = name == "grouped_panels" and parameter.isdigit()
        format_ = f"{name}.{max(1, at(int(parameter)))}" if grouped else type_.format
        changed.append(TensorType(type_.dtype, tuple(shape), format_))
    for name, attr in op.attrs.items():
        if name in attrs and attr.type in ("int", "ints") and attr.role != "axis":
            value = attrs[name]
            follows = attr.role == "shape" or rng.random() < 0.5
            if follows:
                attrs[name] = tuple(map(at, value)) if attr.type == "ints" else at(value)
    return changed, attrs


def _with_dtypes(
    kernel: _kernels.Kernel, types: list[TensorType | None], rng: np.random.Generator
) -> list[TensorType | None]:
    """Give equal dtypes another one that the row takes."""
    *operands, _ = kernel.operands
    new: dict[str, str] = {}
    changed: list[TensorType | None] = []
    for type_, (dtypes, _) in zip(types, _for_each(operands, len(types)), strict=True):
        if type_ is None or type_.format != PLAIN:
            changed.append(type_)
            continue
        keeps = type_.dtype in dtypes and rng.random() < 0.5
        chosen = type_.dtype if keeps else str(rng.choice(dtypes))
        chosen = new.setdefault(type_.dtype, chosen)
        changed.append(
            type_._replace(dtype=chosen if chosen in dtypes else str(rng.choice(dtypes)))
        )
    return changed


def _with_attrs(op: OpDef, attrs: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Give an attr or two values of other samples, or any."""
    if not op.attrs:
        return attrs
    for _ in range(rng.integers(1, 3)):
        name = str(rng.choice(list(op.attrs)))
        attr = op.attrs[name]
        _, others, _ = _samples(op.name)[rng.integers(len(_samples(op.name)))]
        if name in others and rng.random() < 0.4:
            attrs[name] = others[name]
        elif attr.type == "bool":
            attrs[name] = bool(rng.random() < 0.5)
        elif attr.type in ("int", "scalar"):
            attrs[name] = _INTS[rng.integers(len(_INTS))]
        elif attr.type == "float":
            attrs[name] = _FLOATS[rng.integers(len(_FLOATS))]
        elif attr.type == "ints" and attrs.get(name):
            values = list(attrs[name])
            values[rng.integers(len(values))] = _INTS[rng.integers(len(_INTS))]
            attrs[name] = tuple(values)
        elif attr.type == "scalars" and attrs.get(name):
            attrs[name] = tuple(_FLOATS[rng.integers(len(_FLOATS))] for _ in attrs[name])
    return attrs


# -- arrays ---------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """An array, and what lies around it."""

    array: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def is_untouched(self) -> bool:
        """Whether nobody wrote beside the array."""
        return bool((self.before == _GUARD).all() and (self.after == _GUARD).all())


def allocate(shape: Sequence[int], dtype: np.dtype, rng: np.random.Generator) -> Memory:
    """Return an array between bytes that are watched, or one that ends where its memory does.

    A sanitizer watches the latter. The former lies at any multiple of its element size.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if rng.random() < 0.5:
        whole = np.empty(nbytes, np.uint8)
        nothing = whole[:0]
        return Memory(whole.view(dtype).reshape(shape), nothing, nothing)
    begin = _GUARD_BYTES + int(rng.integers(16)) * dtype.itemsize
    whole = np.full(begin + nbytes + _GUARD_BYTES, _GUARD, np.uint8)
    inside = whole[begin : begin + nbytes]
    return Memory(inside.view(dtype).reshape(shape), whole[:begin], whole[begin + nbytes :])


def strided(shape: Sequence[int], dtype: np.dtype, rng: np.random.Generator) -> Memory:
    """Return a view of that shape whose dims lie in any order, with steps, reversed or repeated."""
    order = rng.permutation(len(shape))
    steps = rng.choice([1, 1, 1, 2, 3], len(shape))
    repeated = (rng.random(len(shape)) < 0.15) & (math.prod(shape) > 0)
    base = [1 if repeated[d] else shape[d] * int(steps[d]) for d in order]
    memory = allocate(base, dtype, rng)
    view = memory.array.transpose(np.argsort(order)) if len(shape) else memory.array
    for d in range(len(shape)):
        if not repeated[d]:
            step = int(steps[d]) * (-1 if rng.random() < 0.2 else 1)
            view = view[(slice(None),) * d + (slice(None, None, step),)]
    return memory._replace(array=np.lib.stride_tricks.as_strided(
        view, shape, [0 if r else s for r, s in zip(repeated, view.strides, strict=True)]
    ))  # fmt: skip


def fill(array: np.ndarray, dtype: str, values: str, limit: int, rng: np.random.Generator) -> None:
    """Write random values; integers that may be places below ``limit``."""
    shape = array.shape
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            normal = rng.standard_normal(shape) * rng.choice([1.0, 1.0, 8.0])
            if values != PLAIN_VALUES:
                tiny, largest = np.finfo(array.dtype).tiny, np.finfo(array.dtype).max
                edges = [0.0, -0.0, math.nan, math.inf, -math.inf, float(tiny), float(tiny) / 4]
                edges += [float(largest), -float(largest)] if values == LARGEST else []
                chosen = rng.choice(edges, shape)
                normal = np.where(rng.random(shape) < rng.choice([0.02, 0.3]), chosen, normal)
            array[...] = normal
        return
    if dtype == "bfloat16":
        low, high = (0x3F00, 0x4100) if values == PLAIN_VALUES else (0, 1 << 16)
        array[...] = rng.integers(low, high, shape)
    elif array.dtype.kind == "b":
        array[...] = rng.random(shape) < 0.5
    elif values == PLAIN_VALUES:
        low = -limit if array.dtype.kind == "i" and rng.random() < 0.2 else 0
        most = min(limit, np.iinfo(array.dtype).max)
        array[...] = rng.integers(low, max(most, 1), shape)
        if array.ndim == 1 and array.size and rng.random() < 0.5:
            array[...] = np.sort(array)
            array[0] = 0 if rng.random() < 0.8 else array[0]
    else:
        limits = np.iinfo(array.dtype)
        edges = [limits.min, limits.max, limits.min + 1, 0, 1, limits.max // 2]
        array[...] = rng.choice(np.array(edges, array.dtype), shape)


# -- checks ---------------------------------------------------------------------------------------


class Mismatch(AssertionError):
    """A kernel does not do what its op says."""


def check(row: Row, drawn: Draw, rng: np.random.Generator) -> str:
    """Prepare a drawn node and, if its tensors hold little, run it.

    Returns
    -------
    str
        "refused" by the row, "prepared", "ran", or "compared".

    Raises
    ------
    Mismatch
    """
    op = row.op
    values = str(rng.choice([PLAIN_VALUES, PLAIN_VALUES, SPECIAL, LARGEST]))
    types = [*drawn.types, *drawn.outputs]
    storages = [None if t is None else t.storage for t in types]
    total = sum(s.nbytes for s in storages if s is not None)
    total += 8 * math.prod(drawn.attrs.get("kernel", ()))  # evaluators list the taps of a window
    if total > _RUN_BYTES:
        node = _prepare(row, drawn, [s and contiguous_strides(s.shape) for s in storages], rng)
        return "refused" if node is None else "prepared"
    memories = [
        None if t is None else _input(op, drawn, index, t, values, rng)
        for index, t in enumerate(drawn.types)
    ]
    results = [allocate(t.storage.shape, _dtype(t.storage), rng) for t in drawn.outputs]
    inputs = [None if m is None else m.array for m in memories]
    outputs = [m.array for m in results]
    strides = [
        None if a is None else tuple(s // a.itemsize for s in a.strides) for a in inputs + outputs
    ]
    node = _prepare(row, drawn, strides, rng)
    if node is None:
        return "refused"
    kept = [None if a is None else a.copy() for a in inputs]
    outcomes = []
    for threads in (1, 2):
        for output in outputs:
            output.reshape(-1).view(np.uint8)[...] = _GUARD
        try:
            node.run(inputs, outputs, threads)
            outcomes.append([bits(output) for output in outputs])
        except InputError as error:
            outcomes.append(error)
        if not all(m.is_untouched() for m in [*memories, *results] if m is not None):
            raise Mismatch("it writes beside an array")
        if any(
            a is not None and a.tobytes() != b.tobytes() for a, b in zip(kept, inputs, strict=True)
        ):
            raise Mismatch("it writes to an input")
    more = _rounding(op, drawn, kept)
    if not more <= _TOO_CLOSE:  # whether a pivot is 0 is the algorithm's choice
        return "ran"
    wanted = _evaluate(op, drawn, kept)
    if isinstance(wanted, InputError) or isinstance(outcomes[0], InputError):
        if not all(isinstance(each, InputError) for each in (*outcomes, wanted)):
            raise Mismatch(f"expected {wanted!r}, got {outcomes[0]!r}")
        return "ran"
    if outcomes[0] != outcomes[1]:
        raise Mismatch("its bits depend on the number of threads")
    for index in (index for index in op.inplace if index < len(inputs)):
        array = inputs[index]
        if drawn.types[index] != drawn.outputs[0] or array is None or not array.flags.c_contiguous:
            continue
        over = array.copy()
        node.run([*inputs[:index], over, *inputs[index + 1 :]], [over, *outputs[1:]], 2)
        if bits(over) != outcomes[0][0]:
            raise Mismatch(f"its bits differ where it computes over input {index}")
    finite = all(math.isfinite(v) for v in drawn.attrs.values() if type(v) is float)
    if values == LARGEST or (op.name in FINITE_ONLY and (values == SPECIAL or not finite)):
        return "ran"
    for array, want, type_ in zip(outputs, wanted, drawn.outputs, strict=True):
        _compare(decode(array, type_), want, more)
    return "compared" if any(output.size for output in outputs) else "ran"


def _dtype(storage: TensorType) -> np.dtype:
    return np.dtype(DTYPES[storage.dtype].storage)


class _AnyOffer(Choice):
    """Takes any variant of the kernels that serve a node."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        return int(self._rng.integers(len(offers))) if offers else None


def _prepare(
    row: Row,
    drawn: Draw,
    strides: Sequence[tuple[int, ...] | None],
    rng: np.random.Generator,
) -> _kernels.PreparedNode | None:
    operands = [
        None if type_ is None else (type_, own)
        for type_, own in zip([*drawn.types, *drawn.outputs], strides, strict=True)
    ]
    count = len(drawn.types)
    node = _kernels.prepare(
        row.op,
        drawn.attrs,
        operands[:count],
        operands[count:],
        kernels=(row.kernel,),
        choice=_AnyOffer(rng),
    )
    tensors = drawn.outputs if row.op.check is None else [*drawn.types, *drawn.outputs]
    nothing = all(t is None or t.size == 0 for t in tensors)
    if node is not None and nothing and node.tasks > (row.op.check is not None):
        raise Mismatch(f"{node.tasks} tasks for nothing")
    return node


def _input(
    op: OpDef, drawn: Draw, index: int, type_: TensorType, values: str, rng: np.random.Generator
) -> Memory:
    """Return an input with values: often the sample's own where these are integers."""
    dtype = _dtype(type_)
    sample = drawn.values[index]
    if type_.format != PLAIN:
        if type_.format.startswith("blocks."):
            array = array_of(type_, rng)
        else:
            array = np.empty(type_.shape, dtype)
            fill(array, type_.dtype, PLAIN_VALUES, 1, rng)
        given = stored(array, type_)
        memory = allocate(given.shape, given.dtype, rng)
        memory.array[...] = given
        return memory
    make = strided if op.takes_strided(index) and rng.random() < 0.6 else allocate
    memory = make(type_.shape, dtype, rng)
    same = sample is not None and sample.shape == type_.shape and sample.dtype == dtype
    if same and dtype.kind != "f" and rng.random() < 0.7:
        memory.array[...] = sample
        return memory
    sizes = [size for t in drawn.types if t is not None for size in t.shape] or [2]
    limit = int(rng.choice(sizes)) if rng.random() < 0.8 else 300
    places = op.check is not None and dtype.kind == "i"
    fill(memory.array, type_.dtype, PLAIN_VALUES if places else values, limit, rng)
    if op.name in _RECURRENT:
        memory.array[...] *= dtype.type(0.02)
    if op.name in _PRODUCTS and dtype.kind == "f":
        memory.array[...] = np.copysign(np.abs(memory.array) ** dtype.type(1 / 64), memory.array)
    if op.name == "SEARCHSORTED" and index == 0:
        memory.array.sort()
    return memory


def bits(array: np.ndarray) -> bytes:
    """Return an array's bytes, with one NaN for all.

    The result of an operation on two NaNs is one of them, by the order of operands, which a
    compiler may choose anew for each shape of a tile: so NaNs differ in their signs.
    """
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return array.tobytes()


def _evaluate(
    op: OpDef, drawn: Draw, arrays: Sequence[np.ndarray | None]
) -> Sequence[np.ndarray] | InputError:
    """Return what the evaluator gives, or raises."""
    inputs = [
        None if a is None or t is None else decode(a, t)
        for a, t in zip(arrays, drawn.types, strict=True)
    ]
    outputs = [np.zeros(t.shape, _dtype(t)) for t in drawn.outputs]
    try:
        with np.errstate(all="ignore"):
            op.compute(inputs, drawn.attrs, outputs)
    except InputError as error:
        return error
    return outputs


def _rounding(op: OpDef, drawn: Draw, inputs: Sequence[np.ndarray | None]) -> float:
    """Return how much more than its own rounding a result may differ, relative to its largest.

    ATTENTION takes the exponential of scores: what rounds a score by its own size, times the unit
    of rounding, changes its weight by so much. Equations amplify errors by the condition of their
    matrix: infinity where it is singular, or an input is not finite.
    """
    if op.name in _EQUATIONS:
        matrices = np.asarray(inputs[0])
        if not all(np.isfinite(each).all() for each in inputs if each is not None):
            return math.inf
        return 4 * float(np.finfo(matrices.dtype).eps) * _condition(matrices)
    if op.name != "ATTENTION":
        return 0.0
    q, k = (np.abs(np.asarray(readable(each), np.float64)) for each in inputs[:2])
    with np.errstate(all="ignore"):
        largest = float(np.sum(q.max(axis=(0, 1, 2), initial=0) * k.max(axis=(0, 1, 2), initial=0)))
    scores = largest * abs(drawn.attrs["scale"])
    unit = float(np.finfo(np.asarray(inputs[0]).dtype).eps)
    return unit * scores if math.isfinite(scores) else 0.0


def _condition(matrices: np.ndarray) -> float:
    """Return the largest condition of a batch; 1 of none."""
    if not matrices.size:
        return 1.0
    with np.errstate(all="ignore"):
        values = np.linalg.svd(matrices.astype(np.float64), compute_uv=False)
        if values.min() < 16 * float(np.finfo(matrices.dtype).tiny):  # its reciprocal overflows
            return math.inf
        return float((values[..., 0] / values[..., -1]).max())


def _compare(got: np.ndarray, want: np.ndarray, more: float = 0.0) -> None:
    if got.dtype not in _TOLERANCE:
        if not np.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
            raise Mismatch(_first(got, want, got != want))
        return
    relative, absolute = _TOLERANCE[got.dtype]
    absolute += more
    with np.errstate(all="ignore"):
        finite = np.isfinite(want)
        scale = max(float(np.abs(want[finite]).max(initial=0.0)), 1e-3)
        near = np.abs(got - want) <= relative * np.abs(want) + absolute * scale
        alike = np.where(finite, near, (got == want) | (np.isnan(got) & np.isnan(want)))
    if not alike.all():
        raise Mismatch(_first(got, want, ~alike))


def _first(got: np.ndarray, want: np.ndarray, differs: np.ndarray) -> str:
    at = tuple(map(int, np.argwhere(differs)[0]))
    return f"at {at} of {int(differs.sum())} that differ: expected {want[at]!r}, got {got[at]!r}"


def examine(row: Row, seed: int, *, huge: bool = False) -> str:
    """Draw a node by a seed and check it: see :func:`check`; "none" where none was found.

    "too large" is one whose scratch the system does not give.

    Raises
    ------
    Mismatch
        Saying what was drawn.
    """
    rng = np.random.default_rng([seed, zlib.crc32(row.name.encode()), int(huge)])
    drawn = draw(row, rng, huge=huge)
    if drawn is None:
        return "none"
    try:
        return check(row, drawn, rng)
    except MemoryError:
        return "too large"
    except Mismatch as error:
        text = f"{row.name}, seed {seed}{', huge' if huge else ''}: {error}\n"
        raise Mismatch(f"{text}types {drawn.types}\nattrs {drawn.attrs}") from error


def main() -> None:
    """Examine rows in turn until the time is over; end with status 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of CPU time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of a row's name")
    parser.add_argument("--seconds", type=int, default=120, help="of one node, at most")
    options = parser.parse_args()
    reached: dict[str, int] = {row.name: 0 for row in rows() if options.only in row.name}
    counts: dict[str, int] = {}
    wrong: dict[str, str] = {}
    seed = options.seed
    while time.process_time() < 60 * options.minutes:
        for row in rows():
            if row.name not in reached:
                continue
            for huge in (False, True):
                print(f"{row.name}, seed {seed}, {huge}", file=sys.stderr, flush=True)
                faulthandler.dump_traceback_later(options.seconds, exit=True)
                try:
                    outcome = examine(row, seed, huge=huge)
                except Mismatch as error:
                    outcome = "wrong"
                    if row.name not in wrong:
                        print(f"{error}\n", flush=True)
                    wrong.setdefault(row.name, str(error))
                counts[outcome] = counts.get(outcome, 0) + 1
                reached[row.name] += outcome == "compared"
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    missed = [name for name, count in reached.items() if not count]
    print(f"{len(reached)} rows, {seed - options.seed} draws of each twice: {counts}")
    print(f"{len(missed)} rows not reached: {', '.join(missed)}")
    sys.exit(bool(wrong or missed))


if __name__ == "__main__":
    main()
