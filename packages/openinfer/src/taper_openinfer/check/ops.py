"""Check calls of ops by the rules of the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_openinfer.check.accesses import check_operand, check_target, entry_shape
from taper_openinfer.check.check_context import TEMPORARY, LinkedVariable, hint
from taper_openinfer.check.settings import settings_of
from taper_openinfer.errors import NoKernelError, OpenInferError, shown
from taper_openinfer.language.graph import (
    PERSISTENT,
    Access,
    Branch,
    CacheRead,
    CacheWrite,
    Op,
    Transfer,
    Variable,
    Yield,
    describe,
)
from taper_openinfer.language.kinds import accesses
from taper_openinfer.ops import call_rules, output_type, taper
from taper_openinfer.ops.taper import is_taper
from taper_runtime.base.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_openinfer.check.check_context import Context
    from taper_openinfer.check.visits import Visit
    from taper_openinfer.language.graph import Node

#: How many names one message lists.
_MAX_NAMED = 5

_Type = tuple[str, tuple[int, ...]]


def check_ops(context: Context, steps: Sequence[Visit]) -> None:
    """Check every op, and add the temporaries that only ops write.

    An undeclared output gets the element type and the shape of the op's result.
    """
    for step in steps:
        for access in accesses(step.node.kind)[1]:
            if access.base not in context.variables:
                context.made.setdefault(access.base, step)
    context.varying |= _varying(context, steps)
    read = _read(steps)
    undeclared: dict[int, list[Visit]] = {}  # by the cache.read that makes their shapes vary
    for step in steps:
        if isinstance(step.node.kind, Op):
            _check_op(context, step, step.node.kind, read, undeclared)
    for found in undeclared.values():
        _report_undeclared(context, found)


def _varying(context: Context, steps: Sequence[Visit]) -> dict[str, Node]:
    """Return the variables whose shapes depend on a cache's size, each with its ``cache.read``."""
    readers: dict[str, set[str]] = {}
    waiting: list[tuple[str, Node]] = []
    for step in steps:
        kind = step.node.kind
        if isinstance(kind, CacheRead):
            if _varies(context, kind.src):
                waiting.append((kind.dst.base, step.node))
        elif isinstance(kind, Op):
            for access in kind.inputs:
                readers.setdefault(access.base, set()).add(kind.output.base)
        elif isinstance(kind, Transfer):
            readers.setdefault(kind.src.base, set()).add(kind.dst.base)
    found: dict[str, Node] = {}
    while waiting:
        name, node = waiting.pop()
        if name not in found:
            found[name] = node
            waiting += [(reader, node) for reader in sorted(readers.get(name, ()))]
    return found


def _varies(context: Context, access: Access) -> bool:
    """Return whether the shape of a cache access may differ between steps."""
    linked = context.variables.get(access.base)
    if linked is None or linked.declaration.kind != PERSISTENT:
        return False
    return entry_shape(context, linked, access) is None


def _check_op(
    context: Context, step: Visit, kind: Op, read: set[str], undeclared: dict[int, list[Visit]]
) -> None:
    """Check one call, and declare its output if no ``assign`` does.

    ``read`` holds the names that any node reads. Undeclared outputs of varying shape are added to
    ``undeclared``, by the index of the ``cache.read`` that makes them vary.
    """
    name, place = kind.output.base, step.node.place
    inputs = [check_operand(context, step, access) for access in kind.inputs]
    is_declared = name in context.variables
    output = check_target(context, step, kind.output) if is_declared else None
    known = [linked for linked in inputs if linked is not None]
    read_names = {linked.declaration.name for linked in known}
    result = None
    is_right = len(known) == len(inputs) and is_declared == (output is not None)
    is_right = is_right and not (read_names | {name}) & context.broken
    try:
        if is_taper(kind.op):
            taper.definition(kind.op)
        else:
            call_rules.find(kind.op)
        settings = settings_of(kind, context.model, context.variables, step.loops)
        if is_right and not context.valueless.intersection(map(str, kind.settings.values())):
            result = _result(context, kind, known, settings, output)
        else:
            is_right = False
    except (NoKernelError, OpError) as error:
        context.report(str(error), place)
        is_right = False
        if isinstance(error, NoKernelError) and output is not None and error.suits_inputs:
            context.lose(name)  # the declaration is wrong
    except OpenInferError as error:
        context.report(f"{kind.op}: {error}", place)
        is_right = False
    varying = [context.varying[each] for each in sorted(read_names) if each in context.varying]
    if not is_declared and varying and not kind.output.bracketed and name in read:
        undeclared.setdefault(varying[0].index, []).append(step)
        context.varying.setdefault(name, varying[0])
        context.lose(name)
    elif not is_right:
        if not is_declared:  # do not report its readers too
            context.lose(name)
    elif output is None:
        _declare(context, step, kind, result, read)
    elif result is not None and result[1] != output.shape:
        context.report(
            f"expected the declared shape {list(output.shape)}, got {list(result[1])} "
            f"of {shown(kind.op)}",
            place,
            name,
        )
        context.lose(name)


def _report_undeclared(context: Context, steps: Sequence[Visit]) -> None:
    """Report temporaries of varying shapes that no ``assign`` declares, by cause."""
    first, *others = dict.fromkeys(
        step.node.kind.output.base for step in steps if isinstance(step.node.kind, Op)
    )
    read = context.varying[first]
    where = "" if read.place is None else f" at {read.place}"
    rest = f"; so do {', '.join(map(shown, others[:_MAX_NAMED]))}" if others else ""
    rest += f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
    context.report(
        "expected an assign that declares it, because its shape is known only when the program "
        f"runs: each step may give '{describe(read.kind)}'{where} another shape{rest}",
        steps[0].node.place,
        first,
    )


def _result(
    context: Context,
    kind: Op,
    inputs: Sequence[LinkedVariable],
    settings: dict[str, Any],
    output: LinkedVariable | None,
) -> _Type | None:
    """Return the type of an op's result, or None if a shape is unknown.

    Element types are checked in both cases.
    """
    named = {linked.declaration.name for linked in inputs}
    if output is not None:
        named.add(output.declaration.name)
    declared = output.dtype if output is not None else None
    if not named & context.varying.keys():
        types = [(linked.dtype, linked.shape) for linked in inputs]
        return output_type(kind.op, types, settings, declared, context.device)
    if is_taper(kind.op):
        taper.attrs_of(kind.op, settings)
        return None
    spec = call_rules.find(kind.op)
    if len(inputs) != spec.arity:
        output_type(kind.op, [(linked.dtype, linked.shape) for linked in inputs], settings)
    dtypes = [linked.dtype for linked in inputs]
    settings = call_rules.complete(kind.op, dtypes, settings)
    call_rules.checked_dtype(kind.op, dtypes, settings, declared, context.device)
    return None


def _declare(context: Context, step: Visit, kind: Op, result: _Type | None, read: set[str]) -> None:
    """Add a temporary that no ``assign`` declares."""
    name, place = kind.output.base, step.node.place
    if kind.output.bracketed:
        context.report(f"expected a variable, got {kind.output}", place)
        return
    if name not in read:
        known = [name for name in context.variables if name != kind.output.base]
        context.report(
            f"expected a variable, or a new name that a later node reads, got {shown(name)}"
            f"{hint(name, known)}",
            place,
        )
    if result is None:
        context.lose(name)
        return
    dtype, shape = result
    declaration = Variable(name, TEMPORARY, dtype, tuple(map(str, shape)), place=place)
    context.variables[name] = LinkedVariable(declaration, dtype, shape)


def _read(steps: Sequence[Visit]) -> set[str]:
    """Return the names that nodes read."""
    found: set[str] = set()
    for step in steps:
        match step.node.kind:
            case Op(inputs=inputs):
                found |= {access.base for access in inputs}
            case CacheWrite(src=src) | Transfer(src=src):
                found.add(src.base)
            case Branch(condition=str(condition)):
                found.add(condition)
            case Yield(names=names):
                found |= {*names}
    return found
