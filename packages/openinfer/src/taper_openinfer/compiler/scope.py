"""Hold the tensors that a program's variables have at one point of the program."""

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

#: A value that could not be lowered. Nodes that need it are skipped, so that a cause is reported
#: once.
POISON = ""


@dataclass
class Scope:
    """The variables' tensors in one graph: the plan's graph, or a block of a control-flow node.

    Attributes
    ----------
    graph : Graph
    source : str
        The line of the program that the next nodes come from.
    values : dict of str to str
        Each variable's current tensor, or :data:`POISON`.
    extents : dict of str to KnownBox
        What is known of the size of each cache.
    indices : dict of str to int or str
        For each enclosing loop, its index: the value, or the tensor that holds it.
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
        """Add a node; return its output's name."""
        return self.graph.add_node(op, inputs, attrs, name=name, source=self.source)

    def constant(self, value: object, dtype: str, name: str = "value") -> str:
        """Add a constant of ``value``; return its name."""
        return self.graph.add_constant(name, np.asarray(value, DTYPES[dtype].storage), dtype)

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """Reshape a tensor."""
        if self.type(tensor).shape == tuple(shape):
            return tensor
        return self.emit("RESHAPE", [tensor], shape=tuple(shape))

    def cast(self, tensor: str, dtype: str) -> str:
        """Cast a tensor to another dtype."""
        return (
            tensor if self.type(tensor).dtype == dtype else self.emit("CAST", [tensor], dtype=dtype)
        )

    def slice(self, tensor: str, axis: int, start: int, stop: int) -> str:
        """Take a range along one axis."""
        if (start, stop) == (0, self.type(tensor).shape[axis]):
            return tensor
        return self.emit("SLICE", [tensor], axis=axis, start=start, stop=stop)

    def binary(self, op: str, tensor: str, number: float) -> str:
        """Compute an elementwise op of a tensor and a number."""
        return self.emit(op, [tensor], scalar=number, scalar_index=1)

    def fork(self) -> Scope:
        """Return a scope of the same graph with its own copy of the variables."""
        return replace(
            self,
            values=dict(self.values),
            extents=dict(self.extents),
            indices=dict(self.indices),
        )

    def lost(self) -> dict[str, str]:
        """Return the variables that are :data:`POISON` here; blocks inside inherit them."""
        return {name: POISON for name, tensor in self.values.items() if tensor == POISON}

    def inner(self, graph: Graph, names: Sequence[str]) -> Scope:
        """Return the scope of a block of a node; these variables become its inputs.

        Constants are copied into the block.
        """
        inner = Scope(graph, self.source, self.lost(), dict(self.extents), dict(self.indices))
        for name in names:
            inner.values[name] = inner.enter(self, self.values[name], name)
        return inner

    def enter(self, outer: Scope, tensor: str, name: str) -> str:
        """Add an input, or a constant, for a tensor of the enclosing scope; return its name."""
        if tensor in outer.graph.constants:
            return self.graph.add_constant(tensor, outer.graph.constants[tensor])
        return self.graph.add_input(name, *outer.type(tensor)[:2])


def filled(value: object, dtype: str, shape: Shape) -> Constant:
    """Return a constant of one repeated number, which is stored once."""
    one = literal(np.asarray(value, DTYPES[dtype].storage), dtype)
    return derived("EXPAND", [one], {"shape": shape}) if shape else one
