"""Check declarations, and link them to the tensors of the file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from taper_openinfer.check.check_context import TEMPORARY, hint
from taper_openinfer.check.tables import check_table, type_problem
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import OinfError, shown
from taper_openinfer.language.graph import CONSTANT, DYNAMIC, ENTRY, PERSISTENT, Assign, Variable
from taper_openinfer.oinf.contents import ScalarValue

if TYPE_CHECKING:
    from taper_openinfer.check.check_context import Context, LinkedVariable
    from taper_openinfer.check.visits import Visit
    from taper_openinfer.oinf.payloads import Value


def check_declarations(context: Context) -> None:
    """Check every variable of every memory section."""
    for variable in context.graph.vars.values():
        linked = context.add(variable, _tensor(context, variable))
        count = len(context.problems)
        _check_init(context, variable)
        _check_cache(context, variable)
        if variable.is_prefix_table:
            check_table(context, variable)
        else:
            metadata = _metadata(context, variable)
            _check_tensor(context, linked, metadata)
            is_right = len(context.problems) == count
            if is_right and variable.kind == CONSTANT and linked.tensor is None:
                _check_constant(context, linked, metadata)
    context.unsound |= {problem.variable for problem in context.problems if problem.variable}


def check_temporaries(context: Context, steps: list[Visit]) -> None:
    """Check the variables that ``assign`` declares."""
    for step in steps:
        kind = step.node.kind
        if not isinstance(kind, Assign):
            continue
        name, place = kind.name, step.node.place
        if step.block != ENTRY:
            context.report("expected assign only in block 'entry'", place, name)
        if name in context.graph.vars:
            memory = context.graph.vars[name].kind
            context.report(f"expected a new name, got the name of a {memory} variable", place, name)
            context.broken.add(name)  # which of both a node means is not known
        elif name in context.variables:
            context.report("expected one assign for each name, got a second one", place, name)
            context.broken.add(name)
        else:
            context.add(Variable(name, TEMPORARY, kind.dtype, kind.dims, place=place))


def _tensor(context: Context, variable: Variable) -> str | None:
    """Return the tensor that gives a variable's initial value, if the file has its data."""
    if variable.kind in (DYNAMIC, PERSISTENT) or variable.is_prefix_table:
        return None
    info = context.model.tensors.get(variable.ref_name or variable.name)
    return info.name if info is not None and info.has_data else None


def _metadata(context: Context, variable: Variable) -> Value | None:
    """Return the metadata with a constant's name, if no tensor has that name."""
    name = variable.ref_name or variable.name
    if variable.kind != CONSTANT or name in context.model.tensors:
        return None
    try:
        return context.model.metadata.typed(name) if name in context.model.metadata else None
    except OinfError as error:
        context.report(str(error), variable.place, variable.name)
        return None


def _check_constant(context: Context, linked: LinkedVariable, metadata: Value | None) -> None:
    """Give a constant without a tensor its value; report one that has no value."""
    variable = linked.declaration
    name, place, tensor = variable.name, variable.place, variable.ref_name or variable.name
    if isinstance(metadata, ScalarValue):
        if (linked.dtype, linked.shape) == (metadata.dtype, ()):
            context.variables[name] = replace(linked, init=metadata.value)
        elif name not in context.broken:
            context.report(
                f"expected {linked.dtype}{list(linked.shape)}, got {metadata.dtype}[] of metadata "
                f"{shown(tensor)} in the file",
                place,
                name,
            )
            context.valueless.add(name)
    elif variable.init is None and (variable.ref_name is None or tensor in context.model.tensors):
        if tensor in context.model.tensors:
            got = f"tensor {shown(tensor)} without data"
        elif metadata is not None:
            got = f"metadata {shown(tensor)}, which is not a number"
        else:
            got = f"none{hint(tensor, [*context.model.tensors, *context.model.metadata])}"
        context.report(
            "expected a value for the constant: a tensor or a number in the file's metadata with "
            f"its name, or @init; got {got}",
            place,
            name,
        )
        context.valueless.add(name)


def _check_tensor(context: Context, linked: LinkedVariable, metadata: Value | None) -> None:
    """Check a variable's declaration against its tensor in the file."""
    variable = linked.declaration
    name, place = variable.name, variable.place
    if variable.kind == PERSISTENT:
        if variable.ref_name is not None:
            context.report("expected @ref on volatile or constant memory", place, name)
        if name in context.model.tensors:
            context.report(
                "expected a persistent variable whose name no tensor of the file has",
                place,
                name,
            )
        return
    tensor = variable.ref_name or name
    info = context.model.tensors.get(tensor)
    if info is None:
        if variable.ref_name is not None and not isinstance(metadata, ScalarValue):
            context.report(f"the file has no tensor {shown(tensor)}, which @ref names", place, name)
            context.valueless.add(name)
    elif name not in context.broken:
        problem = type_problem(linked, tensor, info.dtype, info.shape)
        if problem is not None:
            context.report(problem, place, name)


def _check_init(context: Context, variable: Variable) -> None:
    """Check the type and the range of an initial value."""
    init, dtype = variable.init, DTYPES.get(variable.dtype)
    if init is None or dtype is None:
        return
    if variable.kind == DYNAMIC:
        context.report(
            "expected no @init on dynamic memory, which is set before each step",
            variable.place,
            variable.name,
        )
    if dtype.kind == "bool":
        expected, fits = "true or false", type(init) is bool
    elif dtype.kind == "float":
        expected = f"a number from {dtype.low} to {dtype.high}"
        fits = type(init) in (int, float) and dtype.low <= init <= dtype.high
    else:
        expected = f"a whole number from {dtype.low} to {dtype.high}"
        fits = type(init) is int and dtype.low <= init <= dtype.high
    if not fits or (type(init) is float and not math.isfinite(init)):
        got = str(init).lower() if type(init) is bool else shown(init)
        context.report(
            f"expected @init of {dtype.name}, {expected}, got {got}", variable.place, variable.name
        )


def _check_cache(context: Context, variable: Variable) -> None:
    """Check a variable's indices and its cache attributes."""
    name, place = variable.name, variable.place
    indices, auto_dim = variable.table_indices, variable.auto_dim
    given = {
        "@table": variable.table,
        "@auto_dim": bool(auto_dim),
        "@fixed": bool(variable.fixed),
    }

    def report(message: str) -> None:
        context.report(message, place, name)

    if len(set(indices)) < len(indices):
        report(f"expected each index once, got ({', '.join(indices)})")
    if not variable.is_prefix_table:
        if variable.kind != PERSISTENT:
            for attribute in (attribute for attribute, is_given in given.items() if is_given):
                report(f"expected {attribute} on persistent memory, got {variable.kind}")
        if indices and not variable.is_cache:
            report(f"expected @table or @auto_dim for indices, got ({', '.join(indices)}) without")
    if auto_dim:
        unknown = [index for index in auto_dim if index not in indices]
        if unknown:
            report(
                f"expected indices that the variable declares in @auto_dim, got {shown(unknown[0])}"
            )
        if len(set(auto_dim)) < len(auto_dim):
            report(f"expected each index once in @auto_dim, got {', '.join(auto_dim)}")
        if len(auto_dim) != len(variable.dims):
            report(f"expected one index in @auto_dim for each of {len(variable.dims)} dims, "
                   f"got {len(auto_dim)}")  # fmt: skip
        if not variable.table and len(set(indices)) > len(set(auto_dim) & set(indices)):
            report("expected @table, or every index in @auto_dim")
    if variable.table and not set(indices) - set(auto_dim):
        report("expected an index of the entries with @table, got none")
    for index, limit in variable.fixed.items():
        if index not in indices:
            report(f"expected indices that the variable declares in @fixed, got {shown(index)}")
        if type(limit) is not int or not 0 < limit < 1 << 63:
            report(f"expected a limit above 0 in @fixed, got {shown(index)}={shown(limit)}")
