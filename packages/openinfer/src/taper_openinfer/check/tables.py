"""Check prefix tables: families of the file's tensors under one name."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from taper_openinfer.errors import TextPosition, shown
from taper_openinfer.language.graph import CONSTANT, VOLATILE, Access, Single

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_openinfer.check.check_context import Context, LinkedVariable
    from taper_openinfer.language.graph import Variable
    from taper_openinfer.oinf.reader import Model

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

#: How many entries that loops reach are checked at link time. Further entries are checked at use.
_MAX_ENTRIES = 4096


def check_table(context: Context, variable: Variable) -> None:
    """Check the declaration of a prefix table."""
    name, place, pattern = variable.name, variable.place, variable.pattern or ""
    if variable.kind not in (VOLATILE, CONSTANT):
        context.report(
            f"expected @pattern on volatile or constant memory, got {variable.kind}", place, name
        )
    found = _PLACEHOLDER.findall(pattern)
    if re.search(r"[{}]", _PLACEHOLDER.sub("", pattern)):
        context.report(
            f"expected braces around names in @pattern, got {shown(pattern)}", place, name
        )
    elif not variable.table_indices or set(found) != set(variable.table_indices):
        expected = ", ".join(variable.table_indices) or "at least one, which the variable declares"
        got = ", ".join(dict.fromkeys(found)) or "none"
        context.report(f"expected the indices {expected} in @pattern, got {got}", place, name)
    others = {
        "@ref": variable.ref_name is not None,
        "@table": variable.table,
        "@auto_dim": bool(variable.auto_dim),
        "@fixed": bool(variable.fixed),
    }
    for attribute in (attribute for attribute, is_given in others.items() if is_given):
        context.report(f"expected @pattern without {attribute}, got both", place, name)


def entry_name(variable: Variable, indices: Sequence[int]) -> str:
    """Return the name of the tensor that holds an entry of a prefix table."""
    values = dict(zip(variable.table_indices, map(str, indices), strict=True))
    return _PLACEHOLDER.sub(lambda match: values[match[1]], variable.pattern or "")


def entry_problem(model: Model, linked: LinkedVariable, tensor: str) -> str | None:
    """Return why a tensor cannot be an entry of a prefix table; None if it can."""
    if tensor not in model.tensors:
        return f"the file has no tensor {shown(tensor)}"
    info = model.tensors[tensor]
    if not info.has_data:
        return f"tensor {shown(tensor)} has no data in the file"
    return type_problem(linked, tensor, info.dtype, info.shape)


def type_problem(
    linked: LinkedVariable, tensor: str, dtype: str, shape: Sequence[int]
) -> str | None:
    """Return how a tensor's type differs from the declared one; None if it does not."""
    if (dtype, tuple(shape)) == (linked.dtype, linked.shape):
        return None
    expected = f"{linked.dtype}{list(linked.shape)}"
    return f"expected {expected}, got {dtype}{list(shape)} of tensor {shown(tensor)} in the file"


def check_entries(
    context: Context,
    linked: LinkedVariable,
    access: Access,
    place: TextPosition | None,
    loops: Mapping[str, range | None],
) -> None:
    """Check the entries of a prefix table that an op reads, as far as loop bounds are known."""
    variable = linked.declaration
    singles = [index.value for index in access.indices if isinstance(index, Single)]
    given: dict[int | str, range | None] = {}
    for value in singles:
        given[value] = (
            range(value, value + 1)
            if isinstance(value, int)
            else range(context.model.sizevars[value], context.model.sizevars[value] + 1)
            if value in context.model.sizevars
            else loops.get(value)
        )
    known = [values for values in given.values() if values is not None]
    count = math.prod(max(0, values.stop - values.start) for values in known)
    if len(known) < len(given) or count > min(_MAX_ENTRIES, context.entries_left):
        return
    context.entries_left -= count
    for numbers in itertools.product(*known):
        of = dict(zip(given, numbers, strict=True))
        tensor = entry_name(variable, [of[value] for value in singles])
        problem = entry_problem(context.model, linked, tensor)
        if problem is not None:
            context.report(problem, place, variable.name)
            return
