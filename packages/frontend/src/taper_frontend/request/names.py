"""Name the inputs and outputs of a plan.

A name is the path to a tensor, with its parts joined by dots: the argument, then keys, fields and
positions (``batch.x``, ``past_key_values.0.key``). A path to a result has no argument: a bare
tensor is ``output``, and a path that starts with a position gets the prefix ``output_``
(``output_0``, ``output_1.scores``). An output that would have the name of an input or a state also
gets this prefix. So names depend only on the signature of the module and the structure of its
result.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError
from taper_frontend.lowering.pytrees import leaf_paths
from taper_runtime.plan.trees import TENSORS, leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import torch

    from taper_frontend.lowering.pytrees import Tree, TreeStructure


def names_of_leaves(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the name of each leaf of the arguments of a module, ``(args, kwargs)``.

    Arguments of ``*args`` are numbered.
    """
    from torch.utils._pytree import tree_structure

    from taper_frontend.request.torch_trees import structure

    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = len(args) - len(names)
            names += [f"{parameter.name}_{i}" for i in range(rest)]
            break
        names.append(parameter.name)
    arguments = [*names[: len(args)], *kwargs]
    return _leaf_names(arguments, structure(tree_structure((args, kwargs))))


def _leaf_names(arguments: Sequence[str], spec: TreeStructure) -> list[str]:
    """Return the name of each leaf of ``(args, kwargs)``.

    Parameters
    ----------
    arguments : sequence of str
        The names of the arguments, positional ones first.
    spec : TreeStructure
        The structure of ``(args, kwargs)``.
    """
    children = [child for part in spec.children for child in part.children]
    paths = [
        (name, *path)
        for name, child in zip(arguments, children, strict=True)
        for path in leaf_paths(child)
    ]
    return _distinct(map(_join, paths))


def input_names(
    placeholders: Sequence[str], spec: TreeStructure | None, arguments: Sequence[str] | None
) -> dict[str, str]:
    """Return the name of the input for each argument's placeholder.

    Parameters
    ----------
    placeholders : sequence of str
    spec : TreeStructure, optional
        The structure of ``(args, kwargs)``.
    arguments : sequence of str, optional
        The names of the arguments of the module's forward.
    """
    if (
        spec is None
        or not arguments
        or len(arguments) != sum(len(part.children) for part in spec.children)
    ):  # made by another version of torch
        return {name: name for name in placeholders}
    return dict(zip(placeholders, _leaf_names(arguments, spec), strict=True))


def output_names(
    spec: TreeStructure,
    tree: Tree,
    taken: Collection[str],
    given: Sequence[str] | None = None,
    written: Sequence[str] = (),
) -> list[str]:
    """Return the name of each output of a plan.

    Parameters
    ----------
    spec : TreeStructure
        Of a module's result.
    tree : plain data
        The same as a plan has it, which says which of its leaves are outputs.
    taken : collection of str
        The names of inputs and states.
    given : sequence of str, optional
        The names of the outputs, where a user gives them.
    written : sequence of str
        The names of the last outputs, which are new values of inputs.

    Raises
    ------
    ExportError
        If those do not fit the outputs, or an input or a state has one of them.
    """
    paths = [
        _join(path if path and isinstance(path[0], str) else _of_output(path))
        for path in leaf_paths(spec)
    ]
    own = (f"output_{name}" if name in taken else name for name in paths)
    distinct = _distinct([*own, *written], taken)
    kinds = [kind for kind, _ in leaves(tree)]
    names = [name for name, kind in zip(distinct, kinds, strict=True) if kind in TENSORS]
    if given is None:
        return names
    check_names("output_names", given, names)
    if clash := set(given) & set(taken):
        raise ExportError(
            f"output_names: expected names that inputs and states do not have, got {min(clash)!r}"
        )
    return list(given)


def check_names(what: str, given: Sequence[str], defaults: Sequence[str]) -> None:
    """Check the user's names of the inputs or the outputs.

    Parameters
    ----------
    what : str
        ``"input_names"`` or ``"output_names"``.
    given : sequence of str
    defaults : sequence of str
        The default names.

    Raises
    ------
    ExportError
        If their number differs from that of ``defaults``, one is not a printable string, or one
        occurs twice.
    """
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise ExportError(f"{what}: expected a sequence of strings, got {given!r}")
    if len(given) != len(defaults):
        raise ExportError(
            f"{what}: expected {len(defaults)} names (for {', '.join(defaults) or 'no tensor'}), "
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
    """Return the names, with a number appended to repeated or taken ones."""
    seen = dict.fromkeys(taken)
    for name in names:
        free, number = name, 0
        while free in seen:
            number += 1
            free = f"{name}_{number}"
        seen[free] = None
    return list(seen)[len(dict.fromkeys(taken)) :]
