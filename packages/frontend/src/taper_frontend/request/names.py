"""Name the inputs and outputs of a plan.

A name is the path to a tensor, its parts joined by dots: the argument, then keys, fields and
positions (``batch.x``, ``past_key_values.0.key``). A path to a result has no argument to begin
with: a bare tensor is ``output``, and a path that begins with a position begins with ``output_``
(``output_0``, ``output_1.scores``). An output that would have the name of an input or a state is
called ``output_`` and that name. So names follow from the signature of the module and from the
structure of what it returns, and from nothing inside it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError
from taper_frontend.lowering.pytrees import argument_placeholders, leaf_paths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import torch
    from torch.export import ExportedProgram
    from torch.utils._pytree import TreeSpec


def argument_names(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the name of each argument; those of ``*args`` are numbered."""
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = len(args) - len(names)
            names += [f"{parameter.name}_{i}" for i in range(rest)]
            break
        names.append(parameter.name)
    return [*names[: len(args)], *kwargs]


def leaf_names(arguments: Sequence[str], spec: TreeSpec) -> list[str]:
    """Return the name of each leaf of ``(args, kwargs)``.

    Parameters
    ----------
    arguments : sequence of str
        The names of the arguments, positional ones first.
    spec : TreeSpec
        Of ``(args, kwargs)``.
    """
    children = [child for part in spec.children() for child in part.children()]
    paths = [
        (name, *path)
        for name, child in zip(arguments, children, strict=True)
        for path in leaf_paths(child)
    ]
    return _distinct(map(_join, paths))


def input_names(program: ExportedProgram) -> dict[str, str]:
    """Return the name of each argument's placeholder -> the name of the input."""
    leaves = argument_placeholders(program)
    spec = program.call_spec.in_spec
    signature = program.module_call_graph[0].signature
    arguments = signature.forward_arg_names if signature is not None else None
    if (
        spec is None
        or not arguments
        or len(arguments) != sum(part.num_children for part in spec.children())
    ):  # made by another version of torch
        return {name: name for name in leaves}
    return dict(zip(leaves, leaf_names(arguments, spec), strict=True))


def output_names(spec: TreeSpec, taken: Collection[str]) -> list[str]:
    """Return the name of each leaf of a module's result.

    Parameters
    ----------
    spec : TreeSpec
    taken : collection of str
        The names of inputs and states.
    """
    names = [
        _join(path if path and isinstance(path[0], str) else _of_output(path))
        for path in leaf_paths(spec)
    ]
    return _distinct((f"output_{name}" if name in taken else name for name in names), taken)


def check_names(what: str, given: Sequence[str], defaults: Sequence[str]) -> None:
    """Check the names that a user gives the inputs or the outputs.

    Parameters
    ----------
    what : str
        ``"input_names"`` or ``"output_names"``.
    given : sequence of str
    defaults : sequence of str
        What they are called otherwise.

    Raises
    ------
    ExportError
        If they are not as many as ``defaults``, or no strings that can be printed, or one comes
        twice.
    """
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ExportError(f"{what}: expected a sequence of strings, got {given!r}")
    if len(given) != len(defaults):
        raise ExportError(
            f"{what}: expected {len(defaults)} (for {', '.join(defaults) or 'no tensor'}), "
            f"got {len(given)}: {', '.join(given)}"
        )
    for index, name in enumerate(given):
        if not name or not name.isprintable():
            raise ExportError(f"{what}: expected printable names, got {name!r}")
        if name in given[:index]:
            raise ExportError(f"{what}: expected each name once, got {name!r} twice")


def _of_output(path: Sequence[str | int]) -> Sequence[str | int]:
    return [f"output_{path[0]}", *path[1:]] if path else ["output"]


def _join(path: Sequence[str | int]) -> str:
    text = ".".join(map(str, path))
    return "".join(c if c.isprintable() else "_" for c in text)


def _distinct(names: Iterable[str], taken: Collection[str] = ()) -> list[str]:
    """Return the names, with a number after those that came before or are taken."""
    seen = dict.fromkeys(taken)
    for name in names:
        free, number = name, 0
        while free in seen:
            number += 1
            free = f"{name}_{number}"
        seen[free] = None
    return list(seen)[len(dict.fromkeys(taken)) :]
