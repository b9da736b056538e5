"""What is to be captured of a module: its example arguments, and their dimensions that vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only, tree_structure

from taper_frontend.arguments import check_arguments
from taper_frontend.dims import Axis, as_tree, requested_axes
from taper_frontend.names import argument_names, check_names, leaf_names
from taper_frontend.notes import Note, of_arguments, of_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Request(NamedTuple):
    """A module with example arguments.

    Attributes
    ----------
    module : torch.nn.Module
    args, kwargs
        Copies: a tensor given twice is two inputs.
    axes : list of Axis
        The dimensions that are to vary.
    notes : list of Note
        What a user should know, as far as it can be told.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    axes: list[Axis]
    notes: list[Note]


def make_request(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    input_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
) -> Request:
    """Check and read what :func:`taper_frontend.export` is given for a module.

    Raises
    ------
    ExportError
        If the arguments do not fit the module, or the names or dimensions the arguments.
    """
    check_arguments(module, args, kwargs)
    given = tuple(args), dict(kwargs or {})
    dynamic_shapes = as_tree(module, *given, dynamic_shapes)
    own: tuple[tuple[Any, ...], dict[str, Any]]
    own = tree_map_only(torch.Tensor, torch.Tensor.clone, given)
    leaves = leaf_names(argument_names(module, *own), tree_structure(own))
    inputs = [
        name
        for name, leaf in zip(leaves, tree_leaves(own), strict=True)
        if isinstance(leaf, torch.Tensor)
    ]
    if input_names is not None:
        check_names("input_names", input_names, inputs)
        inputs = list(input_names)
    axes = requested_axes(module, *own, inputs, dynamic_shapes, dynamic_axes)
    notes = [*of_mode(module), *of_arguments(leaves, *own)]
    return Request(module, *own, axes, notes)
