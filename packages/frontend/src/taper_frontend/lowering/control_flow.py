"""Control flow: branches and loops whose bodies torch.export gives as graphs of their own.

torch lifts what a body uses of the module to operands of the node: weights too. A constant becomes
the body's own; what is left are carries, slices of what is stepped over, and other tensors.

Random numbers continue one sequence through branches and loops: where a body draws some, the state
of the generator is its first input and its first result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import GraphModule

from taper_frontend.lowering.fx_nodes import draws
from taper_frontend.lowering.numbers import as_tensor
from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.lowering.context import Lowering, Operand


@lowers("cond")
def cond(
    ctx: Lowering,
    predicate: Operand,
    then: GraphModule,
    otherwise: GraphModule,
    operands: Sequence[Operand],
) -> list[str]:
    """Run one of two branches."""
    state = _generator(ctx, then, otherwise)
    blocks = [
        ctx.block(then, "then", [], operands, state),
        ctx.block(otherwise, "else", [], operands, state),
    ]
    inputs = [ctx.reshape(as_tensor(ctx, predicate), ()), *state, *ctx.free(operands)]
    return _emit(ctx, "IF", inputs, blocks, state)


@lowers("while_loop")
def while_loop(
    ctx: Lowering,
    condition: GraphModule,
    body: GraphModule,
    carries: Sequence[Operand],
    others: Sequence[Operand],
) -> list[str]:
    """Run a body as long as a condition holds; an integer is carried as a scalar."""
    if _draws(condition):
        ctx.unsupported("the condition of a loop draws random numbers; draw them in its body")
    state = _generator(ctx, body)
    first = [as_tensor(ctx, value) for value in carries]
    types = [ctx.type(name) for name in first]
    blocks = [
        ctx.block(condition, "condition", types, others, state, advances=False),
        ctx.block(body, "body", types, others, state),
    ]
    inputs = [*state, *first, *ctx.free(others)]
    return _emit(ctx, "WHILE", inputs, blocks, state, carries=len(state) + len(first))


@lowers("scan")
def scan(
    ctx: Lowering,
    body: GraphModule,
    carries: Sequence[str],
    xs: Sequence[str],
    others: Sequence[Operand],
) -> list[str]:
    """Step along the first axis of some tensors."""
    state = _generator(ctx, body)
    items = [ctx.type(name) for name in xs]
    types = [
        *(ctx.type(name) for name in carries),
        *(item._replace(shape=item.shape[1:]) for item in items),
    ]
    inputs = [*state, *carries, *xs, *ctx.free(others)]
    block = ctx.block(body, "body", types, others, state)
    return _emit(ctx, "SCAN", inputs, [block], state, carries=len(state) + len(carries), xs=len(xs))


@lowers("map_impl")
def map_(
    ctx: Lowering, body: GraphModule, xs: Sequence[str], others: Sequence[Operand]
) -> list[str]:
    """Compute each item of some tensors: steps that carry nothing."""
    return scan(ctx, body, [], xs, others)


def _generator(ctx: Lowering, *bodies: GraphModule) -> list[str]:
    """Return the state of the generator, as the only element, if a body draws random numbers."""
    return [ctx.generator_now()] if any(map(_draws, bodies)) else []


def _draws(module: GraphModule) -> bool:
    graphs = (part.graph for part in module.modules() if isinstance(part, GraphModule))
    return any(draws(node) for graph in graphs for node in graph.nodes)


def _emit(
    ctx: Lowering,
    op: str,
    inputs: Sequence[str],
    blocks: Sequence[Graph],
    state: Sequence[str],
    **attrs: int,
) -> list[str]:
    """Add the node; where it passes the state of the generator on, that is what comes next."""
    results = ctx.emit_blocks(op, inputs, blocks, **attrs)
    if state:
        ctx.generator = results.pop(0)
    return results
