"""Define the kinds of nodes of a program, and the accesses to variables in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_openinfer.language.graph import Node

#: A bound or an index: a literal, or a name that has its value when the program runs.
Value = int | str


class Name(str):
    """A setting that is a bare word: ``f32``, ``nearest``, or a variable that holds the value.

    A name equals the string of its text. Only a ``Name`` can mean a variable.
    """

    __slots__ = ()


#: The types of a setting of an op.
Setting = bool | int | float | str | tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Single:
    """One index: ``K[3]``, ``K[layer]``."""

    value: Value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of indices from ``start`` to before ``end``; None is the first, or past the last."""

    start: Value | None = None
    end: Value | None = None

    def __str__(self) -> str:
        start, end = ("" if bound is None else str(bound) for bound in (self.start, self.end))
        return f"{start}..{end}"


Index = Single | Slice


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a variable or to some of its entries.

    Attributes
    ----------
    base : str
        The variable.
    indices : tuple of Index
    bracketed : bool
        Whether the name is followed by brackets, which may be empty: ``K[]``.
    """

    base: str
    indices: tuple[Index, ...] = ()
    bracketed: bool = False

    def __str__(self) -> str:
        return f"{self.base}[{','.join(map(str, self.indices))}]" if self.bracketed else self.base


def access(text: str | Access) -> Access:
    """Parse a text like ``"K[layer, ..step]"`` as an access.

    Raises
    ------
    ProgramError
        If the text is not an access.
    """
    if isinstance(text, Access):
        return text
    if "[" not in text:
        return Access(text)
    from taper_openinfer.language.parser import parse_access  # which builds graphs

    return parse_access(text)


def _accept(kind: object, *names: str) -> None:
    """Convert the texts in these fields of a node kind to accesses."""
    for name in names:
        value = getattr(kind, name)
        if isinstance(value, (str, Access)):
            object.__setattr__(kind, name, access(value))
        else:
            object.__setattr__(kind, name, tuple(map(access, value)))


def _texts(kind: object, *names: str) -> None:
    """Convert the names or sizes in these fields of a node kind to tuples of strings."""
    for name in names:
        values = getattr(kind, name)
        object.__setattr__(kind, name, tuple(map(str, values)))


def _hashable(value: object) -> object:
    """Convert a list of integers to a tuple; return other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Assign:
    """Declares a temporary, which is zeros until it is written and ends with the step."""

    name: str
    dtype: str
    dims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _texts(self, "dims")


@dataclass(frozen=True)
class Op:
    """Computes ``output`` from ``inputs``. Texts are parsed as accesses."""

    op: str
    inputs: tuple[Access, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    output: Access = Access("")

    def __post_init__(self) -> None:
        _accept(self, "inputs", "output")
        object.__setattr__(self, "settings", {k: _hashable(v) for k, v in self.settings.items()})


@dataclass(frozen=True)
class Return:
    """Ends the block; nodes after it do not run."""


@dataclass(frozen=True)
class CacheRead:
    """Copies from persistent memory: ``cache.read src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class CacheWrite:
    """Copies to persistent memory: ``cache.write src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class CacheIncrement:
    """Adds to a persistent number."""

    target: str
    amount: int = 1


@dataclass(frozen=True)
class CacheDecrement:
    """Subtracts from a persistent number."""

    target: str
    amount: int = 1


@dataclass(frozen=True)
class CacheReset:
    """Resets a persistent variable, or entries of it, to the state before the first step."""

    target: Access

    def __post_init__(self) -> None:
        _accept(self, "target")


@dataclass(frozen=True)
class Loop:
    """Runs ``body`` for every ``index`` from ``start`` to before ``end``."""

    name: str
    index: str
    start: Value
    end: Value
    body: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Branch:
    """Runs block ``then``, or, if there is a condition and it is 0, block ``otherwise``."""

    condition: str | None
    then: str
    otherwise: str | None = None


@dataclass(frozen=True)
class Barrier:
    """Separates nodes: all nodes before it end before any node after it begins."""


@dataclass(frozen=True)
class Dep:
    """Lets ``before`` begin only after ``after`` has ended."""

    after: str
    before: str


@dataclass(frozen=True)
class Transfer:
    """Copies between variables of equal dtype and shape: ``transfer src >> dst``."""

    src: Access
    dst: Access

    def __post_init__(self) -> None:
        _accept(self, "src", "dst")


@dataclass(frozen=True)
class Yield:
    """Gives snapshots of variables to the blocks that run beside the entry block."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _texts(self, "names")


@dataclass(frozen=True)
class Await:
    """Waits until the blocks beside the entry block are done with these variables."""

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


def accesses(kind: object) -> tuple[Sequence[Access], Sequence[Access]]:
    """Return the accesses that a node reads, and those that it writes, without its inner nodes."""
    match kind:
        case Op(inputs=inputs, output=output):
            return inputs, (output,)
        case Assign(name=name):
            return (), (Access(name),)
        case CacheRead(src=src, dst=dst) | Transfer(src=src, dst=dst):
            return (src,), (dst,)
        case CacheWrite(src=src, dst=dst):
            return (src,), (dst,)
        case CacheIncrement(target=target) | CacheDecrement(target=target):
            return (Access(target),), (Access(target),)
        case CacheReset(target=target):
            return (), (target,)
        case Branch(condition=str(condition)):
            return (Access(condition),), ()
        case Loop(start=start, end=end):
            return [Access(bound) for bound in (start, end) if isinstance(bound, str)], ()
    return (), ()


def returns(nodes: Iterable[Node]) -> bool:
    """Return whether one of these nodes, or of loops among them, ends their block.

    A return in a block that a node branches to only ends that block.
    """
    return any(
        isinstance(node.kind, Return) or (isinstance(node.kind, Loop) and returns(node.kind.body))
        for node in nodes
    )


def describe(kind: NodeKind) -> str:
    """Describe a node without its body and its settings: ``"cache.read K[l] >> k"``.

    Traces and errors show this text. Names in it may be hostile: escape it before printing.
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
