"""Read the structure of arguments and results from torch's pytrees."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from taper_frontend.errors import ExportError
from taper_frontend.lowering.pytrees import TreeStructure, keys_among

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.utils._pytree import TreeSpec


def structure(spec: TreeSpec) -> TreeStructure:
    """Return the structure that torch's specification describes.

    Raises
    ------
    ExportError
        If a dict has keys that are not str or int.
    """
    if spec.is_leaf():
        return TreeStructure()
    children = tuple(map(structure, spec.children()))
    if spec.type is list:
        return TreeStructure("list", children)
    if spec.type is namedtuple:  # pytree's type for all of them; the class is in the context
        return TreeStructure(
            "namedtuple", children, tuple(spec.context._fields), spec.context.__name__
        )
    keys = keys_among(spec.context, len(children))
    if keys is not None:
        return TreeStructure("dict", children, keys)
    if isinstance(spec.type, type) and issubclass(spec.type, dict):
        raise ExportError(
            f"a {spec.type.__name__} among the inputs or outputs: expected keys of str or int, "
            f"got {spec.context!r}"
        )
    return TreeStructure("tuple", children)


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
