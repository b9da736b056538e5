"""A program: variables in four kinds of memory, and blocks of nodes.

It is what a text says (:func:`taper_runtime.openinfer.text.parser.parse`), what JSON holds, and
what calls build:

>>> graph = Graph()
>>> graph.add_var("x", "dynamic", "f32", ["B"])
>>> graph.add_var("y", "volatile", "f32", ["B"], init=5.0)
>>> entry = graph.add_block("entry")
>>> graph.add_node("entry", Op("mul", ["y", "x"], output="y"))
>>> graph.add_node("entry", Return())

Nothing here looks at a model file, at ops or at element types:
:func:`taper_runtime.openinfer.link.link` checks a whole program before anything runs.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from taper_runtime.openinfer.errors import OpenInferError, Place, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The kinds of memory, and the block that a step runs.
DYNAMIC, VOLATILE, CONSTANT, PERSISTENT = MEMORY = "dynamic", "volatile", "constant", "persistent"
ENTRY = "entry"

#: How deep loops may stand in one another.
MAX_DEPTH = 32

#: A bound or an index: a literal, or the name of what gives it when the program runs.
Value = Union[int, str]  # noqa: UP007, a plain name at run time


class Name(str):
    """A setting that is a bare word: ``f32``, ``nearest``, or the variable that has the value.

    It equals the string of its text. Only a ``Name`` can mean a variable.
    """

    __slots__ = ()


#: What a setting of an op can be.
Setting = Union[bool, int, float, str, tuple[int | str, ...]]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Single:
    """One index: ``K[3]``, ``K[layer]``."""

    value: Value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of indices, ``start`` to before ``end``; None is the first, or behind the last."""

    start: Value | None = None
    end: Value | None = None

    def __str__(self) -> str:
        start, end = ("" if bound is None else str(bound) for bound in (self.start, self.end))
        return f"{start}..{end}"


Index = Single | Slice


@dataclass(frozen=True, slots=True)
class Access:
    """A variable, or entries of one.

    Attributes
    ----------
    base : str
        The variable.
    indices : tuple of Index
    bracketed : bool
        Whether brackets stand behind the name, which may hold nothing: ``K[]``.
    """

    base: str
    indices: tuple[Index, ...] = ()
    bracketed: bool = False

    def __str__(self) -> str:
        return f"{self.base}[{','.join(map(str, self.indices))}]" if self.bracketed else self.base


def access(text: str | Access) -> Access:
    """Return the access that a text like ``"K[layer, ..step]"`` stands for.

    Raises
    ------
    ProgramError
        If it stands for none.
    """
    if isinstance(text, Access):
        return text
    if "[" not in text:
        return Access(text)
    from taper_runtime.openinfer.text.parser import parse_access  # which builds graphs

    return parse_access(text)


def _accept(kind: object, *names: str) -> None:
    """Let a kind of node be made with texts where it has accesses."""
    for name in names:
        value = getattr(kind, name)
        if isinstance(value, (str, Access)):
            object.__setattr__(kind, name, access(value))
        else:
            object.__setattr__(kind, name, tuple(map(access, value)))


def _texts(kind: object, *names: str) -> None:
    """Let a kind of node be made with any sequence of names, or of sizes, where it has a tuple."""
    for name in names:
        values = getattr(kind, name)
        object.__setattr__(kind, name, tuple(map(str, values)))


def _hashable(value: object) -> object:
    """Let integers of a setting be given as any list of them."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Assign:
    """Declare a temporary, which is zeros until it is written and ends with the step."""

    name: str
    dtype: str
    dims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _texts(self, "dims")


@dataclass(frozen=True)
class Op:
    """Compute ``output`` from ``inputs``. Texts stand for accesses."""

    op: str
    inputs: tuple[Access, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    output: Access = Access("")

    def __post_init__(self) -> None:
        _accept(self, "inputs", "output")
        object.__setattr__(self, "settings", {k: _hashable(v) for k, v in self.settings.items()})


@dataclass(frozen=True)
class Return:
    """End the block; nodes behind it do not run."""


@dataclass(frozen=True)
class CacheRead:
    """Copy from persistent memory: ``cache.read src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class CacheWrite:
    """Copy to persistent memory: ``cache.write src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class CacheIncrement:
    """Add to a persistent number."""

    target: str
    amount: int = 1


@dataclass(frozen=True)
class CacheDecrement:
    """Subtract from a persistent number."""

    target: str
    amount: int = 1


@dataclass(frozen=True)
class CacheReset:
    """Bring a persistent variable, or entries of it, back to how it was before the first step."""

    target: Access

    def __post_init__(self) -> None:
        _accept(self, "target")


@dataclass(frozen=True)
class Loop:
    """Run ``body`` for every ``index`` from ``start`` to before ``end``."""

    name: str
    index: str
    start: Value
    end: Value
    body: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Branch:
    """Run block ``then``; with a condition, that one where it is not 0 and else ``otherwise``."""

    condition: str | None
    then: str
    otherwise: str | None = None


@dataclass(frozen=True)
class Barrier:
    """Let everything before end before anything behind begins."""


@dataclass(frozen=True)
class Dep:
    """Let ``before`` begin only after ``after`` has ended."""

    after: str
    before: str


@dataclass(frozen=True)
class Transfer:
    """Copy between variables of equal dtype and shape: ``transfer src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class Yield:
    """Hand snapshots of variables to the blocks that run beside the entry block."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _texts(self, "names")


@dataclass(frozen=True)
class Await:
    """Wait until the blocks beside the entry block have done with these variables."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _texts(self, "names")


NodeKind = (
    Assign
    | Op
    | Return
    | CacheRead
    | CacheWrite
    | CacheIncrement
    | CacheDecrement
    | CacheReset
    | Loop
    | Branch
    | Barrier
    | Dep
    | Transfer
    | Yield
    | Await
)


def describe(kind: NodeKind) -> str:
    """Return the fixed text of a node, without body and settings: ``"cache.read K[l] >> k"``.

    Traces and errors show it. Names come from strangers: print it with care.
    """
    match kind:
        case Assign():
            return f"assign {kind.name}"
        case Op():
            return f"op {kind.op}({','.join(map(str, kind.inputs))}) >> {kind.output}"
        case CacheRead():
            return f"cache.read {kind.src} >> {kind.dst}"
        case CacheWrite():
            return f"cache.write {kind.src} >> {kind.dst}"
        case CacheIncrement() | CacheDecrement():
            verb = "increment" if isinstance(kind, CacheIncrement) else "decrement"
            amount = "" if kind.amount == 1 else f"{kind.amount} "
            return f"cache.{verb} {amount}{kind.target}"
        case CacheReset():
            return f"cache.reset {kind.target}"
        case Loop():
            return f"loop {kind.name} ({kind.index} in {kind.start}..{kind.end})"
        case Branch():
            named = (kind.condition, kind.then, kind.otherwise)
            return " ".join(["branch", *(name for name in named if name is not None)])
        case Dep():
            return f"dep after({kind.after}) before({kind.before})"
        case Transfer():
            return f"transfer {kind.src} >> {kind.dst}"
        case Yield() | Await():
            return f"{type(kind).__name__.lower()} {', '.join(kind.names)}"
    return type(kind).__name__.lower()


def _uuid() -> str:
    return str(uuid.uuid4())


@dataclass
class Node:
    """One step of a block.

    Attributes
    ----------
    index : int
        Rises in the order in which nodes are made; a loop's is behind those of its body.
    kind : NodeKind
    uuid : str
        Names this node alone. Graphs are compared without it, and without ``place``.
    place : Place or None
        In the text that it comes from.
    """

    index: int
    kind: NodeKind
    uuid: str = field(default_factory=_uuid, compare=False)
    place: Place | None = field(default=None, compare=False)


@dataclass
class Variable:
    """The declaration of a variable.

    Attributes
    ----------
    name : str
    kind : str
        Of its memory: ``"dynamic"``, ``"volatile"``, ``"constant"`` or ``"persistent"``.
    dtype : str
        ``"f32"``.
    dims : tuple of str
        Literals, sizevars, or products of two: ``"128"``, ``"B"``, ``"H*D"``.
    init : int, float or bool, optional
        Of every element that the file does not give.
    ref_name : str, optional
        The file's tensor, where it has another name.
    pattern : str, optional
        Of a prefix table: ``"layers.{l}.weight"``.
    table_indices : tuple of str
        Of a prefix table or a cache.
    table : bool
        Whether it is a cache of entries by index.
    auto_dim : tuple of str
        The indices by which the tensor itself grows, one per dim.
    fixed : dict of str to int
        The most that an index, or a count, may be.
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
    place: Place | None = field(default=None, compare=False)

    @property
    def is_prefix_table(self) -> bool:
        """Whether it is a family of the file's tensors under one name."""
        return self.pattern is not None

    @property
    def is_cache(self) -> bool:
        """Whether it is a table or grows."""
        return self.table or bool(self.auto_dim)


@dataclass
class Block:
    """Nodes in the order in which they run."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    place: Place | None = field(default=None, compare=False)


@dataclass
class Graph:
    """A program.

    Attributes
    ----------
    vars : dict of str to Variable
        In the order of declaration.
    blocks : dict of str to Block
        A step runs ``"entry"``.
    next_index : int
        Of the node that will be made next.
    name : str
        What messages call the program, usually its file. It is not compared.
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
        fixed: Mapping[str, int] | None = None,
        place: Place | None = None,
    ) -> Variable:
        """Declare a variable; see :class:`Variable`.

        Raises
        ------
        OpenInferError
            If one of this name is declared already, or there is no such kind of memory.
        """
        if name in self.vars:
            raise OpenInferError(f"variable {shown(name)} is declared already")
        if kind not in MEMORY:
            raise OpenInferError(
                f"variable {shown(name)}: expected {', '.join(MEMORY)}, got {shown(kind)}"
            )
        self.vars[name] = Variable(
            name,
            kind,
            dtype,
            tuple(map(str, dims)),
            init,
            ref_name,
            pattern,
            tuple(table_indices),
            table,
            tuple(auto_dim),
            dict(fixed or {}),
            place,
        )
        return self.vars[name]

    def add_block(self, name: str, place: Place | None = None) -> Block:
        """Add an empty block.

        Raises
        ------
        OpenInferError
            If there is one of this name.
        """
        if name in self.blocks:
            raise OpenInferError(f"block {shown(name)} exists already")
        self.blocks[name] = Block(name, place=place)
        return self.blocks[name]

    def add_node(self, block: str, kind: NodeKind, place: Place | None = None) -> Node:
        """Make a node and put it at the end of a block.

        Raises
        ------
        OpenInferError
            If there is no such block.
        """
        self._block(block)
        return self.add_prebuilt_node(block, self.make_node(kind, place))

    def add_prebuilt_node(self, block: str, node: Node) -> Node:
        """Put a node that :meth:`make_node` or :meth:`make_loop_node` made at the end of a block.

        Raises
        ------
        OpenInferError
            If there is no such block.
        """
        self._block(block).nodes.append(node)
        return node

    def make_node(self, kind: NodeKind, place: Place | None = None) -> Node:
        """Make a node that stands in no block yet."""
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
        place: Place | None = None,
    ) -> Node:
        """Make a loop of nodes that were made before it."""
        return self.make_node(Loop(name, index, start, end, list(body)), place)

    def nodes(self) -> Iterator[Node]:
        """Every node of every block, those of a loop's body behind the loop."""
        waiting = [iter(block.nodes) for block in reversed(self.blocks.values())]
        while waiting:
            node = next(waiting[-1], None)
            if node is None:
                waiting.pop()
                continue
            yield node
            if isinstance(node.kind, Loop):
                waiting.append(iter(node.kind.body))

    def _block(self, name: str) -> Block:
        if name not in self.blocks:
            known = ", ".join(map(shown, self.blocks)) or "none"
            raise OpenInferError(f"expected a block of the program ({known}), got {shown(name)}")
        return self.blocks[name]
