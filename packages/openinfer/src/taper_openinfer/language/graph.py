"""Represent a program as a graph: variables in four kinds of memory, and blocks of nodes.

A graph is parsed from a text (:func:`taper_openinfer.language.parser.parse`), read from JSON, or
built by calls:

>>> graph = Graph()
>>> graph.add_var("x", "dynamic", "f32", ["B"])
>>> graph.add_var("y", "volatile", "f32", ["B"], init=5.0)
>>> entry = graph.add_block("entry")
>>> graph.add_node("entry", Op("mul", ["y", "x"], output="y"))
>>> graph.add_node("entry", Return())

This module knows no model files, ops or element types: :func:`taper_openinfer.link.link` checks a
whole program before it runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taper_openinfer.errors import (
    OpenInferError,
    TextPosition,
    check_choice,
    check_kind,
    check_texts,
    shown,
)
from taper_openinfer.language.kinds import (
    Access,
    Assign,
    Await,
    Barrier,
    Branch,
    CacheDecrement,
    CacheIncrement,
    CacheRead,
    CacheReset,
    CacheWrite,
    Dep,
    Index,
    Loop,
    Name,
    NodeKind,
    Op,
    Return,
    Setting,
    Single,
    Slice,
    Transfer,
    Value,
    Yield,
    access,
    describe,
)
from taper_runtime.base.text import is_one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CONSTANT",
    "DYNAMIC",
    "ENTRY",
    "MAX_DEPTH",
    "MEMORY",
    "PERSISTENT",
    "VOLATILE",
    "Access",
    "Assign",
    "Await",
    "Barrier",
    "Block",
    "Branch",
    "CacheDecrement",
    "CacheIncrement",
    "CacheRead",
    "CacheReset",
    "CacheWrite",
    "Dep",
    "Graph",
    "Index",
    "Loop",
    "Name",
    "Node",
    "NodeKind",
    "Op",
    "Return",
    "Setting",
    "Single",
    "Slice",
    "Transfer",
    "Value",
    "Variable",
    "Yield",
    "access",
    "describe",
]

#: The kinds of memory, and the block that a step runs.
DYNAMIC, VOLATILE, CONSTANT, PERSISTENT = MEMORY = "dynamic", "volatile", "constant", "persistent"
ENTRY = "entry"

#: How deeply loops may be nested.
MAX_DEPTH = 32


def _uuid() -> str:
    return str(uuid.uuid4())


@dataclass
class Node:
    """One step of a block.

    Attributes
    ----------
    index : int
        Increases in the order in which nodes are made; a loop comes after the nodes of its body.
    kind : NodeKind
    uuid : str
        Unique to this node. Comparing graphs ignores it and ``place``.
    place : TextPosition or None
        The position in the text that the node was parsed from.
    """

    index: int
    kind: NodeKind
    uuid: str = field(default_factory=_uuid, compare=False)
    place: TextPosition | None = field(default=None, compare=False)


@dataclass
class Variable:
    """The declaration of a variable.

    Attributes
    ----------
    name : str
    kind : str
        The kind of memory: ``"dynamic"``, ``"volatile"``, ``"constant"`` or ``"persistent"``.
    dtype : str
        The element type: ``"f32"``.
    dims : tuple of str
        Literals, sizevars, or products of two: ``"128"``, ``"B"``, ``"H*D"``.
    init : int, float or bool, optional
        The initial value of every element that the file does not give.
    ref_name : str, optional
        The name of the file's tensor, if it differs from the variable's.
    pattern : str, optional
        The tensor names of a prefix table: ``"layers.{l}.weight"``.
    table_indices : tuple of str
        The indices of a prefix table or a cache.
    table : bool
        Whether the variable is a cache of entries by index.
    auto_dim : tuple of str
        The indices by which the tensor itself grows, one per dim.
    fixed : dict of str to int
        The largest value of an index, or of a count.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[str, ...] = ()
    init: int | float | bool | None = None
    ref_name: str | None = None
    pattern: str | None = None
    table_indices: tuple[str, ...] = ()
    table: bool = False
    auto_dim: tuple[str, ...] = ()
    fixed: dict[str, int] = field(default_factory=dict)
    place: TextPosition | None = field(default=None, compare=False)

    @property
    def is_prefix_table(self) -> bool:
        """Return whether the variable is a family of the file's tensors under one name."""
        return self.pattern is not None

    @property
    def is_cache(self) -> bool:
        """Return whether the variable is a table of entries, or grows."""
        return self.table or bool(self.auto_dim)


@dataclass
class Block:
    """Nodes in the order in which they run."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    place: TextPosition | None = field(default=None, compare=False)


@dataclass
class Graph:
    """A program.

    Attributes
    ----------
    vars : dict of str to Variable
        The variables, in the order of declaration.
    blocks : dict of str to Block
        The blocks; a step runs ``"entry"``.
    next_index : int
        The index of the next node.
    name : str
        The program's name in messages, usually its file. It is not compared.
    """

    vars: dict[str, Variable] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    next_index: int = 0
    name: str = field(default="", compare=False)

    def add_var(
        self,
        name: str,
        kind: str,
        dtype: str,
        dims: Sequence[str | int] = (),
        *,
        init: int | float | bool | None = None,
        ref_name: str | None = None,
        pattern: str | None = None,
        table_indices: Sequence[str] = (),
        table: bool = False,
        auto_dim: Sequence[str] = (),
        fixed: dict[str, int] | None = None,
        place: TextPosition | None = None,
    ) -> Variable:
        """Declare a variable; see :class:`Variable`.

        Raises
        ------
        OpenInferError
            If one of this name is declared already, there is no such kind of memory, or an argument
            is of another type.
        """
        if check_kind("name", name, str) in self.vars:
            raise OpenInferError(f"variable {shown(name)} is declared already")
        check_choice(f"variable {shown(name)}", kind, MEMORY)
        if not isinstance(dims, Sequence):
            raise OpenInferError(f"dims: expected a list, got {shown(dims)}")
        limits = check_kind("fixed", {} if fixed is None else fixed, dict)
        self.vars[name] = Variable(
            name,
            kind,
            dtype,
            tuple(map(str, dims)),
            init,
            ref_name,
            pattern,
            tuple(check_texts("table_indices", table_indices)),
            table,
            tuple(check_texts("auto_dim", auto_dim)),
            dict(limits),
            place,
        )
        return self.vars[name]

    def add_block(self, name: str, place: TextPosition | None = None) -> Block:
        """Add an empty block.

        Raises
        ------
        OpenInferError
            If there is one of this name, or the name is no string.
        """
        if check_kind("name", name, str) in self.blocks:
            raise OpenInferError(f"block {shown(name)} exists already")
        self.blocks[name] = Block(name, place=place)
        return self.blocks[name]

    def add_node(self, block: str, kind: NodeKind, place: TextPosition | None = None) -> Node:
        """Make a node and append it to a block.

        Raises
        ------
        OpenInferError
            If there is no such block.
        """
        self._block(block)
        return self.add_prebuilt_node(block, self.make_node(kind, place))

    def add_prebuilt_node(self, block: str, node: Node) -> Node:
        """Append a node that :meth:`make_node` or :meth:`make_loop_node` made to a block.

        Raises
        ------
        OpenInferError
            If there is no such block.
        """
        self._block(block).nodes.append(node)
        return node

    def make_node(self, kind: NodeKind, place: TextPosition | None = None) -> Node:
        """Make a node that is in no block yet."""
        node = Node(self.next_index, kind, place=place)
        self.next_index += 1
        return node

    def make_loop_node(
        self,
        name: str,
        index: str,
        start: Value,
        end: Value,
        body: Sequence[Node],
        place: TextPosition | None = None,
    ) -> Node:
        """Make a loop node; its body's nodes must exist already."""
        return self.make_node(Loop(name, index, start, end, list(body)), place)

    def nodes(self) -> Iterator[Node]:
        """Yield every node of every block; the nodes of a loop's body follow the loop."""
        waiting = [iter(block.nodes) for block in reversed(self.blocks.values())]
        while waiting:
            node = next(waiting[-1], None)
            if node is None:
                waiting.pop()
                continue
            yield node
            if isinstance(node.kind, Loop):
                waiting.append(iter(node.kind.body))

    def blocks_beside(self) -> list[str]:
        """Return the names of the blocks that run beside the entry block, no branch's targets."""
        branches = [node.kind for node in self.nodes() if isinstance(node.kind, Branch)]
        targets = {name for branch in branches for name in (branch.then, branch.otherwise)}
        return [name for name in self.blocks if name != ENTRY and name not in targets]

    def _block(self, name: str) -> Block:
        if not is_one_of(name, self.blocks):
            known = ", ".join(map(shown, self.blocks)) or "none"
            raise OpenInferError(f"expected a block of the program ({known}), got {shown(name)}")
        return self.blocks[name]
