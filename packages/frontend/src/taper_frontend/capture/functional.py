"""Prepare a captured program for torch's functional form, in which values replace writes.

torch's functional form is wrong in two cases, and refuses a third:

- A write through ``expand`` becomes ``base + (new - base)``: the new values are rounded to the
precision
  of the old ones, and are NaN if these were infinite.
- A write through ``unfold`` sets elements outside of all windows to 0.
- The body of a control-flow op accepts no tensor twice, and no view of another operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from taper_frontend.capture.decompose import is_fresh, views, writes
from taper_frontend.capture.fx_nodes import source_of
from taper_frontend.errors import CaptureError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

aten = torch.ops.aten

#: Ops that return a view where they can, and else a copy.
_PERHAPS_COPIES = frozenset(
    {aten.reshape.default, aten.contiguous.default, aten.flatten.using_ints}
)

_EXPANSIONS = frozenset({aten.expand.default, aten.expand_as.default, aten.broadcast_to.default})


def make_ready(program: ExportedProgram) -> None:
    """Rewrite the parts of a program that torch's functional form would get wrong, in place.

    Raises
    ------
    CaptureError
        If the program writes through windows of ``unfold`` that do not cover the tensor.
    """
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in list(module.graph.nodes):
                if isinstance(node.target, HigherOrderOperator):
                    _part_operands(node)
                elif node.target in _EXPANSIONS:
                    _respell_expansion(node)
                elif writes(node):
                    _refuse_gaps(node)


def stride_owners(program: ExportedProgram) -> None:
    """Let each ``as_strided`` of a view read the tensor that owns the memory, in place.

    Its strides are about that memory, and elements that the view does not have may be in it.
    """
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                if node.target is aten.as_strided.default:
                    _stride_owner(node)


def _stride_owner(node: Node) -> None:
    """Let one ``as_strided`` read the tensor that owns the memory, if its strides are known."""
    source, size, stride, *offset = _arguments(node)
    owner: Node = source
    while owner.op == "call_function" and not is_fresh(owner):
        before: Any = owner.args[0]
        if owner.target in _PERHAPS_COPIES and _copies(owner, before):
            break
        if not isinstance(before.meta["val"], torch.Tensor):
            return
        if before.meta["val"].dtype != source.meta["val"].dtype:
            break
        owner = before
    if not owner.meta["val"].is_contiguous():
        return
    if not offset or offset[0] is None:
        offset = [source.meta["val"].storage_offset()]
    if all(isinstance(each, int) for each in (*size, *stride, *offset)):
        node.args, node.kwargs = (owner, size, stride, *offset), {}


def _copies(node: Node, before: Node) -> bool:
    """Return whether an op that returns a view where it can copies what it reads."""
    tensor = before.meta["val"]
    if tensor.is_contiguous() or node.target is aten.contiguous.default:
        return not tensor.is_contiguous()
    try:
        tensor.view(node.meta["val"].shape)
    except (RuntimeError, ValueError):
        return True
    return False


def _arguments(node: Node) -> list[Any]:
    return [*node.args, *node.kwargs.values()]


def _part_operands(call: Node) -> None:
    """Copy operands that a control-flow body would get twice; plans remove these copies."""
    seen = set()

    def part(operand: Node) -> Node:
        *_, root = views(operand)
        if root not in seen:
            seen.add(root)
            return operand
        with call.graph.inserting_before(call):
            copied = call.graph.call_function(aten.clone.default, (operand,))
        copied.meta = dict(operand.meta)
        return copied

    call.args = torch.fx.map_arg(call.args, part)


def _respell_expansion(node: Node) -> None:
    """Rewrite an expansion that repeats nothing as views that can be written through."""
    source: Any = node.args[0]
    before, after = source.meta["val"].shape, node.meta["val"].shape
    added = len(after) - len(before)
    pairs = zip((*[1] * added, *before), after, strict=True)
    if not all(statically_known_true(old == new) for old, new in pairs):
        return
    for _ in range(added):
        with node.graph.inserting_before(node):
            value = source.meta["val"].unsqueeze(0)
            source = node.graph.call_function(aten.unsqueeze.default, (source, 0))
            source.meta = {**node.meta, "val": value}
    node.target, node.args, node.kwargs = aten.alias.default, (source,), {}


def _refuse_gaps(write: Node) -> None:
    """Refuse a write through windows that do not cover their tensor."""
    for view in views(write.args[0]):
        if view.target is not aten.unfold.default:
            continue
        args: Any = view.args
        source, dim, size, step = args
        length = (source.meta["val"].shape or (1,))[dim]
        if size < step or not statically_known_true((length - size) % step == 0):
            raise CaptureError(
                "decompose the program",
                "it writes to a tensor through unfold, and torch drops elements outside of its "
                "windows; write to slices, or by index_copy",
                "mutation",
                source_of(write),
            )
