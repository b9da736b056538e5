"""Hold which tensors stand for a program's variables at one point of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.graph.constants import derived, literal
from taper_runtime.base.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.compiler.graph.constants import Constant
    from taper_openinfer.compiler.compiled_caches import KnownBox
    from taper_runtime.ops.opdef import Shape, TensorType

#: Stands for a value that cannot be lowered. What needs it is passed over: one cause, one problem.
POISON = ""


@dataclass
class Scope:
    """The variables' tensors in one graph: that of a plan, or a block's of a control-flow node.

    Attributes
    ----------
    graph : Graph
    source : str
        The line of the program that nodes come from.
    values : dict of str to str
        The tensor that each variable is now; :data:`POISON` if there is none.
    extents : dict of str to KnownBox
        What is known of each cache's size.
    indices : dict of str to int or str
        The loops around: the value of each one's index, or the tensor that has it.
    """

    graph: Graph
    source: str = ""
    values: dict[str, str] = field(default_factory=dict)
    extents: dict[str, KnownBox] = field(default_factory=dict)
    indices: dict[str, int | str] = field(default_factory=dict)

    def type(self, tensor: str) -> TensorType:
        """Return the type of a tensor of the graph."""
        return self.graph.tensors[tensor].type

    def emit(self, op: str, inputs: Sequence[str], *, name: str | None = None, **attrs: Any) -> str:
        """Add a node; return its output."""
        return self.graph.add_node(op, inputs, attrs, name=name, source=self.source)

    def constant(self, value: object, dtype: str, name: str = "value") -> str:
        """Return a new constant of ``value``."""
        return self.graph.add_constant(name, np.asarray(value, DTYPES[dtype].storage), dtype)

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """Return the elements of ``tensor`` in another shape."""
        if self.type(tensor).shape == tuple(shape):
            return tensor
        return self.emit("RESHAPE", [tensor], shape=tuple(shape))

    def cast(self, tensor: str, dtype: str) -> str:
        """Return ``tensor`` in another dtype."""
        return (
            tensor if self.type(tensor).dtype == dtype else self.emit("CAST", [tensor], dtype=dtype)
        )

    def slice(self, tensor: str, axis: int, start: int, stop: int) -> str:
        """Return a range along one axis."""
        if (start, stop) == (0, self.type(tensor).shape[axis]):
            return tensor
        return self.emit("SLICE", [tensor], axis=axis, start=start, stop=stop)

    def binary(self, op: str, tensor: str, number: float) -> str:
        """Compute an elementwise op of a tensor and a number."""
        return self.emit(op, [tensor], scalar=number, scalar_index=1)

    def fork(self) -> Scope:
        """Return a scope of the same graph whose variables go ways of their own from here."""
        return replace(
            self,
            values=dict(self.values),
            extents=dict(self.extents),
            indices=dict(self.indices),
        )

    def lost(self) -> dict[str, str]:
        """Return the variables that stand for no tensor, which is so in blocks inside as well."""
        return {name: POISON for name, tensor in self.values.items() if tensor == POISON}

    def inner(self, graph: Graph, names: Sequence[str]) -> Scope:
        """Return the scope of a block of a node: what these variables are enters it as inputs.

        Constants become its own.
        """
        inner = Scope(graph, self.source, self.lost(), dict(self.extents), dict(self.indices))
        for name in names:
            inner.values[name] = inner.enter(self, self.values[name], name)
        return inner

    def enter(self, outer: Scope, tensor: str, name: str) -> str:
        """Make an input, or a constant, of what is a tensor of the scope around."""
        if tensor in outer.graph.constants:
            return self.graph.add_constant(tensor, outer.graph.constants[tensor])
        return self.graph.add_input(name, *outer.type(tensor)[:2])


def filled(value: object, dtype: str, shape: Shape) -> Constant:
    """Return a constant of one number, stored once."""
    one = literal(np.asarray(value, DTYPES[dtype].storage), dtype)
    return derived("EXPAND", [one], {"shape": shape}) if shape else one
