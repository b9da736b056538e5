"""Lower branches and loops, whose bodies torch.export represents as graphs.

A scan in whose body values decide sizes is written out, step by step. Of a branch in which they do,
both sides are computed.

torch turns everything of the module that a body uses, including weights, into operands of the node.
Constants are copied into the body. The remaining operands are carries, slices of the tensors that a
scan steps over, and other tensors.

Random numbers continue one sequence through branches and loops. If a body draws some, the state of
the generator is its first input and its first result.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.numbers import as_tensor
from taper_frontend.lowering.representation import is_complex, represented
from taper_runtime.base.random_state import STATE_SIZE
from taper_runtime.base.sizes import is_static
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.lowering.aten_program import BodyGraph
    from taper_frontend.lowering.context import Lowering, Operand


#: The most steps of a scan whose nodes stand in a plan one after the other.
_MOST_WRITTEN_OUT = 64

#: The type of the random generator's state.
_STATE = TensorType("int64", (STATE_SIZE,))


@lowers("cond")
def cond(
    ctx: Lowering,
    predicate: Operand,
    then: BodyGraph,
    otherwise: BodyGraph,
    operands: Sequence[Operand],
) -> list[str]:
    """Run one of two branches; compute both if values decide sizes in them, or shapes differ.

    torch has new symbols for all sizes of the results if values decide one, also if it is the size
    of an operand.
    """
    if any(map(ctx.has_sizes_of_values, (then, otherwise))):
        return _chosen(ctx, predicate, then, otherwise, operands)
    blocks = [
        ctx.block(then, "then", [_STATE], operands),
        ctx.block(otherwise, "else", [_STATE], operands),
    ]
    if len({tuple(b.tensors[name].shape for name in b.outputs) for b in blocks}) > 1:
        return _chosen(ctx, predicate, then, otherwise, operands)
    state = _generator(ctx, blocks)
    inputs = [ctx.reshape(as_tensor(ctx, predicate), ()), *state, *ctx.free(operands)]
    results = _emit(ctx, "IF", inputs, blocks, state)
    return [_sized(ctx, each, type_) for each, type_ in zip(results, ctx.outputs, strict=True)]


def _chosen(
    ctx: Lowering,
    predicate: Operand,
    then: BodyGraph,
    otherwise: BodyGraph,
    operands: Sequence[Operand],
) -> list[str]:
    """Compute both branches and choose the results: the memory of a block is planned once."""
    test = ctx.reshape(as_tensor(ctx, predicate), ())
    before, states, results = ctx.generator, [], []
    for body, name, taken in (
        (then, "then", test),
        (otherwise, "else", ctx.emit("LOGICAL_NOT", [test])),
    ):
        if ctx.taken is not None:
            taken = ctx.emit("LOGICAL_AND", [ctx.taken, taken])
        ctx.generator = before
        results.append([as_tensor(ctx, each) for each in ctx.inline(body, name, operands, taken)])
        states.append(ctx.generator)
        before = before or ctx.generator_state  # made by the first draw, which is in this branch
    if states != [before, before]:
        first, second = (state or ctx.generator_now() for state in states)
        ctx.generator = ctx.apply("WHERE", test, first, second, dtype=_STATE.dtype)
    return [
        _one_of(ctx, test, a, b, type_) for a, b, type_ in zip(*results, ctx.outputs, strict=True)
    ]


def _one_of(ctx: Lowering, test: str, a: str, b: str, type_: TensorType | None) -> str:
    """Return a result of the branch that is taken; sizes may differ."""
    axes = [
        n
        for n, sizes in enumerate(zip(ctx.shape(a), ctx.shape(b), strict=True))
        if len({*sizes}) > 1
    ]
    if not axes or type_ is None:
        chosen = ctx.apply("WHERE", test, a, b, dtype=ctx.dtype(a)) if not axes else a
        return _sized(ctx, chosen, type_)
    if is_complex(type_.dtype):
        ctx.unsupported(
            "expected complex results of both branches of one shape, got "
            f"{list(ctx.shape(a))} and {list(ctx.shape(b))}; return torch.view_as_real of each, "
            "and use torch.view_as_complex outside of the branches",
            "data-dependent",
        )
    if len(axes) > 1:
        return _one_of_flat(ctx, test, a, b, type_)
    (axis,) = axes
    found = _either(ctx, test, ctx.shape(a)[axis], ctx.shape(b)[axis])
    start = _either(ctx, test, 0, ctx.shape(a)[axis])
    both = ctx.emit("CAT", [a, b], axis=axis)
    return _sized(ctx, _part(ctx, both, axis, type_.shape[axis], found, start), type_)


def _one_of_flat(ctx: Lowering, test: str, a: str, b: str, type_: TensorType) -> str:
    """Return one of two results whose sizes differ along several axes, element by element."""
    sizes = (ctx.shape(a), ctx.shape(b))
    place = _either(ctx, test, 0, math.prod(sizes[0]))
    for axis, size in enumerate(type_.shape):
        if ctx.is_unmeasured(size):
            ctx.measure(size, _either(ctx, test, *(s[axis] for s in sizes)), harmless=True)
        step = _either(ctx, test, *(math.prod(s[axis + 1 :]) for s in sizes))
        index = ctx.emit("ARANGE", [], start=0, stop=size)
        index = ctx.reshape(index, (size, *[1] * (len(type_.shape) - 1 - axis)))
        place = ctx.emit("ADD", [place, ctx.emit("MUL", [index, step])])
    both = ctx.emit("CAT", [ctx.flat(a), ctx.flat(b)], axis=0)
    return ctx.emit("INDEX_SELECT", [both, place], axis=0)


def _either(ctx: Lowering, test: str, first: int, second: int) -> str:
    """Return one of two sizes as a scalar."""
    return ctx.apply(
        "WHERE", test, *(ctx.full((), size, "int64") for size in (first, second)), dtype="int64"
    )


def _sized(ctx: Lowering, x: str, type_: TensorType | None) -> str:
    """Return a tensor in which torch's new symbols stand for the sizes that have values."""
    for axis, size in enumerate(() if type_ is None else type_.shape):
        if size != (found := ctx.shape(x)[axis]) and ctx.is_unmeasured(size):
            x = _part(ctx, x, axis, size, ctx.full((), found, "int64"))
    return x


def _part(ctx: Lowering, x: str, axis: int, size: int, found: str, start: str | None = None) -> str:
    """Return ``size`` items from ``start`` on, where ``found`` gives the size its value."""
    ctx.measure(size, found, harmless=True)
    place = ctx.emit("ARANGE", [], start=0, stop=size)
    if start is not None:
        place = ctx.apply("ADD", place, start, dtype="int64")
    return ctx.emit("INDEX_SELECT", [x, place], axis=axis)


@lowers("while_loop")
def while_loop(
    ctx: Lowering,
    condition: BodyGraph,
    body: BodyGraph,
    carries: Sequence[Operand],
    others: Sequence[Operand],
) -> list[str]:
    """Run a body while a condition holds; integers are carried as scalars."""
    first = [as_tensor(ctx, value) for value in carries]
    types = [_STATE, *(ctx.type(name) for name in first)]
    test = ctx.block(condition, "condition", types, others, is_condition=True)
    if _draws(test):
        ctx.unsupported("the condition of a loop draws random numbers; draw them in its body")
    blocks = [test, ctx.block(body, "body", types, others)]
    state = _generator(ctx, blocks)
    test.set_outputs(test.outputs[-1:])
    inputs = [*state, *first, *ctx.free(others)]
    return _emit(ctx, "WHILE", inputs, blocks, state, carries=len(state) + len(first))


@lowers("scan")
def scan(
    ctx: Lowering,
    body: BodyGraph,
    carries: Sequence[str],
    xs: Sequence[str],
    others: Sequence[Operand],
) -> list[str]:
    """Step along the first axis of some tensors."""
    items = [ctx.type(name) for name in xs]
    if ctx.has_sizes_of_values(body):
        return _written_out(ctx, body, carries, xs, others)
    types = [
        _STATE,
        *(ctx.type(name) for name in carries),
        *(item._replace(shape=item.shape[1:]) for item in items),
    ]
    blocks = [ctx.block(body, "body", types, others)]
    state = _generator(ctx, blocks)
    inputs = [*state, *carries, *xs, *ctx.free(others)]
    return _emit(ctx, "SCAN", inputs, blocks, state, carries=len(state) + len(carries), xs=len(xs))


def _written_out(
    ctx: Lowering,
    body: BodyGraph,
    carries: Sequence[str],
    xs: Sequence[str],
    others: Sequence[Operand],
) -> list[str]:
    """Lower a scan step by step: sizes that values decide differ in each step."""
    steps, *_ = ctx.shape(xs[0])
    if not is_static(steps) or steps > _MOST_WRITTEN_OUT:
        ctx.unsupported(
            f"the shape of a result in the body depends on values: expected at most "
            f"{_MOST_WRITTEN_OUT} steps, which are written out, got {steps}; choose elements in "
            "the body with torch.where, which keeps the shape, or compute them outside of it",
            "data-dependent",
        )
    carried: list[Any] = list(carries)
    stacked: list[list[str]] = []
    for step in range(steps):
        items = [ctx.reshape(ctx.slice(x, 0, step, step + 1), ctx.shape(x)[1:]) for x in xs]
        results = ctx.inline(body, f"step_{step}", [*carried, *items, *others])
        carried = results[: len(carries)]
        rows = map(partial(as_tensor, ctx), results[len(carries) :])
        stacked.append([ctx.reshape(row, (1, *ctx.shape(row))) for row in rows])
    columns = zip(*stacked, strict=True)
    return [*carried, *(ctx.emit("CAT", column, axis=0) for column in columns)]


@lowers("map_impl")
def map_(ctx: Lowering, body: BodyGraph, xs: Sequence[str], others: Sequence[Operand]) -> list[str]:
    """Compute each item of some tensors: a scan without carries."""
    return scan(ctx, body, [], xs, others)


def _draws(block: Graph) -> bool:
    return block.outputs[0] != block.inputs[0]


def _generator(ctx: Lowering, blocks: Sequence[Graph]) -> list[str]:
    """Return the state of the generator as the only element if a block draws, else nothing.

    If no block draws, the state is removed from all blocks.
    """
    if any(map(_draws, blocks)):
        return [ctx.generator_now()]
    for block in blocks:
        state = block.inputs[0]
        block.set_outputs(block.outputs[1:])
        block.remove_tensor(state)
    return []


def _emit(
    ctx: Lowering,
    op: str,
    inputs: Sequence[str],
    blocks: Sequence[Graph],
    state: Sequence[str],
    **attrs: int,
) -> list[str]:
    """Add the node; if it returns the generator's state, later draws use that."""
    results = list(ctx.emit_multi(op, inputs, blocks, **attrs))
    if state:
        ctx.generator = results.pop(0)
    return [
        name if type_ is None else represented(name, type_.dtype)
        for name, type_ in zip(results, ctx.outputs, strict=True)
    ]
