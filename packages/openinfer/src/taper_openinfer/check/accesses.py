"""Check accesses with indices: entries of prefix tables and of caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.check.check_context import describe_variable
from taper_openinfer.check.tables import check_entries
from taper_openinfer.language.graph import CONSTANT, PERSISTENT, Access, Op, Single, Slice, describe
from taper_runtime.base.text import counted

if TYPE_CHECKING:
    from taper_openinfer.check.check_context import Context, LinkedVariable
    from taper_openinfer.check.visits import Visit


def check_operand(context: Context, step: Visit, access: Access) -> LinkedVariable | None:
    """Check an operand that an op or a transfer reads; return its variable if it is readable."""
    name, place = access.base, step.node.place
    if name not in context.variables and name in context.made:
        _check_order(context, step, name)
        return None
    linked = context.find(name, place)
    if linked is None:
        return None
    if linked.declaration.kind == PERSISTENT:
        context.report("expected cache.read for persistent memory, got an op", place, name)
        return None
    if linked.declaration.is_prefix_table:
        return linked if _check_entry(context, step, linked, access) else None
    if access.bracketed:
        context.report(
            "expected no brackets, which only prefix tables and caches can have, got "
            f"{describe_variable(linked)}",
            place,
            name,
        )
        return None
    return linked


def _check_order(context: Context, step: Visit, name: str) -> None:
    """Report, once per name, an undeclared temporary that is read before a node writes it."""
    node, block, *_ = context.made[name]
    if name in context.missing or not isinstance(node.kind, Op):
        return  # another node is told that nothing declares what it writes
    context.missing.add(name)
    where = "" if node.place is None else f" at {node.place}"
    writer = f"'{describe(node.kind)}'{where}"
    context.report(
        f"expected an assign that declares it, because it is read before {writer} writes it"
        if block == step.block
        else f"expected an assign that declares it, because another block writes it, in {writer}",
        step.node.place,
        name,
    )


def _check_entry(context: Context, step: Visit, linked: LinkedVariable, access: Access) -> bool:
    """Check an access to a prefix table; return whether it is right."""
    declared = linked.declaration.table_indices
    is_entry = len(access.indices) == len(declared) and all(
        isinstance(index, Single) for index in access.indices
    )
    if not is_entry:
        context.report(
            f"expected an entry with the indices ({', '.join(declared)}), got {access}",
            step.node.place,
            access.base,
        )
        return False
    count = len(context.problems)
    _check_indices(context, step, access, linked)
    if len(context.problems) == count and access.base not in context.unsound:
        check_entries(context, linked, access, step.node.place, step.loops)
    return True


def check_target(context: Context, step: Visit, access: Access) -> LinkedVariable | None:
    """Check what an op, a cache.read or a transfer writes; return its variable if writable."""
    name, place = access.base, step.node.place
    linked = context.find(name, place, "a variable to write, or an assign that declares one")
    if linked is None:
        return None
    kind = linked.declaration.kind
    if linked.declaration.is_prefix_table:
        context.report("expected a variable that can be written, got a prefix table", place, name)
    elif kind == CONSTANT:
        context.report("expected a variable that can be written, got a constant", place, name)
    elif kind == PERSISTENT:
        context.report("expected cache.write for persistent memory", place, name)
    elif access.bracketed:
        context.report(
            f"expected the name of a variable without indices, got {access}", place, name
        )
    else:
        return linked
    return None


def check_cache(context: Context, step: Visit, access: Access) -> LinkedVariable | None:
    """Check an access to a cache; return its variable if it is one."""
    linked = context.find(access.base, step.node.place, "a persistent variable")
    if linked is None:
        return None
    declaration = linked.declaration
    if declaration.kind != PERSISTENT:
        context.report(
            f"expected a persistent variable, got {describe_variable(linked)}",
            step.node.place,
            access.base,
        )
        return None
    if access.indices and not declaration.table_indices:
        context.report(
            f"expected no indices without @table or @auto_dim, got {access}",
            step.node.place,
            access.base,
        )
        return None
    if len(access.indices) > len(declaration.table_indices):
        most = counted(len(declaration.table_indices), "index").replace("indexs", "indices")
        context.report(f"expected at most {most}, got {access}", step.node.place, access.base)
        return None
    _check_indices(context, step, access, linked)
    return linked


def _check_indices(context: Context, step: Visit, access: Access, linked: LinkedVariable) -> None:
    """Check that the values of an access's indices are known and not negative."""
    place, loops = step.node.place, tuple(step.loops)
    for index in access.indices:
        values = (index.value,) if isinstance(index, Single) else (index.start, index.end)
        for value in values:
            if value is not None:
                context.check_value(value, place, loops, linked.declaration)
        first = values[0]
        if isinstance(first, int) and first < 0:
            context.report(
                f"expected a negative number only as the end of a range, got {access}",
                place,
                access.base,
            )


def entry_shape(context: Context, linked: LinkedVariable, access: Access) -> tuple[int, ...] | None:
    """Return the shape that an access to a cache selects, or None if only a run knows it."""
    declaration = linked.declaration
    if declaration.auto_dim:
        return None
    names = declaration.table_indices
    indices = (*access.indices, *[Slice()] * (len(names) - len(access.indices)))
    lengths = [
        _length(context, index, declaration.fixed.get(name))
        for name, index in zip(names, indices, strict=False)
        if isinstance(index, Slice)
    ]
    known = tuple(length for length in lengths if length is not None)
    return (*known, *linked.shape) if len(known) == len(lengths) else None


def _length(context: Context, index: Slice, size: int | None) -> int | None:
    """Return how many entries an index range selects, or None if only a run knows it.

    ``size`` is the table's initial number of entries along this index, if known.
    """
    start = 0 if index.start is None else _known(context, index.start)
    end = size if index.end is None else _known(context, index.end)
    if end is not None and end < 0:  # counts from the size
        end = None if size is None else size + end
    if start is None or end is None or not 0 <= start <= end or (size is not None and end > size):
        return None  # all but the first two are errors, now or when it runs
    return end - start


def _known(context: Context, value: int | str) -> int | None:
    return value if isinstance(value, int) else context.model.sizevars.get(value)
