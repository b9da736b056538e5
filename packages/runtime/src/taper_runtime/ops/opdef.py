"""Define the record that describes an op: every op of the registry is one.

An :class:`OpDef` defines an op: its attrs, its shape and dtype rule, a numpy evaluator that is both
the reference and the fallback, how its output may share memory with an input, and its cost.
Lowering, passes, planner, loader, executors and tests all read it; nothing repeats it.

An op has one or more outputs. Some inputs may be absent. Ops of control flow have blocks, which are
graphs that they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, UndecidedError
from taper_runtime.formats import PLAIN, decode, encode
from taper_runtime.formats import TensorType as TensorType
from taper_runtime.ops.region import Part, Range, Region, RegionRule, part_of, whole

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]


class Signature(NamedTuple):
    """The types of a block's inputs and outputs."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


class BlockFunction(NamedTuple):
    """A block in the form that an evaluator calls.

    Attributes
    ----------
    types : Signature
    run : callable
        Computes the output arrays from the input arrays.
    """

    types: Signature
    run: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

    def __call__(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the block once."""
        return self.run(arrays)


class View(NamedTuple):
    """The offset and the strides of a tensor inside another's memory."""

    offset: int  # elements from the start of the viewed tensor
    strides: Shape  # elements


#: The name in :attr:`Cost.functions` of a micro-op that a chain of tile programs computes in
#: registers (``map/chain.inl``).
CHAINED = "chained"


class Cost(NamedTuple):
    """The work of one node, from which :mod:`taper_runtime.machine.cost` computes a time.

    Attributes
    ----------
    flops : int
    bytes : int
        Bytes of operands and result, each read or written once.
    padding : int
        Additional flops on lanes of vectors that hold no column of the result.
    sums : int
        The number of sums of products that are computed in registers and stored, with those lanes.
    scratch : int
        Bytes that the op's algorithm writes to scratch memory and reads there.
    spilled : int
        The part of ``scratch`` that is transformed in more vectors than 16 registers hold.
    copied : int
        The part of ``bytes`` that is saved if the output takes over the first input's memory.
    functions : tuple of (str, str, int)
        Passes over elements in L1: a micro-op (:mod:`taper_runtime.ops.elementwise`), the dtype of
        its operands, and the number of elements. A pass of another kind counts as the micro-op that
        does about the same to an element.
    rows : int
        The loops that are begun, each over elements that lie next to each other.
    loads : int
        The numbers that are loaded for a few multiply-adds each.
    """

    flops: int
    bytes: int
    padding: int = 0
    sums: int = 0
    scratch: int = 0
    spilled: int = 0
    copied: int = 0
    functions: tuple[tuple[str, str, int], ...] = ()
    rows: int = 0
    loads: int = 0


class Save(NamedTuple):
    """Ops that save and restore the part of its first input that an in-place node overwrites.

    Attributes
    ----------
    op, attrs
        The node that reads the part; its inputs are those of the in-place node without the last.
    restore_op, restore_attrs
        The node that writes it back; its inputs are the result, the inputs between the first and
        the last, and the part that was read.
    """

    op: str
    attrs: Attrs
    restore_op: str
    restore_attrs: Attrs


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_scalar(value: Any) -> bool:
    return type(value) in (float, bool) or _is_int(value)


#: For each attr type, a predicate of its values. The names are those of the kernel descriptors.
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

#: The attrs of an op without attrs, and of a node that sets none.
NO_ATTRS: Mapping[str, Any] = MappingProxyType({})


class Attr(NamedTuple):
    """The type and the default of one attr.

    Attributes
    ----------
    type : str
        A key of the kernel descriptors' type names.
    default : plain data
    sized : bool
        Whether its integers may be size expressions.
    role : str
        The meaning of its integers, if it concerns axes: "axis" for axes of the first input,
        "each axis" for one value for each of these, in their order, "shape" for the sizes of the
        output, "padding" for the padding before and after each axis that windows slide along
        (:attr:`Window.padding`), "part" if the node computes a part of an output: for each of the
        axes, the size of the whole axis of x, and the range of the whole output; empty otherwise.
    """

    type: str
    default: Any = REQUIRED
    sized: bool = False
    role: Literal["", "axis", "each axis", "shape", "padding", "part"] = ""

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

#: The value of ``OpDef.strided`` for an op that accepts any strides on every input.
ALL_INPUTS = -1


def _streaming_cost(inputs: Sequence[TensorType | None], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of one flop per output element, with each tensor read or written once."""
    return Cost(output.size, output.nbytes + sum(t.nbytes for t in inputs if t is not None))


def _carries_nothing(attrs: Attrs, block: int) -> int:
    return 0


def _computes(inputs: Sequence[TensorType | None], output: TensorType) -> bool:
    return False


class OpDef(NamedTuple):
    """The definition of one op.

    Parameters
    ----------
    name : str
        The name in plans and of the op's kernels, in upper case.
    doc : str
        One paragraph that defines the result.
    inputs : tuple of int
        The fewest and the most inputs.
    infer : callable
        ``(input types, attrs) -> output type``, or a tuple of types if there are several outputs.
        Raises :class:`OpError` for everything that the op does not accept, including attr values:
        kernels rely on this check of a plan file. ``attrs`` has all defaults. For an op with blocks
        their signatures are a third argument.
    evaluate : callable
        ``(arrays, attrs) -> array`` in numpy, of the inferred dtype and shape, or a tuple of arrays
        if there are several outputs. It defines the op; tensors in other formats are unpacked
        first, see :meth:`compute`. For an op with blocks a sequence of :data:`BlockFunction` is a
        third argument.
    optional : tuple of int
        Inputs that may be absent, with ``None`` in their place, even if others follow. The last
        input is never None; it is left out instead.
    blocks : int
        The number of blocks of a node.
    carries : callable
        ``(attrs, index of a block) -> count``. The first ``count`` outputs of the block become its
        first inputs when it runs again, so such an output may lie in the memory of its input.
    check : callable, optional
        ``(arrays, attrs)``. Raises :class:`InputError` for input values that the op does not
        accept, such as indices out of range; ``evaluate`` does so too. It is called for the message
        when a kernel finds such a value, and instead of the kernel if the output is empty.
    attrs : mapping of str to Attr
    region : callable
        ``(input types, output type, attrs) -> one region per input``: the part of the input that a
        part of the output needs (:mod:`taper_runtime.ops.region`); by default the whole input.
        Passes use it to split batches and images, and to move other ops past this one. It need not
        catch :class:`UndecidedError`, which means that the whole input is needed.
    border : float, optional
        The value of the padding around the first input, for ops with windows.
    weights : tuple of int
        Inputs that hold parameters: if they are constant they may be stored in another format.
    packing : callable, optional
        ``(type of the first of weights, attrs) -> format``: the best format for a plain constant,
        or None if kernels read it as it is. If the weight is decoded first (``decodes``), the type
        is that of the stored weight.
    commutes : bool
        Whether the two inputs may be swapped.
    decodes : callable
        ``(input types, output type) -> bool``: whether the op only converts stored values, exactly,
        to the type of the computation. By default False.
    view : callable, optional
        ``(input shape, input strides, attrs) -> View`` of the output inside input 0, or None if
        strides cannot express it. Only for ops that do not change values.
    parts : callable, optional
        ``(input shapes, attrs) -> offsets`` in elements: the position of each row-major input in
        the output if the output is their concatenation, else None. Only for ops that do not change
        values.
    inplace : tuple of int
        Inputs whose memory the output may take over if shape and dtype are equal.
    save : callable, optional
        ``attrs -> Save``, for an op that overwrites only a part of its first input: how to save and
        restore that part. Such a node may run in place over a state.
    strided : tuple of int
        Inputs that every native kernel of the op accepts with any strides; ``(ALL_INPUTS,)`` for
        all. All others must be contiguous.
    formatted : tuple of int
        Inputs that may have any format; all others are plain. Kernels declare the formats they
        read.
    table : callable, optional
        ``(input types, attrs) -> array``: constants that native kernels read and that take long to
        compute, such as roots of unity. A session computes them once for each set of sizes. None if
        no kernel supports the types.
    cost : callable
    stores : bool
        Whether ``evaluate`` returns what stores its outputs, which are not plain.
    native : bool
        Whether native kernels exist (for the dtypes they list). Other ops run through ``evaluate``.
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
    stores: bool = False
    optional: tuple[int, ...] = ()
    blocks: int = 0
    carries: Callable[[Attrs, int], int] = _carries_nothing

    def check_attrs(self) -> None:
        """Check that the attrs' types exist and that their defaults have these types.

        Raises
        ------
        OpError
            If a type is unknown, or a default has another type; a default list must be a tuple.
        """
        for name, attr in self.attrs.items():
            if attr.type not in _CHECKS:
                known = ", ".join(_CHECKS)
                raise OpError(f"{self.name}.{name}: expected a type of {known}, got {attr.type!r}")
            default = attr.default
            if default is not REQUIRED and (type(default) is list or not attr.accepts(default)):
                raise OpError(f"{self.name}.{name}: default: expected {attr.type}, got {default!r}")

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """Return ``attrs`` with defaults filled in, after checking names and types.

        Raises
        ------
        OpError
            If an attr is unknown, missing or of the wrong type.
        """
        full, given = {}, 0
        for name, attr in self.attrs.items():
            if name not in attrs:
                if attr.default is REQUIRED:
                    raise OpError(f"{self.name}.{name}: expected {attr.type}, got none")
                full[name] = attr.default
                continue
            given += 1
            value = attrs[name]
            if not attr.accepts(value):
                raise OpError(f"{self.name}.{name}: expected {attr.type}, got {value!r}")
            full[name] = tuple(value) if type(value) is list else value
        if given < len(attrs):
            unknown = min(attrs.keys() - self.attrs.keys())
            raise OpError(f"{self.name}: expected attrs of {sorted(self.attrs)}, got {unknown!r}")
        return full

    def fill(self, attrs: Attrs) -> dict[str, Any]:
        """Return ``attrs``, which :meth:`complete` has accepted before, with defaults filled in."""
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
        """Return the output types; raise :class:`OpError` if the op does not accept the inputs."""
        low, high = self.inputs
        if not low <= len(inputs) <= high:
            raise OpError(f"{self.name}: expected {low} to {high} inputs, got {len(inputs)}")
        for index, tensor in enumerate(inputs):
            if tensor is None:
                if index not in self.optional or index == len(inputs) - 1:
                    raise OpError(f"{self.name}: input {index}: expected a tensor, got none")
            elif tensor.format != PLAIN and index not in self.formatted:
                raise OpError(
                    f"{self.name}: input {index}: expected format plain, got {tensor.format}"
                )
        if len(blocks) != self.blocks:
            raise OpError(f"{self.name}: expected {self.blocks} blocks, got {len(blocks)}")
        attrs = self.complete(attrs)
        types = self.infer(inputs, attrs, blocks) if self.blocks else self.infer(inputs, attrs)
        return (types,) if isinstance(types, TensorType) else tuple(types)

    def infer_type(self, inputs: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
        """Return the output type of an op that has one output; see :meth:`infer_types`."""
        types = self.infer_types(inputs, attrs)
        if len(types) != 1:
            raise OpError(f"{self.name}: expected one output, got {len(types)}")
        return types[0]

    def evaluate_all(
        self,
        inputs: Sequence[np.ndarray | None],
        attrs: Attrs,
        blocks: Sequence[BlockFunction] = (),
    ) -> tuple[np.ndarray, ...]:
        """Return all outputs of ``evaluate``; ``attrs`` must be complete."""
        values = (
            self.evaluate(inputs, attrs, blocks) if self.blocks else self.evaluate(inputs, attrs)
        )
        return values if isinstance(values, tuple) else (values,)

    def needs(
        self, inputs: Sequence[TensorType | None], output: TensorType, attrs: Attrs
    ) -> Sequence[Region]:
        """Return the region of each input; inputs are needed whole if sizes leave it undecided.

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
            The types and the attrs of the node.
        cuts : mapping of int to tuple of int
            For output axes, the range that is wanted: its first position, and one past its last.
            All other axes are wanted whole.

        Returns
        -------
        Part or None
            The ranges of the inputs that are read, and the attrs of the part; None if the op cannot
            compute such a part alone.
        """
        return part_of(self, inputs, output, attrs, cuts)

    def work(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType], attrs: Attrs
    ) -> Cost:
        """Return the work of a node: that of ``cost``, plus the bytes of further outputs."""
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
        """Write the results of ``evaluate`` to ``outputs``, which have the inferred types.

        Empty outputs cost nothing, however large their other dims are.

        Parameters
        ----------
        inputs : sequence of numpy.ndarray or None
            The inputs as they are stored; None for absent ones.
        attrs : mapping
            The attrs, complete.
        outputs : sequence of numpy.ndarray
            The arrays that store the outputs.
        types : sequence of TensorType or None, optional
            The types of the inputs and the outputs; required if one is not plain.
        blocks : sequence of callable
            The blocks of the node.

        Raises
        ------
        InputError
            If the op does not accept the values of the inputs.
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
                output[...] = value if type_ is None or self.stores else encode(value, type_)
        elif self.check is not None:
            self.check(inputs, attrs)

    def takes_strided(self, index: int) -> bool:
        """Return whether input ``index`` may have any strides."""
        return ALL_INPUTS in self.strided or index in self.strided


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides in elements."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Sequence[int]) -> bool:
    """Return whether the elements of ``shape`` lie in row-major order without gaps."""
    return all(
        got == want or size in (0, 1)
        for size, got, want in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


def plain_strides(shape: Shape, strides: Sequence[int]) -> Shape:
    """Return strides in normal form.

    Strides of dims of size 1 have no meaning. They are replaced by those of row-major order, so
    that a contiguous view has exactly the row-major strides.
    """
    result = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            step = stride
        result.append(step)
        step *= size
    return tuple(reversed(result))
