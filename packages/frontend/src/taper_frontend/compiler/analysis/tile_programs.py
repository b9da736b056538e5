"""Describe elementwise nodes, and the tile programs to which they are fused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taper_runtime.ops.convert import is_native_cast
from taper_runtime.ops.elementwise import MICROOPS, arity, refuses, refusing
from taper_runtime.ops.type_rules import COMPUTED, INTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def is_elementwise(node: Node) -> bool:
    """Return whether ``node`` computes each element from one element of each operand."""
    return node.op in MICROOPS or node.op in ("CAST", "MAP")


def is_fusable(graph: Graph, node: Node) -> bool:
    """Return whether ``node`` can be part of a tile program that a native kernel runs."""
    dtypes = [graph.tensors[t].dtype for t in [*node.reads, node.output]]
    if not node.attrs.get("by_zero", True) and dtypes[-1] not in INTS:
        return False
    if node.op == "CAST":
        return is_native_cast(*dtypes)
    # A program supports every dtype that a CAST in it supports.
    return node.op == "MAP" or (is_elementwise(node) and all(d in COMPUTED for d in dtypes))


def may_refuse(node: Node) -> bool:
    """Return whether an elementwise node refuses some values, as a division refuses 0."""
    return not node.attrs.get("by_zero", True) or any(map(refuses, node.attrs.get("code", ())))


@dataclass(slots=True)
class TileProgram:
    """Elementwise nodes as a list of instructions, in the form of MAP's attrs.

    Values are numbered: ``inputs`` first, then the result of each instruction. ``args`` holds the
    operands of all instructions; -1, -2, ... denote ``scalars``.
    """

    inputs: list[str]
    code: list[str] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)

    @property
    def attrs(self) -> dict[str, Any]:
        """Return the attrs of the node."""
        attrs = {"code": tuple(self.code), "args": tuple(self.args)}
        return attrs | ({"scalars": tuple(self.scalars)} if self.scalars else {})

    def scalar(self, value: float) -> int:
        """Return the arg that denotes a number."""
        for index, known in enumerate(self.scalars):
            if repr(known) == repr(value):  # 0.0 differs from -0.0 and from False
                return -1 - index
        self.scalars.append(value)
        return -len(self.scalars)

    def instruction(self, code: str, args: Sequence[int]) -> int:
        """Append an instruction and return the number of its value."""
        self.code.append(code)
        self.args += args
        return len(self.inputs) + len(self.code) - 1


def external_inputs(nodes: Sequence[Node], first: Sequence[str] = ()) -> list[str]:
    """Return the tensors that ``nodes`` read from outside, without duplicates, after ``first``."""
    inside = {node.output for node in nodes}
    names = [name for node in nodes for name in node.inputs if name not in inside]
    return list(dict.fromkeys([*first, *names]))


def instruction_count(node: Node) -> int:
    """Return the number of instructions of an elementwise node."""
    return len(node.attrs["code"]) if node.op == "MAP" else 1


def tile_program(nodes: Sequence[Node], first: Sequence[str] = ()) -> TileProgram:
    """Join elementwise nodes into one program whose result is that of the last node.

    Parameters
    ----------
    nodes : sequence of Node
        The nodes in topological order.
    first : sequence of str
        Tensors that are the first values, whatever the nodes read first.
    """
    program = TileProgram(external_inputs(nodes, first))
    values = {name: index for index, name in enumerate(program.inputs)}
    for node in nodes:
        if node.op == "MAP":
            result = _inline(program, node, [values[name] for name in node.inputs])
        else:
            code = f"CAST:{node.attrs['dtype']}" if node.op == "CAST" else node.op
            if may_refuse(node):
                code = refusing(code)
            args = [values[x] if isinstance(x, str) else program.scalar(x) for x in node.operands()]
            result = program.instruction(code, args)
        values[node.output] = result
    return program


def _inline(program: TileProgram, node: Node, values: list[int]) -> int:
    """Append the program of a MAP node."""
    attrs = node.complete_attrs()
    args = iter(attrs["args"])
    for code in attrs["code"]:
        operands = [next(args) for _ in range(arity(code))]
        moved = [
            values[v] if v >= 0 else program.scalar(attrs["scalars"][-1 - v]) for v in operands
        ]
        values.append(program.instruction(code, moved))
    return values[-1]
