"""Hold a captured program as plain data, without torch.

The lowering reads a program in this form. :mod:`taper_frontend.capture.read_exported` makes it of
torch's ``ExportedProgram``, and :mod:`taper_frontend.pt2` of the JSON in a PT2 archive.

Sizes are ints, or sympy expressions in torch's symbols. The functions in them, such as FloorDiv,
are torch's or :mod:`.size_functions`', and are recognized by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy

from taper_frontend.compiler.analysis.float_codes import TORCH_FLOATS
from taper_frontend.lowering.representation import REPRESENTATIONS
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from taper_frontend.lowering.pytrees import TreeStructure

#: A size of a tensor: an int, or a sympy expression.
SymbolicSize = Any

#: torch's names of symbols whose values nodes compute.
_UNBACKED = re.compile(r"(u|zuf)\d+")


@dataclass(frozen=True)
class TensorValue:
    """A tensor that a node computes, as torch describes it.

    Attributes
    ----------
    dtype : str
        torch's name, without ``torch.``.
    shape, strides : tuple of int or sympy.Expr
    layout : str
        ``"strided"`` for a dense tensor.
    has_own_memory : bool
        Whether the tensor is all of its memory; False may mean that it is not known.
    """

    dtype: str
    shape: tuple[SymbolicSize, ...]
    strides: tuple[SymbolicSize, ...] = ()
    layout: str = "strided"
    has_own_memory: bool = False

    @property
    def is_of_codes(self) -> bool:
        """Return whether these are floats of 8 bits, which only constants may be.

        Handlers see the numbers, as float32, and may move them.
        """
        return self.layout == "strided" and self.dtype in TORCH_FLOATS

    @property
    def seen_dtype(self) -> str:
        """Return the dtype that handlers see; empty if a plan has no such tensors."""
        if self.is_of_codes:
            return "float32"
        return "" if self.refused else self.dtype

    @property
    def refused(self) -> str:
        """Return what is wrong with the type for a plan; empty if nothing is."""
        if self.layout != "strided":
            return f"expected a dense tensor, got torch.{self.layout}"
        if self.dtype not in REPRESENTATIONS:
            return f"expected one of {', '.join(REPRESENTATIONS)}, got torch.{self.dtype}"
        return ""


@dataclass(frozen=True)
class SymbolicNumber:
    """A number that a node computes from sizes or values, as torch describes it.

    Attributes
    ----------
    kind : str
        "int", "float" or "bool".
    expr : sympy.Expr
    """

    kind: str
    expr: sympy.Expr


class DtypeArgument(str):
    """A dtype among the arguments of a call: torch's name, without ``torch.``."""

    __slots__ = ()


class Word(str):
    """An argument that no handler takes, as torch prints it: a device, a layout, an op."""

    __slots__ = ()


class SchemaArgument(NamedTuple):
    """A parameter in the schema of an ATen op.

    Attributes
    ----------
    name : str
    is_tensor : bool
        Whether the schema's type is ``Tensor``.
    default
        The default value, as plain data.
    """

    name: str
    is_tensor: bool
    default: Any = None


class Weight(NamedTuple):
    """A tensor with values: a parameter, a buffer or a constant.

    Attributes
    ----------
    value : TensorValue
        Its type; sizes are ints.
    memory : tuple
        A key that is equal for tensors with the same memory: tied parameters.
    read : callable
        Returns the array that a plan stores, C-contiguous; complex numbers are pairs, and floats
        of 8 bits their codes.
    """

    value: TensorValue
    memory: tuple[Any, ...]
    read: Callable[[], np.ndarray]

    @property
    def refused(self) -> str:
        """Return what is wrong with the type for a constant; empty if nothing is."""
        return "" if self.value.is_of_codes else self.value.refused


class BodyGraph(NamedTuple):
    """The graph of a branch or a loop."""

    nodes: list[Node]


class Origin(NamedTuple):
    """The call of the exported program that a node comes from.

    Attributes
    ----------
    name : str
        The name of the call's node there.
    target : str
        What it calls, in functional form.
    args, kwargs
        Its arguments; None if they are unknown.
    value
        torch's description of its result.
    schema : tuple of SchemaArgument or None
        The parameters of an ATen op.
    """

    name: str
    target: str
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    value: Any
    schema: tuple[SchemaArgument, ...] | None


class Node:
    """A placeholder, a call, a body or the results of a program.

    Attributes
    ----------
    name : str
    op : str
        "placeholder", "call_function", "get_attr" or "output".
    target : str
        What it calls: ``"aten.relu.default"``, ``"operator.add"``, ``"cond"``.
    args, kwargs
        Its arguments: nodes, plain data, :class:`DtypeArgument` and :class:`Word`, and lists of
        these.
    value
        What torch says of the result: :class:`TensorValue`, :class:`SymbolicNumber`, a list of
        these, or plain data.
    users : list of Node
        The nodes that have this one among their arguments.
    source : str
        The line of the user's model; empty if torch did not record one.
    schema : tuple of SchemaArgument or None
        The parameters of an ATen op; None for another target, or if they are not known.
    is_higher_order : bool
        Whether it calls a higher-order operator.
    draws : bool
        Whether it draws random numbers, or would in training mode.
    defines : tuple of sympy.Symbol
        The symbols that get their values from this node.
    attribute : BodyGraph, Weight or None
        What a "get_attr" node is.
    kept : BodyGraph or None
        The decomposition of a kept call of an op without a handler; None if it has none.
    is_kept : bool
        Whether it is such a call.
    compute : callable or None
        Computes the tensor that a call of numbers alone returns, as a plan stores it.
    """

    __slots__ = (
        "_origin",
        "args",
        "attribute",
        "compute",
        "defines",
        "draws",
        "is_higher_order",
        "is_kept",
        "kept",
        "kwargs",
        "name",
        "op",
        "schema",
        "source",
        "target",
        "users",
        "value",
    )

    def __init__(self, name: str, op: str, target: str = "", value: Any = None) -> None:
        """Make a node without arguments; :meth:`give` sets them."""
        self.name, self.op, self.target, self.value = name, op, target, value
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.users: list[Node] = []
        self.source = ""
        self.schema: tuple[SchemaArgument, ...] | None = None
        self.is_higher_order = self.draws = self.is_kept = False
        self.defines: tuple[sympy.Symbol, ...] = ()
        self.attribute: BodyGraph | Weight | None = None
        self.kept: BodyGraph | None = None
        self.compute: Callable[..., np.ndarray] | None = None
        self._origin: Origin | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.target or self.op}>"

    def give(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Set the arguments, and add the node to the users of those."""
        self.args, self.kwargs = tuple(args), dict(kwargs)
        for source in self.all_input_nodes:
            source.users.append(self)

    @property
    def all_input_nodes(self) -> list[Node]:
        """Return the nodes among the arguments, each once."""
        return list(dict.fromkeys(nodes_among((self.args, self.kwargs))))

    @property
    def call(self) -> Origin:
        """Return this call."""
        return Origin(self.name, self.target, self.args, self.kwargs, self.value, self.schema)

    @property
    def origin(self) -> Origin:
        """Return the call of the exported program that this comes from: by default itself."""
        call = self.call
        return self._origin or call._replace(target=functional_name(call.target))

    @origin.setter
    def origin(self, origin: Origin) -> None:
        self._origin = origin

    @property
    def has_several_results(self) -> bool:
        """Return whether other nodes pick results of this one."""
        return isinstance(self.value, list | tuple)


class InputSpec(NamedTuple):
    """An input of a program's graph.

    Attributes
    ----------
    kind : str
        "parameter", "buffer", "constant tensor", "object", "token", or "input" for an argument.
    name : str
        The name of its placeholder.
    form : str
        "tensor", "int", "value" for a fixed one, "object", or torch's name of another form.
    target : str or None
        The name in the state dict, or among the constants.
    is_stored : bool
        Whether it is in the state dict.
    value
        A fixed value, or the class of an object.
    """

    kind: str
    name: str
    form: str = "tensor"
    target: str | None = None
    is_stored: bool = True
    value: Any = None


class OutputSpec(NamedTuple):
    """A result of a program's graph.

    Attributes
    ----------
    kind : str
        "output", "buffer mutation", "input mutation", "parameter mutation", or "other".
    name
        The name of its node; a number's value may stand here.
    form : str
        "tensor", "number", "value" for a fixed one, or torch's name of another form.
    target : str or None
        What is written to.
    value
        A fixed value.
    """

    kind: str
    name: Any
    form: str = "tensor"
    target: str | None = None
    value: Any = None


class Range(NamedTuple):
    """The values of a symbol, from ``lower`` to ``upper``, between -UNBOUNDED and UNBOUNDED."""

    lower: int
    upper: int


class AtenProgram(NamedTuple):
    """A captured program.

    Attributes
    ----------
    nodes : list of Node
    inputs : list of InputSpec
    outputs : list of OutputSpec
    state_dict, constants : mapping of str to Weight
        Parameters and persistent buffers; other buffers and constants.
    input_structure, output_structure : TreeStructure
    ranges : mapping of sympy.Symbol to Range
    guards : list of sympy.Expr
        What torch assumes of sizes.
    hints : mapping of sympy.Symbol to int
        The values of symbols in the captured call.
    example_shapes : mapping of str to tuple of int
        The shapes of the example tensors by placeholder, where an example is known.
    example_ints : mapping of str to int
        The ints among the example's arguments, likewise.
    training : bool
        Whether the module was in training mode.
    captured_name : callable
        Returns the node whose value a node has in the program before decomposition, or an empty
        text.
    default_float : str
        The dtype of Python's floats.
    """

    nodes: list[Node]
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    state_dict: Mapping[str, Weight]
    constants: Mapping[str, Weight]
    input_structure: TreeStructure
    output_structure: TreeStructure
    ranges: Mapping[sympy.Symbol, Range]
    guards: list[sympy.Expr]
    hints: Mapping[sympy.Symbol, int]
    example_shapes: Mapping[str, tuple[int, ...]]
    example_ints: Mapping[str, int]
    training: bool
    captured_name: Callable[[str], str]
    default_float: str = "float32"

    def hint(self, size: SymbolicSize) -> int | None:
        """Return the value of a size in the captured call; None if it is not known."""
        return hint(size, self.hints)


#: The modules of Python functions that programs call.
_MODULES = ("operator.", "math.", "torch.")


def functional_name(target: str) -> str:
    """Return the name of the op that returns what another op writes: relu_ becomes relu."""
    if target.startswith(_MODULES):
        return target
    namespace, _, name = target.partition(".")
    op, _, overload = name.partition(".")
    if op.endswith("_") and not op.endswith("__"):
        op = op[:-1]
    return ".".join(part for part in (namespace, op, overload) if part)


def hint(size: SymbolicSize, hints: Mapping[sympy.Symbol, int]) -> int | None:
    """Return the value of a size for values of symbols; None if one has none."""
    if isinstance(size, int):
        return size
    value = size.xreplace({symbol: sympy.Integer(hint) for symbol, hint in hints.items()})
    return int(value) if value.is_number else None


def limited(lower: int | None, upper: int | None) -> Range:
    """Return a range of sizes; None and numbers beyond those of sizes are no limit."""
    low = -UNBOUNDED if lower is None else max(lower, -UNBOUNDED)
    return Range(low, UNBOUNDED if upper is None else min(upper, UNBOUNDED))


def nested_leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists, tuples and dicts, in order."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from nested_leaves(item)


def nodes_among(arguments: Any) -> Iterator[Node]:
    """Yield the nodes among nested arguments, in order."""
    return (leaf for leaf in nested_leaves(arguments) if isinstance(leaf, Node))


def replaced(arguments: Any, replace: Callable[[Node], Any]) -> Any:
    """Return nested arguments with another value in place of each node."""
    if isinstance(arguments, Node):
        return replace(arguments)
    if isinstance(arguments, dict):
        return {key: replaced(item, replace) for key, item in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(replaced(item, replace) for item in arguments)
    return arguments


def tensors_of(nodes: Iterable[Node]) -> list[TensorValue]:
    """Return what torch says of the tensors that the nodes compute."""
    leaves = nested_leaves([node.value for node in nodes])
    return [leaf for leaf in leaves if isinstance(leaf, TensorValue)]


def symbols_in(sizes: Iterable[SymbolicSize]) -> set[sympy.Symbol]:
    """Return the symbols in sizes."""
    return set().union(*(size.free_symbols for size in sizes if not isinstance(size, int)))


def unbacked(symbols: Iterable[sympy.Symbol]) -> set[sympy.Symbol]:
    """Return the symbols of torch whose values nodes compute."""
    return {symbol for symbol in symbols if _UNBACKED.fullmatch(str(symbol))}


def note_definitions(nodes: Iterable[Node]) -> None:
    """Note which node gives each symbol that depends on values its value: the first that has it.

    Nodes of which torch says it keep what it says; a decomposed body has lost that.
    """
    bound: set[sympy.Symbol] = set()
    for node in nodes:
        found = []
        for leaf in nested_leaves(node.value):
            if isinstance(leaf, TensorValue):
                found += [size for size in leaf.shape if not isinstance(size, int)]
            elif isinstance(leaf, SymbolicNumber) and leaf.kind != "bool":
                found.append(leaf.expr)
        new = unbacked(expr for expr in found if expr.is_Symbol) - bound
        bound |= new.union(node.defines)
        node.defines = node.defines or tuple(sorted(new, key=str))


def unbacked_sizes(node: Node) -> set[sympy.Symbol]:
    """Return the symbols in a node's results whose values nodes compute."""
    found: set[sympy.Symbol] = set()
    for leaf in nested_leaves(node.value):
        if isinstance(leaf, TensorValue):
            found |= symbols_in((*leaf.shape, *leaf.strides))
        elif isinstance(leaf, SymbolicNumber):
            found |= leaf.expr.free_symbols
    return unbacked(found)


def unbacked_shapes(nodes: Iterable[Node]) -> set[sympy.Symbol]:
    """Return the symbols in shapes of tensors whose values nodes compute."""
    return unbacked(symbols_in(size for value in tensors_of(nodes) for size in value.shape))
