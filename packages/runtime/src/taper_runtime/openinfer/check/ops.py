"""Check calls of ops by the rules that the ops have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.errors import OpError
from taper_runtime.openinfer.check.accesses import check_operand, check_target
from taper_runtime.openinfer.check.context import TEMPORARY, LinkedVariable, hint
from taper_runtime.openinfer.check.settings import settings_of
from taper_runtime.openinfer.errors import NoKernelError, OpenInferError, shown
from taper_runtime.openinfer.graph import (
    PERSISTENT,
    Access,
    Branch,
    CacheRead,
    CacheWrite,
    Op,
    Slice,
    Transfer,
    Variable,
    Yield,
)
from taper_runtime.openinfer.ops import output_type, rules, taper
from taper_runtime.openinfer.ops.taper import is_taper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.openinfer.check.context import Context
    from taper_runtime.openinfer.check.walk import Step

_Type = tuple[str, tuple[int, ...]]


def check_ops(context: Context, steps: Sequence[Step]) -> None:
    """Check every op, and declare the temporaries that ops alone write.

    An output that nothing declares gets the element type and shape that the op gives.
    """
    context.unsure |= _varying(context, steps)
    read = _read(steps)
    for step in steps:
        if isinstance(step.node.kind, Op):
            _check_op(context, step, step.node.kind, read)


def _varying(context: Context, steps: Sequence[Step]) -> set[str]:
    """Variables that take the shape of what a cache gives, and what is computed from them."""
    readers: dict[str, set[str]] = {}
    waiting: list[str] = []
    for step in steps:
        kind = step.node.kind
        if isinstance(kind, CacheRead):
            if _grows(context, kind.src):
                waiting.append(kind.dst.base)
        elif isinstance(kind, Op):
            for access in kind.inputs:
                readers.setdefault(access.base, set()).add(kind.output.base)
        elif isinstance(kind, Transfer):
            readers.setdefault(kind.src.base, set()).add(kind.dst.base)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += readers.get(name, ())
    return found


def _grows(context: Context, access: Access) -> bool:
    """Whether what a cache gives has another shape in another step."""
    linked = context.variables.get(access.base)
    if linked is None or linked.declaration.kind != PERSISTENT:
        return False
    declaration = linked.declaration
    if declaration.auto_dim:
        return True
    names = declaration.table_indices
    given = (*access.indices, *[Slice()] * (len(names) - len(access.indices)))
    return any(
        isinstance(index, Slice) and not (index == Slice() and name in declaration.fixed)
        for name, index in zip(names, given, strict=False)
    )


def _check_op(context: Context, step: Step, kind: Op, read: set[str]) -> None:
    inputs = [check_operand(context, step, access) for access in kind.inputs]
    is_declared = kind.output.base in context.variables
    output = check_target(context, step, kind.output) if is_declared else None
    known = [linked for linked in inputs if linked is not None]
    result = None
    is_right = len(known) == len(inputs) and is_declared == (output is not None)
    try:
        if is_right:
            settings = settings_of(kind, context.model, context.variables)
            result = _result(context, kind, known, settings, output)
    except (NoKernelError, OpError) as error:
        context.report(str(error), step.node.place)
        is_right = False
    except OpenInferError as error:
        context.report(f"{kind.op}: {error}", step.node.place)
        is_right = False
    if not is_right:
        if not is_declared:  # so that whoever reads it is not refused too
            dtype = known[0].dtype if known else "f32"
            context.unsure.add(kind.output.base)
            context.add(Variable(kind.output.base, TEMPORARY, dtype))
    elif output is None:
        _declare(context, step, kind, result, read)
    elif result is not None and result[1] != output.shape:
        context.report(
            f"expected shape {list(output.shape)}, as it is declared, got {list(result[1])} "
            f"of {shown(kind.op)}",
            step.node.place,
            kind.output.base,
        )


def _result(
    context: Context,
    kind: Op,
    inputs: Sequence[LinkedVariable],
    settings: dict[str, Any],
    output: LinkedVariable | None,
) -> _Type | None:
    """Return what an op gives; None where shapes are not known, of which only types are checked."""
    named = {linked.declaration.name for linked in inputs}
    if output is not None:
        named.add(output.declaration.name)
    declared = output.dtype if output is not None else None
    if not named & context.unsure:
        types = [(linked.dtype, linked.shape) for linked in inputs]
        return output_type(kind.op, types, settings, declared, context.device)
    if is_taper(kind.op):
        taper.attrs_of(kind.op, settings)
        return None
    spec = rules.find(kind.op)
    if len(inputs) != spec.arity:
        output_type(kind.op, [(linked.dtype, linked.shape) for linked in inputs], settings)
    dtypes = [linked.dtype for linked in inputs]
    result = rules.result_dtype(kind.op, dtypes, rules.complete(kind.op, dtypes, settings))
    if result is None or declared not in (None, result):
        known = rules.existing(kind.op)
        raise NoKernelError(kind.op, [*dtypes, declared or "any"], context.device, known)
    return None


def _declare(context: Context, step: Step, kind: Op, result: _Type | None, read: set[str]) -> None:
    """Know a temporary that no ``assign`` declares."""
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
    elif result is None:
        context.report(
            "expected an assign that declares it, as its shape is known only when the program runs",
            place,
            name,
        )
    dtype, shape = result or ("f32", ())
    declaration = Variable(name, TEMPORARY, dtype, tuple(map(str, shape)), place=place)
    context.variables[name] = LinkedVariable(declaration, dtype, shape)


def _read(steps: Sequence[Step]) -> set[str]:
    """The names that nodes read."""
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
