"""Compile blocks: names to numbers, runs of ops to stretches, nodes to instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.language import graph as g
from taper_openinfer.simulator import instructions as i
from taper_openinfer.simulator.frame import VariableSlot
from taper_openinfer.simulator.indices import Names, bounds_of, entry_of, indices_of
from taper_openinfer.simulator.last_reads import Liveness
from taper_openinfer.simulator.stretch import Stretch, StretchCall, StretchInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_openinfer.language.graph import Node
    from taper_openinfer.link import LinkedProgram
    from taper_openinfer.native import Stretches
    from taper_openinfer.simulator.instructions import Instruction

    Blocks = dict[str, list[Instruction]]


def find_slots(program: LinkedProgram) -> list[VariableSlot]:
    """Return the variables that are a single array; temporaries come last."""
    return [
        VariableSlot(
            name,
            variable.declaration.kind,
            variable.dtype,
            variable.shape,
            variable.init,
            variable.tensor,
        )
        for name, variable in program.variables.items()
        if variable.declaration.kind != g.PERSISTENT and not variable.declaration.is_prefix_table
    ]


class Compiler:
    """Compiles every block of a program to instructions.

    Parameters
    ----------
    program : LinkedProgram
    slots : sequence of VariableSlot
    stretches : Stretches
        Compiles the runs of ops.
    is_split : bool
        Whether each op becomes a stretch of its own, as traces and debuggers need it.
    """

    def __init__(
        self,
        program: LinkedProgram,
        slots: Sequence[VariableSlot],
        stretches: Stretches,
        is_split: bool,
    ) -> None:
        """Assign numbers to slots, loops and caches."""
        self._program = program
        self._names = Names(program)
        self._flow = program.flow
        self._slots = {slot.name: number for number, slot in enumerate(slots)}
        self._variables = slots
        self._stretches, self._is_split = stretches, is_split
        nodes = list(program.graph.nodes())
        self._has_threads = any(isinstance(node.kind, g.Yield) for node in nodes)
        self._written = {name for node in nodes for name in _writes(node.kind)}
        self._readers: dict[str, list[int]] = {}
        for node in nodes:
            if isinstance(node.kind, g.CacheRead):
                readers = self._readers.setdefault(node.kind.src.base, [])
                readers.append(self._slots[node.kind.dst.base])
        self._blocks: Blocks = {}

    def compile(self) -> Blocks:
        """Return the instructions of each block."""
        for name in self._program.graph.blocks:
            self._blocks[name] = []
        for name, block in self._program.graph.blocks.items():
            # temporaries end with the step; what runs after any other block is unknown
            live = Liveness(self._flow, block.nodes, name != g.ENTRY)
            self._blocks[name].extend(self._sequence(block.nodes, name, live))
        return self._blocks

    def _sequence(self, nodes: Sequence[Node], block: str, live: Liveness) -> list[Instruction]:
        """Compile nodes up to the first ``return``."""
        made: list[Instruction] = []
        run: list[Node] = []
        for place, node in enumerate(nodes):
            if isinstance(node.kind, g.Assign) and any(_names(node, other) for other in run):
                made.extend(self._stretch(run, block, live, place - 1))
                run = []
            if isinstance(node.kind, g.Op | g.Assign):
                run.append(node)
                if self._is_split:
                    made.extend(self._stretch(run, block, live, place))
                    run = []
                continue
            made.extend(self._stretch(run, block, live, place - 1))
            run = []
            made.append(self._control(node, block, live, place))
            if isinstance(node.kind, g.Return):
                break
        return [*made, *self._stretch(run, block, live, len(nodes))]

    # -- ops --------------------------------------------------------------------------------------

    def _stretch(
        self, nodes: Sequence[Node], block: str, live: Liveness, last: int
    ) -> Iterator[Instruction]:
        """Compile a run of ops and assignments; each result gets a number.

        ``last`` is the position of the run's last node in the sequence that ``live`` describes.
        """
        sources: list[StretchInput] = []
        places: dict[str, int] = {}
        # for each variable, the value that holds its last result
        current: dict[str, tuple[str, int]] = {}
        calls: list[tuple[Node, list[tuple[str, int]]]] = []
        for node in nodes:
            kind = node.kind
            if not isinstance(kind, g.Op):
                continue
            inputs: list[tuple[str, int]] = []
            for access in kind.inputs:
                name = str(access)
                if name not in current and name not in places:
                    places[name] = len(sources)
                    sources.append(self._source(access))
                inputs.append(current.get(name) or ("source", places[name]))
            current[kind.output.base] = ("call", len(calls))
            calls.append((node, inputs))
        for node in nodes:  # a temporary that the run writes before it reads it needs no zeros
            if isinstance(node.kind, g.Assign):
                name = node.kind.name
                if name in places or name not in current:
                    yield i.Restart(node, block, self._slots[name])
        if not calls:
            return
        kept = [name for name in current if self._outlives(name, live, last)]
        order = sorted(range(len(sources)), key=lambda at: _rank(sources[at]))
        number = {("source", at): place for place, at in enumerate(order)}
        number |= {("call", at): len(sources) + at for at in range(len(calls))}
        yield Stretch(
            block,
            [self._call(node, [number[value] for value in inputs]) for node, inputs in calls],
            [sources[at] for at in order],
            [(self._slots[name], number[current[name]]) for name in kept],
            self._stretches,
        )

    def _call(self, node: Node, inputs: Sequence[int]) -> StretchCall:
        kind = node.kind
        assert isinstance(kind, g.Op)
        settings = self._program.settings(kind)
        return StretchCall(node, kind.op, tuple(inputs), settings, self._dtype(kind.output.base))

    def _source(self, access: g.Access) -> StretchInput:
        """Return the stretch input for a value that was computed before the run."""
        name = access.base
        dtype = self._dtype(name)
        if self._program.variables[name].declaration.is_prefix_table:
            return StretchInput(-1, dtype, name, entry_of(access, self._program, self._names), True)
        slot = self._slots[name]
        is_given = self._variables[slot].kind in (g.CONSTANT, g.VOLATILE)
        return StretchInput(slot, dtype, is_constant=is_given and name not in self._written)

    def _outlives(self, name: str, live: Liveness, last: int) -> bool:
        """Return whether a variable's value may be read after the node at this position."""
        if self._is_split or self._variables[self._slots[name]].kind != "temporary":
            return True
        return live.is_read(name, last)

    def _dtype(self, name: str) -> str:
        return self._program.variables[name].dtype

    # -- control ----------------------------------------------------------------------------------

    def _control(self, node: Node, block: str, live: Liveness, place: int) -> Instruction:
        """Compile one control node; ``place`` is its position in the sequence of ``live``."""
        kind = node.kind
        slots, names = self._slots, self._names
        match kind:
            case g.Return():
                return i.ReturnInstruction(node, block)
            case g.Barrier() | g.Dep():
                return i.Nothing(node, block)
            case g.Transfer():
                return i.TransferInstruction(
                    node, block, slots[kind.src.base], slots[kind.dst.base]
                )
            case g.Yield():
                return i.YieldInstruction(node, block, [slots[name] for name in kind.names])
            case g.Await():
                return i.AwaitInstruction(node, block)
            case g.Loop():
                body = self._sequence(kind.body, block, live.of_body(self._flow, kind.body, place))
                bounds = bounds_of(kind.start, kind.end, names, slots)
                return i.LoopInstruction(node, block, names.loops[kind.index], bounds, body)
            case g.Branch():
                condition = None
                if kind.condition is not None:
                    condition = slots[kind.condition], self._dtype(kind.condition)
                return i.BranchInstruction(
                    node, block, condition, (kind.then, kind.otherwise), self._blocks
                )
        made = self._cache_node(node, block)
        return i.Locked(made) if self._has_threads else made

    def _cache_node(self, node: Node, block: str) -> Instruction:
        """Compile a node about a persistent variable."""
        kind = node.kind
        names = self._names
        if isinstance(kind, g.CacheIncrement | g.CacheDecrement):
            amount = kind.amount if isinstance(kind, g.CacheIncrement) else -kind.amount
            dtype = self._dtype(kind.target)
            return i.Add(node, block, names.caches[kind.target], dtype, amount)
        if isinstance(kind, g.CacheRead):
            cache, indices = names.caches[kind.src.base], indices_of(kind.src, names)
            target = self._slots[kind.dst.base]
            return i.Read(node, block, cache, indices, target, self._has_threads)
        if isinstance(kind, g.CacheWrite):
            cache, indices = names.caches[kind.dst.base], indices_of(kind.dst, names)
            readers = self._views_of(kind.dst.base)
            return i.Write(node, block, cache, indices, readers, self._slots[kind.src.base])
        assert isinstance(kind, g.CacheReset), kind
        cache, indices = names.caches[kind.target.base], indices_of(kind.target, names)
        return i.Reset(node, block, cache, indices, self._views_of(kind.target.base))

    def _views_of(self, cache: str) -> list[int]:
        """Return the slots that may hold views of a cache; none with threads, which copy."""
        return [] if self._has_threads else sorted(set(self._readers.get(cache, ())))


def _rank(source: StretchInput) -> int:
    """Return a sort key of inputs: varying ones, then constants, then entries of tables."""
    return source.is_constant + (source.entry is not None)


def _writes(kind: g.NodeKind) -> list[str]:
    """Return the variables that a node writes, except persistent ones."""
    match kind:
        case g.Op():
            return [kind.output.base]
        case g.CacheRead() | g.Transfer():
            return [kind.dst.base]
    return []


def _names(assign: Node, other: Node) -> bool:
    """Return whether an op uses a variable that a later ``assign`` declares anew."""
    kind = other.kind
    assert isinstance(assign.kind, g.Assign)
    return isinstance(kind, g.Op) and assign.kind.name in (
        kind.output.base,
        *(access.base for access in kind.inputs),
    )
