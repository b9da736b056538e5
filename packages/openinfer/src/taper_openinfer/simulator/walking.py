"""Run a block node by node and yield an event for each, for debuggers and traces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taper_openinfer.errors import OpenInferError
from taper_openinfer.language import graph as g
from taper_openinfer.simulator import instructions as i
from taper_openinfer.simulator.events import TraceEvent, parts_of
from taper_runtime.base.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from taper_openinfer.simulator.frame import ThreadFrame
    from taper_openinfer.simulator.instructions import Instruction

    Blocks = Mapping[str, Sequence[Instruction]]
    Clock = Callable[[], int] | None


def walk(
    block: str, blocks: Blocks, frame: ThreadFrame, clock: Clock
) -> Generator[TraceEvent, None, None]:
    """Run a block and yield an event after each node.

    Parameters
    ----------
    block : str
    blocks : mapping of str to sequence of Instruction
        The compiled blocks, with one instruction per op.
    frame : ThreadFrame
    clock : callable, optional
        Returns the time in nanoseconds.

    Yields
    ------
    TraceEvent
    """
    yield from _walk(blocks[block], blocks, frame, clock)


def _walk(
    instructions: Sequence[Instruction], blocks: Blocks, frame: ThreadFrame, clock: Clock
) -> Generator[TraceEvent, None, bool]:
    """Run instructions; return whether one of them returned from the block."""
    for made in instructions:
        try:
            if isinstance(made, i.LoopInstruction):
                for _ in made.rounds(frame):
                    if (yield from _walk(made.body, blocks, frame, clock)):
                        return True
                continue
            if isinstance(made, i.BranchInstruction):
                target = made.target(frame)
                yield _event(made, frame, clock() if clock else 0)
                with made.inside(frame):
                    yield from _walk(blocks[target], blocks, frame, clock)
                continue
            if isinstance(made, i.AwaitInstruction) and not frame.is_consumer:
                start = clock() if clock else 0
                yield from frame.executor.threads.join(frame)
                yield _event(made, frame, start)
                continue
            start = clock() if clock else 0
            has_returned = made.run(frame)
            end = clock() if clock else 0
        except (OpenInferError, OpError) as error:
            raise i.located(error, made.node) from error
        yield _event(made, frame, start, end)
        if has_returned:
            return True
    return False


def _event(made: Instruction, frame: ThreadFrame, start: int, end: int = 0) -> TraceEvent:
    """Return the event of a node that ran from ``start`` to ``end``, in nanoseconds."""
    node = made.node
    kind = node.kind
    params: list[str] = []
    output: list[str] = []
    name, op = type(kind).__name__, ""
    if isinstance(kind, g.Op):
        name, op = "OpExecute", kind.op
        kind = replace(kind, inputs=tuple(_resolved(each, frame) for each in kind.inputs))
        params, output = list(map(str, kind.inputs)), [str(kind.output)]
    is_timed = isinstance(kind, g.Op)
    return TraceEvent(
        made.block,
        node.index,
        node.uuid,
        name,
        params,
        output,
        parts_of(end - start) if is_timed else (0, 0, 0),
        g.describe(kind),
        op,
        start,
    )


def _resolved(access: g.Access, frame: ThreadFrame) -> g.Access:
    """Return an access to a prefix table with the values of loop variables: ``W[l=3]``."""
    if not access.indices:
        return access
    indices = tuple(_with_value(index, frame) for index in access.indices)
    return g.Access(access.base, indices, access.bracketed)


def _with_value(index: g.Index, frame: ThreadFrame) -> g.Index:
    if not isinstance(index, g.Single) or not isinstance(index.value, str):
        return index
    number = frame.executor.names.number(index.value)
    return g.Single(f"{index.value}={number(frame) if callable(number) else number}")
