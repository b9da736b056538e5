"""Prepare a capture: example arguments, and their dims that should vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from taper_frontend.errors import ExportError
from taper_frontend.lowering.keep import Keep
from taper_frontend.request.arguments import check_arguments
from taper_frontend.request.dims import (
    Axis,
    Int,
    requested_axes,
    requested_ints,
    requested_shapes,
    shapes_by_name,
)
from taper_frontend.request.names import check_names, names_of_leaves
from taper_frontend.request.notes import Note, of_arguments, of_mode
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.request.options import Options


class Request(NamedTuple):
    """A module with example arguments.

    Attributes
    ----------
    module : torch.nn.Module
    args, kwargs
        Copies of the arguments: a tensor that is passed twice becomes two inputs.
    axes : list of Axis
        The dimensions that should vary.
    ints : dict of int to Int
        The ints that should vary, by their indices among the leaves of the arguments.
    notes : list of Note
        Notes for the user that are known so far.
    input_names : sequence of str or None
        The names of the plan's inputs, where the user gives them.
    others : dict of str to object
        What is said of the dimensions of other names than inputs: buffers, and outputs.
    are_outputs : bool
        Whether those may be outputs.
    keep : Keep
        The ops whose calls stay.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    axes: list[Axis]
    ints: dict[int, Int]
    notes: list[Note]
    input_names: Sequence[str] | None
    others: dict[str, Any]
    are_outputs: bool
    keep: Keep

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """Return the buffers with a dimension that should vary, by name, in order."""
        names = [axis.input for axis in self.axes if axis.tensor is None]
        buffers = dict(self.module.named_buffers(remove_duplicate=False)) if names else {}
        return {name: buffers[name].detach() for name in names}


def make_request(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    options: Options,
) -> Request:
    """Check and read the arguments of :func:`taper_frontend.export` for a module.

    Raises
    ------
    ExportError
        If the arguments do not fit the module, or the names or dimensions do not fit the arguments.
    """
    check_arguments(module, args, kwargs)
    if options.dynamic_shapes is not None and options.dynamic_axes is not None:
        raise ExportError("expected dynamic_shapes or dynamic_axes, got both")
    given = tuple(args), dict(kwargs or {})
    own: tuple[tuple[Any, ...], dict[str, Any]]
    own = tree_map_only(torch.Tensor, torch.Tensor.clone, given)
    leaves = tree_leaves(own)
    shapes, others = requested_shapes(module, *given, options.dynamic_shapes)
    ints = requested_ints(leaves, shapes)
    names = names_of_leaves(module, *own)
    inputs = {
        place: name
        for place, name in enumerate(names)
        if isinstance(leaves[place], torch.Tensor) or place in ints
    }
    if options.input_names is not None:
        check_names("input_names", options.input_names, [*inputs.values()])
        inputs = dict(zip(inputs, options.input_names, strict=True))
    if options.dynamic_axes is not None:
        shapes, others = shapes_by_name(options.dynamic_axes, inputs)
    axes = requested_axes(module, *own, inputs, shapes)
    baked = {names[i]: leaf for i, leaf in enumerate(leaves) if i not in inputs}
    notes = [*of_mode(module), *of_arguments(baked)]
    are_outputs = options.dynamic_axes is not None
    return Request(
        module,
        *own,
        axes,
        ints,
        notes,
        options.input_names,
        others,
        are_outputs,
        Keep(options.keep),
    )
