"""Describe the structure of inputs and outputs as plain data, in :class:`Plan`'s format."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from taper_frontend.errors import ExportError
from taper_runtime.base.checks import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.export import ExportedProgram
    from torch.utils._pytree import TreeSpec

Tree = list[Any]


def describe_tree(spec: TreeSpec, leaves: Iterable[Tree]) -> Tree:
    """Nest ``leaves`` in the structure of ``spec``.

    Parameters
    ----------
    spec : TreeSpec
    leaves : iterable
        One ``["tensor", name]`` or ``["value", x]`` per leaf.

    Returns
    -------
    list
        The tree. Mappings, including model outputs and data classes with named parts, become
        ``"dict"``, lists become ``"list"``, and other containers ``"tuple"``.

    Raises
    ------
    ExportError
        If containers are nested more deeply than files allow.
    """
    tree = _describe(spec, iter(leaves))
    if (levels := _levels(tree)) > MAX_DEPTH:
        raise ExportError(
            f"arguments or results: expected at most {MAX_DEPTH} levels of nesting, where a list "
            f"or tuple takes two and a dict three, got {levels}"
        )
    return tree


def _levels(tree: Any) -> int:
    if not isinstance(tree, list):
        return 0
    return 1 + max(map(_levels, tree), default=0)


def _describe(spec: TreeSpec, leaves: Iterator[Tree]) -> Tree:
    if spec.is_leaf():
        return next(leaves)
    children = [_describe(child, leaves) for child in spec.children()]
    if spec.type is list:
        return ["list", children]
    if spec.type is namedtuple:  # pytree's type for all of them; the class is in the context
        fields = zip(spec.context._fields, children, strict=True)
        return ["namedtuple", [spec.context.__name__, [[name, child] for name, child in fields]]]
    keys = _keys(spec)
    if keys is None:
        return ["tuple", children]
    return ["dict", [[key, child] for key, child in zip(keys, children, strict=True)]]


def leaf_paths(spec: TreeSpec) -> list[tuple[str | int, ...]]:
    """Return the path to each leaf: keys and names of fields, else positions."""
    if spec.is_leaf():
        return [()]
    keys: Sequence[str | int] | None = None
    if spec.type is namedtuple:
        keys = spec.context._fields
    elif spec.type is not list:
        keys = _keys(spec)
    return [
        (place if keys is None else keys[place], *path)
        for place, child in enumerate(spec.children())
        for path in leaf_paths(child)
    ]


def _keys(spec: TreeSpec) -> list[str | int] | None:
    """Return the names of the children; None if they have none.

    pytree stores them in the context: a list of keys, or, for a defaultdict and for registered data
    classes, a list with such a list inside.
    """
    contexts = [spec.context]
    if isinstance(spec.context, list | tuple):
        contexts += spec.context
    for keys in contexts:
        if (
            isinstance(keys, list)
            and len(keys) == spec.num_children
            and all(isinstance(key, str | int) for key in keys)
        ):
            return keys
    if isinstance(spec.type, type) and issubclass(spec.type, dict):
        raise ExportError(
            f"a {spec.type.__name__} among the inputs or outputs: expected keys of str or int, "
            f"got {spec.context!r}"
        )
    return None


def tensor_leaves(arguments: Any) -> list[torch.Tensor]:
    """Return the tensors among nested arguments or results, in order."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def argument_placeholders(program: ExportedProgram) -> list[str]:
    """Return the names of the placeholders of a program's own arguments, in order."""
    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]


def value_leaf(value: Any) -> Tree:
    """Return the leaf of a value that is not a tensor.

    Raises
    ------
    ExportError
        If it is not plain data.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return ["value", value]
    raise ExportError(
        "an input or output: expected a tensor, None, bool, int, float or str, "
        f"got {type(value).__name__}"
    )
