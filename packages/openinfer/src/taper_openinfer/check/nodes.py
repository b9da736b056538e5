"""Check nodes other than ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.check.accesses import (
    check_cache,
    check_operand,
    check_target,
    entry_shape,
)
from taper_openinfer.check.check_context import describe_variable
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import shown
from taper_openinfer.language.graph import (
    ENTRY,
    PERSISTENT,
    Access,
    Await,
    Branch,
    CacheDecrement,
    CacheIncrement,
    CacheRead,
    CacheReset,
    CacheWrite,
    Dep,
    Loop,
    Single,
    Transfer,
    Yield,
    describe,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_openinfer.check.check_context import Context, LinkedVariable
    from taper_openinfer.check.visits import Visit

_MAX_AMOUNT = (1 << 63) - 1

#: Kinds of element types that ``cache.increment`` and ``cache.decrement`` accept.
_COUNTED = ("float", "signed", "unsigned")


def check_nodes(context: Context, steps: Sequence[Visit]) -> None:
    """Check every node that is not an op."""
    for step in steps:
        kind = step.node.kind
        match kind:
            case CacheRead():
                _check_read(context, step, kind)
            case CacheWrite():
                _check_write(context, step, kind)
            case CacheIncrement() | CacheDecrement():
                _check_count(context, step, kind)
            case CacheReset():
                _check_reset(context, step, kind)
            case Loop():
                _check_loop(context, step, kind)
            case Branch():
                _check_branch(context, step, kind)
            case Dep():
                for words in (kind.after, kind.before):
                    for word in words.split("."):
                        context.check_name(word, step.node.place)
            case Transfer():
                _check_transfer(context, step, kind)
            case Yield() | Await():
                for name in kind.names:
                    _check_handed(context, step, name)
    _check_awaited(context, steps)


def _check_read(context: Context, step: Visit, kind: CacheRead) -> None:
    src, dst = check_cache(context, step, kind.src), check_target(context, step, kind.dst)
    if src is not None and dst is not None:
        shape = entry_shape(context, src, kind.src)
        _check_same(context, step, (str(kind.src), src, shape), (kind.dst.base, dst, dst.shape))


def _check_write(context: Context, step: Visit, kind: CacheWrite) -> None:
    """Check the source, the target and the types of a ``cache.write``."""
    src, dst = check_operand(context, step, kind.src), check_cache(context, step, kind.dst)
    if dst is None:
        return
    indices, declared = kind.dst.indices, dst.declaration.table_indices
    if len(indices) != len(declared) or not all(isinstance(index, Single) for index in indices):
        context.report(
            f"expected one position for each of the indices ({', '.join(declared)}), "
            f"got {kind.dst}",
            step.node.place,
            kind.dst.base,
        )
    elif src is not None:
        shape = entry_shape(context, dst, kind.dst)
        _check_same(context, step, (str(kind.src), src, src.shape), (str(kind.dst), dst, shape))


def _check_same(
    context: Context,
    step: Visit,
    src: tuple[str, LinkedVariable, tuple[int, ...] | None],
    dst: tuple[str, LinkedVariable, tuple[int, ...] | None],
) -> None:
    """Check that the source and the target of a copy have the same type.

    ``src`` and ``dst`` hold the text of the access, the variable, and the shape if it is known.
    """
    (text, of, shape), (target, to, expected) = src, dst
    name = to.declaration.name
    both = {of.declaration.name, name}
    if both & context.broken:
        return
    if of.dtype != to.dtype:
        context.report(
            f"expected {to.dtype} for {target}, got {of.dtype} of {text}", step.node.place, name
        )
    elif None not in (shape, expected) and shape != expected and not both & context.varying.keys():
        context.report(
            f"expected shape {list(expected or ())} for {target}, "
            f"got {list(shape or ())} of {text}",
            step.node.place,
            name,
        )


def _check_count(context: Context, step: Visit, kind: CacheIncrement | CacheDecrement) -> None:
    """Check the target and the amount of a ``cache.increment`` or ``cache.decrement``."""
    linked = check_cache(context, step, Access(kind.target))
    if linked is None:
        return
    if not context.is_scalar(linked) or DTYPES[linked.dtype].kind not in _COUNTED:
        context.report(
            f"expected one number of an integer or a float type, got {describe_variable(linked)}",
            step.node.place,
            kind.target,
        )
    if not 0 <= kind.amount <= _MAX_AMOUNT:
        context.report(
            f"expected an amount from 0 to {_MAX_AMOUNT}, got {shown(kind.amount)}",
            step.node.place,
            kind.target,
        )


def _check_reset(context: Context, step: Visit, kind: CacheReset) -> None:
    """Check a ``cache.reset``: its indices are positions, and none is an index of @auto_dim."""
    linked = check_cache(context, step, kind.target)
    if linked is None:
        return
    declaration = linked.declaration
    selected = zip(declaration.table_indices, kind.target.indices, strict=False)
    grown = [name for name, _ in selected if name in declaration.auto_dim]
    if grown:
        context.report(
            f"expected no index of @auto_dim in a reset, got {kind.target}",
            step.node.place,
            kind.target.base,
        )
    elif not all(isinstance(index, Single) for index in kind.target.indices):
        context.report(
            f"expected positions in a reset, got {kind.target}", step.node.place, kind.target.base
        )


def _check_loop(context: Context, step: Visit, kind: Loop) -> None:
    """Check a loop's names, and that its bounds are whole numbers."""
    context.check_name(kind.name, step.node.place)
    context.check_name(kind.index, step.node.place)
    if kind.index in context.model.sizevars:
        context.report(
            f"expected a new name for the loop's variable, got the sizevar {shown(kind.index)}",
            step.node.place,
        )
    for bound in (kind.start, kind.end):
        if isinstance(bound, int):
            if not 0 <= bound <= _MAX_AMOUNT:
                context.report(
                    f"expected a bound from 0 to {_MAX_AMOUNT}, got {shown(bound)}", step.node.place
                )
        elif bound not in context.model.sizevars and bound not in step.loops:
            linked = context.find(
                bound, step.node.place, "a bound: a number, a sizevar or a scalar"
            )
            if linked is not None and not context.is_whole(linked):
                context.report(
                    f"expected a whole number as bound, got {describe_variable(linked)}",
                    step.node.place,
                    bound,
                )


def _check_branch(context: Context, step: Visit, kind: Branch) -> None:
    """Check that a branch's blocks exist, and that its condition is one value."""
    place = step.node.place
    for target in (kind.then, kind.otherwise):
        if target is not None and target not in context.graph.blocks:
            known = ", ".join(map(shown, context.graph.blocks))
            context.report(f"expected a block to branch to ({known}), got {shown(target)}", place)
    if (kind.condition is None) != (kind.otherwise is None):
        context.report(
            f"expected a condition and two blocks, or one block, got '{describe(kind)}'", place
        )
    if kind.condition is None:
        return
    linked = check_operand(context, step, Access(kind.condition))
    if linked is not None and not context.is_scalar(linked):
        context.report(
            f"expected one value as condition, got {describe_variable(linked)}",
            place,
            kind.condition,
        )


def _check_transfer(context: Context, step: Visit, kind: Transfer) -> None:
    src, dst = check_operand(context, step, kind.src), check_target(context, step, kind.dst)
    if src is not None and dst is not None:
        _check_same(context, step, (str(kind.src), src, src.shape), (kind.dst.base, dst, dst.shape))


def _check_handed(context: Context, step: Visit, name: str) -> None:
    """Check a variable in a ``yield`` or an ``await``."""
    linked = context.find(name, step.node.place)
    if linked is not None and (
        linked.declaration.kind == PERSISTENT or linked.declaration.is_prefix_table
    ):
        context.report(
            f"expected a variable of a step, got {describe_variable(linked)}", step.node.place, name
        )


def _check_awaited(context: Context, steps: Sequence[Visit]) -> None:
    """Check that ``entry`` yields every variable that a block awaits."""
    kinds = [(step, step.node.kind) for step in steps]
    yielded = {
        name
        for step, kind in kinds
        if isinstance(kind, Yield) and step.block == ENTRY
        for name in kind.names
    }
    for step, kind in kinds:
        for name in kind.names if isinstance(kind, Await) else ():
            if name not in yielded and name in context.variables:
                context.report(
                    f"expected a variable that block '{ENTRY}' yields", step.node.place, name
                )
