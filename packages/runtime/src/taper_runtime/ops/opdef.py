"""Define what an op is: the record every op of the registry fills in.

An :class:`OpDef` owns the meaning of an op: its attrs, its shape and dtype rule, a numpy evaluator
that is both the reference and the fallback, how its output may share memory with an input, what it
costs. Lowering, passes, planner, loader, executors and tests all read it; nothing repeats it.

An op has one output or several, inputs that may be absent, and, if it is one of control flow,
blocks: graphs that it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, UndecidedError
from taper_runtime.formats import PLAIN, decode, encode, find
from taper_runtime.ops.region import Part, Range, Region, RegionRule, part_of, whole

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]


class TensorType(NamedTuple):
    """dtype, shape and format of a tensor: what shape inference maps to what."""

    dtype: str
    shape: Shape
    format: str = PLAIN

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def storage(self) -> TensorType:
        """The plain type of the array that stores the tensor.

        Raises
        ------
        OpError
            If there is no such format, or not for this dtype and shape.
        """
        if self.format == PLAIN:
            return self
        return TensorType(*find(self.format).storage(self.dtype, self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the contiguous tensor as it is stored."""
        storage = self.storage
        return storage.size * DTYPES[storage.dtype].size


class Signature(NamedTuple):
    """Types of what a block takes and gives."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


class BlockFunction(NamedTuple):
    """A block as an evaluator calls it.

    Attributes
    ----------
    types : Signature
    run : callable
        The arrays that it takes to those that it gives.
    """

    types: Signature
    run: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the block once."""
        return self.run(arrays)


class View(NamedTuple):
    """Where a tensor lies inside another's memory."""

    offset: int  # elements from the start of the viewed tensor
    strides: Shape  # elements


class Cost(NamedTuple):
    """Work of one node: what :mod:`taper_runtime.machine.cost` makes a time of.

    Attributes
    ----------
    flops : int
    bytes : int
        Of operands and result, each read or written once.
    padding : int
        Flops beyond ``flops`` on lanes of vectors that hold no column of the result.
    sums : int
        Sums of products that are computed in registers and then stored, those lanes' among them.
    scratch : int
        Bytes that the op's algorithm writes to scratch and reads there.
    copied : int
        Of ``bytes``, those that are not moved where the output takes over the first input's memory.
    """

    flops: int
    bytes: int
    padding: int = 0
    sums: int = 0
    scratch: int = 0
    copied: int = 0


class Save(NamedTuple):
    """How to save and restore the part of its first input that an in-place node overwrites.

    Attributes
    ----------
    op, attrs
        Of the node that reads it: of the inputs but the last.
    restore_op, restore_attrs
        Of the node that writes it back: of the result, the inputs between the first and the last,
        and what was read.
    """

    op: str
    attrs: Attrs
    restore_op: str
    restore_attrs: Attrs


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_scalar(value: Any) -> bool:
    return type(value) in (float, bool) or _is_int(value)


#: attr type name -> does this plain value have it? The names are those of the kernel descriptors.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda v: type(v) is float or _is_int(v),
    "bool": lambda v: type(v) is bool,
    "string": lambda v: type(v) is str,
    "scalar": _is_scalar,
    "ints": lambda v: type(v) in (tuple, list) and all(map(_is_int, v)),
    "strings": lambda v: type(v) in (tuple, list) and {str}.issuperset(map(type, v)),
    "scalars": lambda v: type(v) in (tuple, list) and all(map(_is_scalar, v)),
}

REQUIRED: Any = object()

#: The attrs of an op that has none, and of a node that sets none.
NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


class Attr(NamedTuple):
    """Type and default of one attr.

    Attributes
    ----------
    type : str
        A key of the kernel descriptors' type names.
    default : plain data
    sized : bool
        Whether its integers may be size expressions.
    role : str
        What its integers mean, if that concerns axes: "axis" for axes of the first input, "shape"
        for the sizes of the output's, "padding" for the amounts before and behind each axis that
        windows slide along (:attr:`Window.padding`).
    """

    type: str
    default: Any = REQUIRED
    sized: bool = False
    role: Literal["", "axis", "shape", "padding"] = ""

    def accepts(self, value: Any) -> bool:
        """Return whether ``value`` is plain data of this attr's type."""
        if self.sized:
            if type(value) is Size:
                return self.type == "int"
            if type(value) in (tuple, list) and Size in map(type, value):
                value = [item for item in value if type(item) is not Size]
        return _CHECKS[self.type](value)


if TYPE_CHECKING:
    Infer = Callable[..., TensorType | tuple[TensorType, ...]]
    Evaluate = Callable[..., np.ndarray | tuple[np.ndarray, ...]]
    ViewRule = Callable[[Shape, Shape, Attrs], View | None]
    Check = Callable[..., None]
    DecodesRule = Callable[[Sequence[Any], TensorType], bool]
    PartsRule = Callable[[Sequence[Shape], Attrs], Sequence[int] | None]
    SaveRule = Callable[[Attrs], Save]
    TableRule = Callable[[Sequence[Any], Attrs], np.ndarray | None]
    CostRule = Callable[[Sequence[Any], TensorType, Attrs], Cost]
    PackingRule = Callable[[TensorType, Attrs], str | None]

#: ``OpDef.strided`` of an op that takes any strides on every input.
ALL_INPUTS = -1


def _streaming_cost(inputs: Sequence[TensorType | None], output: TensorType, attrs: Attrs) -> Cost:
    """One flop per output element; every tensor read or written once."""
    return Cost(output.size, output.nbytes + sum(t.nbytes for t in inputs if t is not None))


def _carries_nothing(attrs: Attrs, block: int) -> int:
    return 0


def _computes(inputs: Sequence[TensorType | None], output: TensorType) -> bool:
    return False


class OpDef(NamedTuple):
    """Definition of one op.

    Parameters
    ----------
    name : str
        Upper case, the name in plans and of the kernels that serve it.
    doc : str
        One paragraph: what it computes.
    inputs : tuple of int
        Fewest and most inputs.
    infer : callable
        ``(input types, attrs) -> output type``, a tuple of types if there are several. Raises
        :class:`OpError` on anything the op does not allow, attr values included: it is what stands
        between a plan file and a kernel. ``attrs`` is complete (defaults filled in). An op with
        blocks takes their signatures as a third argument.
    evaluate : callable
        ``(arrays, attrs) -> array`` in numpy, of the inferred dtype and shape, a tuple of arrays if
        there are several. The meaning of the op, whatever the tensors' formats are: see
        :meth:`compute`. An op with blocks takes them as a third argument, each a
        :data:`BlockFunction`.
    optional : tuple of int
        Inputs that may be absent though others follow: ``None`` stands in their place. The last
        input is never absent; there are fewer inputs then.
    blocks : int
        How many blocks a node of the op has.
    carries : callable
        ``(attrs, index of a block) -> count``. So many of the block's outputs, from the first on,
        take the place of its inputs of the same numbers when it runs again: such an output may lie
        in the input's memory.
    check : callable, optional
        ``(arrays, attrs)``. Raises :class:`InputError` on values of the inputs that the op does not
        allow, indices out of range say; ``evaluate`` does so too. What a kernel that meets such a
        value is explained by, and what is left to do where the output is empty.
    attrs : mapping of str to Attr
    region : callable
        ``(input types, output type, attrs) -> one region per input``: which part of it a part of
        the output needs (:mod:`taper_runtime.ops.region`); all of it by default. Batches and images
        are split, and movements pass the op, as far as this says. It need not catch
        :class:`UndecidedError`: then all is needed.
    border : float, optional
        What windows that slide over the first input find beyond it.
    weights : tuple of int
        Inputs that hold parameters: where they are constants they may be stored in another form.
    packing : callable, optional
        ``(type of the first of weights, attrs) -> format``: the one in which kernels read a plain
        constant best; None where they read it as it lies. A weight that is decoded first
        (``decodes``) comes with the type in which it is stored.
    commutes : bool
        Whether its two inputs may be swapped.
    decodes : callable
        ``(input types, output type) -> bool``: whether it only widens stored values to those that
        are computed with, exactly. By default no.
    view : callable, optional
        ``(input shape, input strides, attrs) -> View`` of the output inside input 0, or None where
        strides cannot express it. Only ops that move no values have one.
    parts : callable, optional
        ``(input shapes, attrs) -> offsets`` (elements): where each row-major input lies in the
        output if the output is their concatenation, else None. Only ops that move no values have
        one.
    inplace : tuple of int
        Inputs whose memory the output may take over when shape and dtype are equal.
    save : callable, optional
        ``attrs -> Save``: of an op that overwrites a part of its first input only, which part. Such
        a node may run in place over a state.
    strided : tuple of int
        Inputs every native kernel of the op takes with any strides; ``(ALL_INPUTS,)`` for all.
        The others must be contiguous.
    formatted : tuple of int
        Inputs that may have any format; the others are plain. Kernels say which formats they read.
    table : callable, optional
        ``(input types, attrs) -> array``: what native kernels read beside the inputs and what
        takes long to compute, roots of unity say. A session computes it once for each set of sizes.
        None where no kernel serves them.
    cost : callable
    native : bool
        Whether native kernels exist (for the dtypes they list). Ops without only feed folding, or
        run through ``evaluate``.
    """

    name: str
    doc: str
    inputs: tuple[int, int]
    infer: Infer
    evaluate: Evaluate
    attrs: Mapping[str, Attr] = NO_ATTRS
    check: Check | None = None
    region: RegionRule = whole
    border: float | None = None
    weights: tuple[int, ...] = ()
    packing: PackingRule | None = None
    commutes: bool = False
    decodes: DecodesRule = _computes
    view: ViewRule | None = None
    parts: PartsRule | None = None
    inplace: tuple[int, ...] = ()
    save: SaveRule | None = None
    strided: tuple[int, ...] = ()
    formatted: tuple[int, ...] = ()
    table: TableRule | None = None
    cost: CostRule = _streaming_cost
    native: bool = True
    optional: tuple[int, ...] = ()
    blocks: int = 0
    carries: Callable[[Attrs, int], int] = _carries_nothing

    def check_attrs(self) -> None:
        """Check what :meth:`complete` relies on: types that exist, defaults that have them.

        Raises
        ------
        OpError
            On an unknown type or a default of another type; a default list must be a tuple.
        """
        for name, attr in self.attrs.items():
            if attr.type not in _CHECKS:
                raise OpError(
                    f"{self.name}.{name}: no attr type {attr.type!r}; known: {', '.join(_CHECKS)}"
                )
            default = attr.default
            if default is not REQUIRED and (type(default) is list or not attr.accepts(default)):
                raise OpError(f"{self.name}.{name}: default: expected {attr.type}, got {default!r}")

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """``attrs`` with defaults filled in, names and types checked.

        Raises
        ------
        OpError
            On an unknown, missing or wrongly typed attr.
        """
        full, given = {}, 0
        for name, attr in self.attrs.items():
            if name not in attrs:
                if attr.default is REQUIRED:
                    raise OpError(f"{self.name} needs attr {name!r} ({attr.type})")
                full[name] = attr.default
                continue
            given += 1
            value = attrs[name]
            if not attr.accepts(value):
                raise OpError(f"{self.name}.{name}: expected {attr.type}, got {value!r}")
            full[name] = tuple(value) if type(value) is list else value
        if given < len(attrs):
            unknown = min(attrs.keys() - self.attrs.keys())
            raise OpError(f"{self.name} has no attr {unknown!r}; it has {sorted(self.attrs)}")
        return full

    def fill(self, attrs: Attrs) -> dict[str, Any]:
        """Return ``attrs`` that :meth:`complete` has taken before with defaults filled in."""
        full = {}
        for name, attr in self.attrs.items():
            value = attrs.get(name, attr.default)
            full[name] = tuple(value) if type(value) is list else value
        return full

    def infer_types(
        self,
        inputs: Sequence[TensorType | None],
        attrs: Attrs,
        blocks: Sequence[Signature] = (),
    ) -> tuple[TensorType, ...]:
        """Output types for these inputs; :class:`OpError` where the op does not allow them."""
        low, high = self.inputs
        if not low <= len(inputs) <= high:
            raise OpError(f"{self.name} takes {low} to {high} inputs, got {len(inputs)}")
        for index, tensor in enumerate(inputs):
            if tensor is None:
                if index not in self.optional or index == len(inputs) - 1:
                    raise OpError(f"{self.name}: input {index}: expected a tensor, got none")
            elif tensor.format != PLAIN and index not in self.formatted:
                raise OpError(
                    f"{self.name}: input {index}: expected format plain, got {tensor.format}"
                )
        if len(blocks) != self.blocks:
            raise OpError(f"{self.name} takes {self.blocks} blocks, got {len(blocks)}")
        attrs = self.complete(attrs)
        types = self.infer(inputs, attrs, blocks) if self.blocks else self.infer(inputs, attrs)
        return (types,) if isinstance(types, TensorType) else tuple(types)

    def infer_type(self, inputs: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
        """Output type of an op that has one output; :class:`OpError` as :meth:`infer_types`."""
        types = self.infer_types(inputs, attrs)
        if len(types) != 1:
            raise OpError(f"{self.name}: expected an op of one output, it has {len(types)}")
        return types[0]

    def evaluate_all(
        self,
        inputs: Sequence[np.ndarray | None],
        attrs: Attrs,
        blocks: Sequence[BlockFunction] = (),
    ) -> tuple[np.ndarray, ...]:
        """Return all outputs as ``evaluate`` gives them; ``attrs`` is complete."""
        values = (
            self.evaluate(inputs, attrs, blocks) if self.blocks else self.evaluate(inputs, attrs)
        )
        return values if isinstance(values, tuple) else (values,)

    def needs(
        self, inputs: Sequence[TensorType | None], output: TensorType, attrs: Attrs
    ) -> Sequence[Region]:
        """Return the region of each input; what sizes leave undecided is needed whole.

        Raises
        ------
        OpError
            If the rule does not give each axis of each input a relation.
        """
        attrs = self.complete(attrs)
        try:
            regions = self.region(inputs, output, attrs)
        except UndecidedError:
            return whole(inputs, output, attrs)
        ranks = [0 if t is None else len(t.shape) for t in inputs]
        if [len(region) for region in regions] != ranks:
            raise OpError(
                f"{self.name}.region: expected a relation for each axis of inputs "
                f"of ranks {ranks}, got {regions}"
            )
        return regions

    def part(
        self,
        inputs: Sequence[TensorType | None],
        output: TensorType,
        attrs: Attrs,
        cuts: Mapping[int, Range],
    ) -> Part | None:
        """Return how the op computes a part of its output from parts of its inputs.

        Parameters
        ----------
        inputs, output, attrs
            Of the node as it is.
        cuts : mapping of int to tuple of int
            For output axes, the first position wanted and the one behind the last; of other axes
            all is wanted.

        Returns
        -------
        Part or None
            What is read of each input, and the attrs it takes; None where the op cannot compute
            such a part by itself.
        """
        return part_of(self, inputs, output, attrs, cuts)

    def work(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], attrs: Attrs
    ) -> Cost:
        """Return the work of a node: what ``cost`` says, which knows the first output alone."""
        work = self.cost(inputs, outputs[0], attrs)
        return work._replace(bytes=sum((output.nbytes for output in outputs[1:]), work.bytes))

    def compute(
        self,
        inputs: Sequence[np.ndarray | None],
        attrs: Attrs,
        outputs: Sequence[np.ndarray],
        types: Sequence[TensorType | None] = (),
        blocks: Sequence[BlockFunction] = (),
    ) -> None:
        """Fill ``outputs``, of the inferred types, with what ``evaluate`` gives.

        Empty ones cost nothing, however large the dims that are not 0.

        Parameters
        ----------
        inputs : sequence of numpy.ndarray or None
            As they are stored; None for those that are absent.
        attrs : mapping
            Complete.
        outputs : sequence of numpy.ndarray
            What stores the outputs.
        types : sequence of TensorType or None, optional
            Of the inputs and the outputs; needed where one is not plain.
        blocks : sequence of callable
            As many as the op has.

        Raises
        ------
        InputError
            On values of the inputs that the op does not allow.
        """
        if types:
            inputs = [
                array if array is None or type_ is None else decode(array, type_)
                for array, type_ in zip(inputs, types, strict=False)
            ]
        if any(output.size for output in outputs):
            values = self.evaluate_all(inputs, attrs, blocks)
            wanted = types[len(inputs) :] or [None] * len(outputs)
            for output, value, type_ in zip(outputs, values, wanted, strict=True):
                output[...] = value if type_ is None else encode(value, type_)
        elif self.check is not None:
            self.check(inputs, attrs)

    def takes_strided(self, index: int) -> bool:
        """Return whether input ``index`` may have any strides."""
        return ALL_INPUTS in self.strided or index in self.strided


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Sequence[int]) -> bool:
    """Return whether the elements of ``shape`` lie row-major without gaps."""
    return all(
        got == want or size in (0, 1)
        for size, got, want in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


def plain_strides(shape: Shape, strides: Sequence[int]) -> Shape:
    """Strides in the one form they have.

    Those of dims of size 1 say nothing: they become what row-major order would make them, so that a
    contiguous view has exactly the row-major strides.
    """
    result = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            step = stride
        result.append(step)
        step *= size
    return tuple(reversed(result))
