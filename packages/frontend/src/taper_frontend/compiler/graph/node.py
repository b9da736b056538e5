"""Define a node: one operation of a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.ops.opdef import OpDef

#: The name of an absent optional input. No tensor has this name, and it is never the last input.
ABSENT = ""

#: An operand of an elementwise op: a tensor's name or a number.
Operand = str | int | float


class SourceCall(NamedTuple):
    """The ATen call that one node computes.

    Attributes
    ----------
    arguments : str
        The JSON of the arguments that are not tensors.
    function : tuple
        What the node computes, and of which types (:func:`.source_calls.function_of`). A pass may
        change the node; it computes the call as long as this stays the same.
    """

    arguments: str
    function: tuple[Any, ...]


class SourceLine(NamedTuple):
    """The place in the user's model that a node comes from.

    Attributes
    ----------
    line : str
        The user's source line; empty if unknown.
    targets : tuple of str
        The ATen ops that the node computes, or is a part of, such as ``aten.relu.default``, as the
        exported program calls them.
    call : SourceCall or None
        The call that the node computes alone, with the call's tensors in order as inputs; None if
        there is none.
    """

    line: str = ""
    targets: tuple[str, ...] = ()
    call: SourceCall | None = None

    def joined(self, others: Iterable[SourceLine]) -> SourceLine:
        """Return this line with the targets of ``others`` before its own, without duplicates."""
        before = [target for other in others for target in other.targets]
        return self._replace(targets=tuple(dict.fromkeys([*before, *self.targets])))


#: Ops that only rearrange the elements of their input.
MOVES = frozenset({"PERMUTE", "TRANSPOSE", "RESHAPE"})


class Meaning(NamedTuple):
    """The value of the captured program that a tensor holds, perhaps in another layout.

    Attributes
    ----------
    value : str
        The name of the FX node with that value.
    moves : tuple of (str, dict)
        The ops of :data:`MOVES`, with attrs, that convert the tensor to the value.
    """

    value: str
    moves: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(slots=True, eq=False)
class Node:
    """An op over named tensors; its identity is the name of its first output.

    Nodes are made and changed only through their :class:`Graph`, which updates its indices.
    What rules ask of every node is set when the node changes: no call is needed to read it.

    Attributes
    ----------
    op : str
        The name in the op registry.
    inputs : list of str
        Tensor names; :data:`ABSENT` for an absent optional input.
    outputs : list of str
        The tensors it produces, at least one.
    attrs : dict
        Plain data; attrs equal to the op's defaults may be missing.
    source : SourceLine
    blocks : list of Graph
        The graphs that an op of control flow runs. Each reads only its own inputs and constants.
    definition : OpDef
        What the op is.
    reads : list of str
        The inputs that are there.
    output : str
        The first output, the only one of most ops.
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    source: SourceLine = field(default_factory=SourceLine)
    blocks: list[Graph] = field(default_factory=list)
    definition: OpDef = field(init=False, repr=False)
    reads: list[str] = field(init=False, repr=False)
    output: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Set what follows from the parameters."""
        self.define(self.op, self.inputs, self.attrs, self.blocks)
        self.name_outputs(self.outputs)

    def define(
        self, op: str, inputs: list[str], attrs: dict[str, Any], blocks: list[Graph]
    ) -> None:
        """Set what the node computes, and of what."""
        self.op, self.inputs, self.attrs, self.blocks = op, inputs, attrs, blocks
        self.definition = REGISTRY[op]
        self.reads = [name for name in inputs if name != ABSENT]

    def name_outputs(self, names: list[str]) -> None:
        """Set the tensors that the node produces."""
        self.outputs, self.output = names, names[0]

    def copy(self) -> Node:
        """Return a copy of the node and of its blocks; attr values are shared."""
        blocks = [block.copy() for block in self.blocks]
        inputs, outputs = list(self.inputs), list(self.outputs)
        return Node(self.op, inputs, outputs, dict(self.attrs), self.source, blocks)

    def complete_attrs(self) -> dict[str, Any]:
        """Return the attrs with the op's defaults filled in."""
        # they were checked when the node was made
        return {name: attr.default for name, attr in self.definition.attrs.items()} | self.attrs

    @property
    def operation(self) -> tuple[str, str]:
        """Return a key that is equal for nodes (without blocks) that compute the same function."""
        # repr distinguishes 0, 0.0, -0.0 and False
        return self.op, repr(sorted(self.complete_attrs().items()))

    def operands(self) -> list[Operand]:
        """Return the inputs of an elementwise op, with its scalar, if any, in its position."""
        operands: list[Operand] = list(self.inputs)
        index = self.attrs.get("scalar_index", -1)
        if index >= 0:
            operands.insert(index, self.complete_attrs()["scalar"])
        return operands
