"""The dimensions that a user lets vary, and what torch made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export import Dim, ShapesCollection
from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from taper_frontend.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.export import ExportedProgram


class Dims(NamedTuple):
    """What became of the dimensions in ``dynamic_shapes``.

    Attributes
    ----------
    names : dict of str to str
        torch's symbol -> the name of the user's ``Dim``.
    specialized : list of str
        Dimensions marked ``Dim.AUTO`` that torch fixed.
    """

    names: dict[str, str]
    specialized: list[str]


def requested_dims(
    module: Any,
    program: ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> Dims:
    """Compare the dimensions of a module's inputs that the user lets vary with those that do.

    Raises
    ------
    ExportError
        If torch fixed one; ``Dim.AUTO`` leaves that to torch.
    """
    dims = Dims({}, [])
    if not dynamic_shapes:
        return dims
    nodes = {node.name: node for node in program.graph.nodes}
    shapes = [
        nodes[spec.arg.name].meta["val"].shape
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
        and isinstance(nodes[spec.arg.name].meta.get("val"), torch.Tensor)
    ]
    tensors = [x for x in tree_leaves((args, dict(kwargs or {}))) if isinstance(x, torch.Tensor)]
    shape_of = {id(x): shape for x, shape in zip(tensors, shapes, strict=True)}

    def compare(path: Any, x: Any, wanted: Any) -> None:
        if not isinstance(x, torch.Tensor) or not wanted:
            return
        places = wanted.items() if isinstance(wanted, dict) else enumerate(wanted)
        where = f"inputs{torch.utils._pytree.keystr(path)}"
        for axis, dim in places:
            size = shape_of[id(x)][axis]
            if isinstance(size, torch.SymInt) and size.node.expr.is_number:
                size = int(size)
            _compare_dim(dims, f"dimension {axis} of {where}", dim, size)

    kwargs = dict(kwargs or {})
    combined: Any = _combine_args(module, args, kwargs)
    if isinstance(dynamic_shapes, ShapesCollection):
        dynamic_shapes = dynamic_shapes.dynamic_shapes(module, args, kwargs)  # type: ignore[no-untyped-call]
    if isinstance(dynamic_shapes, tuple | list):
        combined = type(dynamic_shapes)(combined.values())
    _tree_map_with_path(compare, combined, dynamic_shapes, tree_name="inputs")
    return dims


def _compare_dim(dims: Dims, where: str, dim: Any, size: int | torch.SymInt) -> None:
    name = getattr(dim, "__name__", None)
    if isinstance(size, torch.SymInt):
        dim = getattr(dim, "root", dim)  # of a Dim computed from another
        symbols = size.node.expr.free_symbols
        if name is not None and len(symbols) == 1:
            dims.names.setdefault(str(*symbols), dim.__name__)
    elif dim is Dim.AUTO:
        dims.specialized.append(f"{where}: {size}")
    elif dim is not None and dim is not Dim.STATIC and not isinstance(dim, int):
        raise ExportError(
            f"{where} was to vary{f' as {name!r}' if name else ''}, but the model fixes it: "
            f"expected a size that varies, got {size}"
        )
