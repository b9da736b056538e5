"""Describe the structure of inputs and outputs as plain data, in :class:`Plan`'s format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError
from taper_runtime.base.checks import MAX_DEPTH
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Tree = list[Any]


class TreeStructure(NamedTuple):
    """The structure of arguments or results: a leaf, or a container with others in it.

    Attributes
    ----------
    kind : str
        "leaf", "list", "tuple", "dict" or "namedtuple".
    children : tuple of TreeStructure
    keys : tuple of (str or int)
        The keys of a dict, or the fields of a named tuple.
    name : str
        The class of a named tuple.
    """

    kind: str = "leaf"
    children: tuple[TreeStructure, ...] = ()
    keys: tuple[str | int, ...] = ()
    name: str = ""


def describe_tree(spec: TreeStructure, leaves: Iterable[Tree]) -> Tree:
    """Nest ``leaves`` in a structure.

    Parameters
    ----------
    spec : TreeStructure
    leaves : iterable
        One ``["tensor", name]`` or ``["value", x]`` per leaf.

    Returns
    -------
    list
        The tree.

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


def _describe(spec: TreeStructure, leaves: Iterator[Tree]) -> Tree:
    if spec.kind == "leaf":
        return next(leaves)
    children = [_describe(child, leaves) for child in spec.children]
    if not spec.keys:
        return [spec.kind, children if spec.kind != "namedtuple" else [spec.name, []]]
    pairs = [[key, child] for key, child in zip(spec.keys, children, strict=True)]
    return [spec.kind, pairs if spec.kind == "dict" else [spec.name, pairs]]


def leaf_paths(spec: TreeStructure) -> list[tuple[str | int, ...]]:
    """Return the path to each leaf: keys and names of fields, else positions."""
    if spec.kind == "leaf":
        return [()]
    keys: Sequence[str | int] = spec.keys or range(len(spec.children))
    return [
        (key, *path)
        for key, child in zip(keys, spec.children, strict=True)
        for path in leaf_paths(child)
    ]


def keys_among(context: Any, count: int) -> tuple[str | int, ...] | None:
    """Return the names of a container's children in pytree's context; None if they have none.

    It is a list of keys, or, for a defaultdict and for registered data classes, a list with such a
    list inside.
    """
    contexts = [context]
    if isinstance(context, list | tuple):
        contexts += context
    for keys in contexts:
        if (
            isinstance(keys, list)
            and len(keys) == count
            and all(isinstance(key, str | int) for key in keys)
        ):
            return tuple(keys)
    return None


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
