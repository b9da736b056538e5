"""List the kinds of nodes of a program, and the accesses to variables in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_openinfer.language.graph import Node

#: A bound or an index: a literal, or the name of what gives it when the program runs.
Value = int | str


class Name(str):
    """A setting that is a bare word: ``f32``, ``nearest``, or the variable that has the value.

    It equals the string of its text. Only a ``Name`` can mean a variable.
    """

    __slots__ = ()


#: What a setting of an op can be.
Setting = bool | int | float | str | tuple[int | str, ...]


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
    from taper_openinfer.language.parser import parse_access  # which builds graphs

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


def accesses(kind: object) -> tuple[Sequence[Access], Sequence[Access]]:
    """Return the accesses that a node itself reads, and those that it writes."""
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
    """Whether one of these nodes, or of loops among them, returns from the block they stand in.

    A return in a block that they branch to only ends that block.
    """
    return any(
        isinstance(node.kind, Return) or (isinstance(node.kind, Loop) and returns(node.kind.body))
        for node in nodes
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
