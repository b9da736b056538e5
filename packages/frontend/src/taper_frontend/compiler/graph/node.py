"""One operation of a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef

#: What an elementwise op computes with: a tensor's name or a number.
Operand = str | int | float


@dataclass(slots=True, eq=False)
class Node:
    """An op over named tensors; its identity is the name of its output.

    Nodes are made and changed through their :class:`Graph` only, which keeps its indices in step.

    Attributes
    ----------
    op : str
        Name in the op registry.
    inputs : list of str
        Tensor names.
    output : str
        The tensor it produces.
    attrs : dict
        Plain data; attrs equal to the op's defaults may be missing.
    source : str
        The user's source line, empty where unknown.
    """

    op: str
    inputs: list[str]
    output: str
    attrs: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def definition(self) -> OpDef:
        """What the op is."""
        return REGISTRY[self.op]

    def copy(self) -> Node:
        """Return a node of its own; attr values are shared."""
        return Node(self.op, list(self.inputs), self.output, dict(self.attrs), self.source)

    def complete_attrs(self) -> dict[str, Any]:
        """Attrs with the op's defaults filled in."""
        # checked when the node was made
        return {name: attr.default for name, attr in self.definition.attrs.items()} | self.attrs

    def operands(self) -> list[Operand]:
        """Return the inputs of an elementwise op with its scalar, if any, where it stands."""
        operands: list[Operand] = list(self.inputs)
        index = self.attrs.get("scalar_index", -1)
        if index >= 0:
            operands.insert(index, self.complete_attrs()["scalar"])
        return operands
