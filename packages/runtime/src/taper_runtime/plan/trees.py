"""Describe how the flat inputs and outputs of a plan nest in the module's signature.

A tree is plain data, an array of a kind and its content:

- ``["tensor", name]``: an array; ``["number", name]``: one element that users see as a Python
number;
- ``["value", x]``: plain data that was passed or returned at export, and is part of the plan;
- ``["list", [tree, ..]]``, ``["tuple", [tree, ..]]``, ``["dict", [[key, tree], ..]]``;
- ``["namedtuple", [name, [[field, tree], ..]]]``.
"""

from __future__ import annotations

from collections import Counter
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import check_name, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from taper_runtime.plan.plan import TensorSpec

Tree = Any

#: The kinds of leaves that name a tensor.
TENSORS = ("tensor", "number")

#: The dtypes of numbers that Python also has.
NUMBERS = ("int64", "float64", "float32", "bool")

_KINDS = "tensor, number, list, tuple, dict, namedtuple or value"


def children(tree: Tree) -> list[tuple[Any, Tree]]:
    """Return the keys, fields or positions of a tree's children, each with the child."""
    kind, content = tree
    if kind in ("list", "tuple"):
        return list(enumerate(content))
    if kind == "dict":
        return [(key, child) for key, child in content]
    if kind == "namedtuple":
        return [(field, child) for field, child in content[1]]
    return []


def leaves(tree: Tree) -> Iterator[Tree]:
    """Yield the leaves in order."""
    if tree[0] in (*TENSORS, "value"):
        yield tree
    for _, child in children(tree):
        yield from leaves(child)


def with_leaves(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """Return a tree with ``change`` applied to each leaf, in order."""
    kind, content = tree
    if kind in ("list", "tuple"):
        return [kind, [with_leaves(child, change) for child in content]]
    if kind == "dict":
        return [kind, [[key, with_leaves(child, change)] for key, child in content]]
    if kind == "namedtuple":
        name, fields = content
        return [kind, [name, [[field, with_leaves(child, change)] for field, child in fields]]]
    return change(tree)


def check_tree(tree: Tree, tensors: Mapping[str, TensorSpec], field: str) -> list[str]:
    """Check a tree over ``tensors``; return the names in it.

    Raises
    ------
    PlanFormatError
        If a part is wrong; the message names it within ``field``.
    """
    if not isinstance(tree, (list, tuple)) or len(tree) != 2:
        fail(field, "expected a kind and its content", tree)
    kind, content = tree
    where = f"{field}[1]"
    if kind in TENSORS:
        _check_leaf(kind, content, tensors, where)
        return [content]
    if kind == "value":
        return []
    if kind == "namedtuple":
        if not isinstance(content, (list, tuple)) or len(content) != 2:
            fail(where, "expected a name and fields", content)
        name, content = content
        check_word(name, f"{where}[0]")
        where = f"{where}[1]"
    elif kind not in ("list", "tuple", "dict"):
        fail(f"{field}[0]", f"expected {_KINDS}", kind)
    if not isinstance(content, (list, tuple)):
        fail(where, "expected an array", content)
    if kind in ("list", "tuple"):
        parts = [(f"{where}[{index}]", child) for index, child in enumerate(content)]
    else:
        parts = list(_pairs(kind, content, where))
    return [name for place, child in parts for name in check_tree(child, tensors, place)]


def check_arguments(tree: Tree, inputs: Mapping[str, TensorSpec], field: str) -> None:
    """Check a tree of arguments, ``(args, kwargs)``, in which each input occurs once.

    Raises
    ------
    PlanFormatError
        If :func:`check_tree` raises it, or an input does not occur exactly once.
    """
    counts = Counter(check_tree(tree, inputs, field))
    parts = children(tree)
    kinds = [child[0] for _, child in parts]
    if tree[0] != "tuple" or len(parts) != 2 or kinds != ["tuple", "dict"]:
        fail(field, "expected a tuple of a tuple and a dict, positional and named arguments", tree)
    for index, (key, _) in enumerate(children(parts[1][1])):
        if type(key) is not str:
            fail(f"{field}[1][1][1][{index}][0]", "expected the name of an argument", key)
    for name in inputs:
        if counts[name] != 1:
            fail(field, f"expected input {name!r} once", counts[name])


def _check_leaf(kind: str, name: object, tensors: Mapping[str, TensorSpec], field: str) -> None:
    if type(name) is not str or name not in tensors:
        fail(field, "expected the name of an input or output", name)
    spec = tensors[name]
    if kind == "number" and (spec.shape != () or spec.dtype not in NUMBERS):
        fail(field, f"expected a tensor of {' or '.join(NUMBERS)} without dims", name)


def _pairs(kind: str, content: Any, field: str) -> Iterator[tuple[str, Tree]]:
    """Yield the paths of the trees in a dict or a named tuple, each with the tree."""
    seen = set()
    for index, item in enumerate(content):
        where = f"{field}[{index}]"
        if not isinstance(item, (list, tuple)) or len(item) != 2:
            fail(where, "expected an array of a key and a tree", item)
        key, child = item
        if kind == "namedtuple":
            check_word(key, f"{where}[0]")
            if key.startswith("_"):
                fail(f"{where}[0]", "expected a name that does not begin with _", key)
        elif type(key) not in (str, int, float, bool, type(None)):
            fail(f"{where}[0]", "expected a string, a number, a bool or null", key)
        if key in seen:
            fail(f"{where}[0]", "expected each key once", key)
        seen.add(key)
        yield f"{where}[1]", child


def check_word(name: object, field: str) -> None:
    """Check that ``name`` can be the name of a class or a field in Python."""
    check_name(name, field)
    if iskeyword(str(name)):
        fail(field, "expected a name that is not a keyword of Python", name)
