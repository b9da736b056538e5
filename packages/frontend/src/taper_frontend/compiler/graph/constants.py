"""Represent constants by recipes: a parameter, a literal, or an op over other constants.

A constant is evaluated when its value is needed, and the value is kept only if it is small. So a
graph holds none of a model's weights in memory, and a plan gets them one at a time.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.evaluate import evaluate_step
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taper_runtime.ops.opdef import Shape

#: Computed values of up to so many bytes are kept for later calls.
_KEPT = 64 << 10

#: A value that depends on a parameter may be inspected if it has at most so many bytes.
_VISIBLE = 4 << 20


class Constant(ABC):
    """A tensor that does not depend on inputs. Immutable; compared by identity.

    Attributes
    ----------
    type : TensorType
    """

    type: TensorType

    @property
    def dtype(self) -> str:
        """Return the dtype's name."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """Return the sizes, which are all ints."""
        return self.type.shape

    @property
    def nbytes(self) -> int:
        """Return the size of the value in bytes."""
        return self.type.nbytes

    @property
    def is_literal(self) -> bool:
        """Return whether the value depends on no parameter."""
        return not any(isinstance(leaf, Parameter) for leaf in steps(self))

    @cached_property
    def is_open(self) -> bool:
        """Return whether the value may differ in a run, so that it must not be inspected."""
        return any(isinstance(leaf, Parameter) and leaf.is_replaceable for leaf in steps(self))

    @cached_property
    def digest(self) -> bytes:
        """Return a digest of the value, equal for constants of one type with equal elements."""
        return hashlib.sha256(self.value().reshape(-1).view("u1").data).digest()

    @property
    @abstractmethod
    def identity(self) -> bytes:
        """Return a digest that is equal for constants computed alike from the same leaves."""

    @abstractmethod
    def value(self) -> np.ndarray:
        """Return the value, a C-contiguous array of the dtype's storage type; do not write to it.

        Raises
        ------
        ExportError
            If an op cannot compute it, such as the inverse of a singular matrix.
        """


@dataclass(frozen=True, eq=False)
class Parameter(Constant):
    """A parameter or buffer of the module.

    Attributes
    ----------
    names : tuple of str
        The names in the module's state dict; several if parameters are tied.
    read : callable
        Returns the value, which is the same every time.
    kind : str
        Its kind in a plan: "parameter", "buffer" or "constant".
    is_replaceable : bool
        Whether a session may replace its value.
    is_complex : bool
        Whether users see complex numbers, whose parts lie along the last axis.
    quantization : object or None
        Quantisation info from the parameter's file: the numbers that the elements represent. No
        pass uses it.
    """

    type: TensorType
    names: tuple[str, ...]
    read: Callable[[], np.ndarray]
    kind: str = "parameter"
    is_replaceable: bool = False
    is_complex: bool = False
    quantization: object | None = None

    @property
    def identity(self) -> bytes:
        """Return a digest of the object's id: each parameter is one object."""
        return _digest("parameter", id(self))

    def value(self) -> np.ndarray:
        """Return the value in the module."""
        return self.read()


@dataclass(frozen=True, eq=False)
class Literal(Constant):
    """An array that is not a parameter: a number in the model's code, or a mask.

    Attributes
    ----------
    array : numpy.ndarray
        C-contiguous.
    """

    type: TensorType
    array: np.ndarray

    @property
    def identity(self) -> bytes:
        """Return a digest of the address; equal arrays at different places may differ in it."""
        return _digest("literal", self.array.ctypes.data, self.type)

    def value(self) -> np.ndarray:
        """Return the array."""
        return self.array


@dataclass(frozen=True, eq=False)
class Derived(Constant):
    """One output of an op on other constants.

    Attributes
    ----------
    op : str
        The name in the op registry.
    inputs : tuple of Constant or None
        None for an absent optional input.
    attrs : dict
        Plain data without varying sizes.
    source : str
        The user's source line; empty if unknown.
    index : int
        The index of the op's output.
    """

    type: TensorType
    op: str
    inputs: tuple[Constant | None, ...]
    attrs: Mapping[str, Any]
    source: str
    index: int = 0
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> list[Constant]:
        """Return the inputs that are present."""
        return [constant for constant in self.inputs if constant is not None]

    @property
    def identity(self) -> bytes:
        """Return a digest of the op, its attrs and the identities of its inputs."""
        if "identity" not in self._known:
            complete = sorted(REGISTRY[self.op].complete(self.attrs).items())
            inputs = [None if x is None else x.identity for x in self.inputs]
            self._known["identity"] = _digest(self.op, complete, inputs, self.index)
        identity: bytes = self._known["identity"]
        return identity

    def value(self) -> np.ndarray:
        """Compute the value step by step; no step is kept longer than another one needs it."""
        if "value" in self._known:
            known: np.ndarray = self._known["value"]
            return known
        order = list(steps(self, goes_into=_is_to_compute))
        readers = Counter(id(x) for step in order if _is_to_compute(step) for x in step.reads)
        values: dict[int, np.ndarray] = {}
        for step in order:
            if not _is_to_compute(step):
                values[id(step)] = step.value()
                continue
            values[id(step)] = _compute(step, [values.get(id(x)) for x in step.inputs])
            for x in step.reads:
                readers[id(x)] -= 1
                if readers[id(x)] == 0:
                    values.pop(id(x), None)
        return np.asarray(values[id(self)], order="C")


def looked_up(codes: Constant, table: np.ndarray) -> Constant:
    """Return the numbers of a float32 vector at positions, ``table[codes]``."""
    places = derived("CAST", [codes], {"dtype": "int64"})
    return derived("INDEX_SELECT", [literal(table), places], {"axis": 0})


def literal(array: np.ndarray, dtype: str | None = None) -> Literal:
    """Make a constant of an array, which is not copied if it is C-contiguous.

    Parameters
    ----------
    array : numpy.ndarray
    dtype : str, optional
        Required only if numpy has no such type: bfloat16 is passed as its bits in uint16.

    Raises
    ------
    OpError
        If the array's dtype is not one of Taper's, or not the storage type of ``dtype``.
    """
    array = np.asarray(array, order="C")
    dtype = dtype or array.dtype.name
    if dtype not in DTYPES or DTYPES[dtype].storage != array.dtype:
        raise OpError(f"expected an array of {', '.join(DTYPES)}, got {dtype} in {array.dtype}")
    return Literal(TensorType(dtype, array.shape), array)


def derived(
    op: str, inputs: Sequence[Constant], attrs: Mapping[str, Any] | None = None, source: str = ""
) -> Derived:
    """Make the constant that ``op``, which has one output, computes; nothing is computed yet.

    Raises
    ------
    OpError
        If the op does not accept these inputs or attrs.
    """
    attrs = dict(attrs or {})
    inferred = REGISTRY[op].infer_type([constant.type for constant in inputs], attrs)
    return Derived(inferred, op, tuple(inputs), attrs, source)


def reshaped(constant: Constant, shape: Shape) -> Constant:
    """Return a constant with the same elements in another shape."""
    return constant if constant.shape == shape else derived("RESHAPE", [constant], {"shape": shape})


def transposed(constant: Constant) -> Constant:
    """Return a matrix with its axes swapped."""
    return derived("TRANSPOSE", [constant], {"axis0": 0, "axis1": 1})


def filled(value: float, shape: Shape) -> Constant:
    """Return a float32 constant of one repeated number."""
    return derived("EXPAND", [literal(np.array(value, np.float32))], {"shape": shape})


def visible(constant: Constant) -> np.ndarray | None:
    """Return the value of a constant that may decide the form of a graph, else None.

    These are small tensors, and tensors computed from literals and small tensors. Other parameters
    may be large and must be read from a disk. Weights that a session may replace, and everything
    that depends on them, are excluded.
    """
    if constant.is_open:
        return None
    if constant.nbytes > _VISIBLE and any(
        isinstance(leaf, Parameter) and leaf.nbytes > _VISIBLE for leaf in steps(constant)
    ):
        return None
    return constant.value()


def steps(
    constant: Constant, goes_into: Callable[[Constant], bool] = lambda c: isinstance(c, Derived)
) -> Iterator[Constant]:
    """Yield ``constant`` and each constant that it is made of, once, inputs first.

    Parameters
    ----------
    constant : Constant
    goes_into : callable
        Returns whether the inputs of a derived constant are wanted.
    """
    done: set[int] = set()
    stack = [constant]
    while stack:
        step = stack[-1]
        inputs = step.reads if isinstance(step, Derived) and goes_into(step) else ()
        waiting = [x for x in inputs if id(x) not in done]
        if waiting and id(step) not in done:
            stack += reversed(waiting)
            continue
        stack.pop()
        if id(step) not in done:
            done.add(id(step))
            yield step


def _is_to_compute(constant: Constant) -> TypeGuard[Derived]:
    return isinstance(constant, Derived) and "value" not in constant._known


def _compute(step: Derived, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    """Compute one step; small results are kept."""
    types = [None if x is None else x.type for x in step.inputs]
    try:
        array = evaluate_step(step.op, step.index, arrays, types, step.attrs, step.type)
    except InputError as error:
        place = f" at {step.source}" if step.source else ""
        raise ExportError(
            f"a value that depends only on weights and constants cannot be computed: {error}{place}"
        ) from error
    if array.nbytes <= _KEPT:
        step._known["value"] = array = np.asarray(array, order="C")
    return array


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
