"""Tell where nodes of torch.fx come from, whether they draw, and which sizes they find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.export.graph_signature import CustomObjArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from taper_frontend.lowering.source_line import source_line
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.fx import GraphModule, Node

#: The key in a graph module's metadata that holds the program as captured, before decomposition.
CAPTURED = "captured"

#: The key in a node's metadata that holds the :class:`FxOrigin` of a node of a decomposition.
ORIGIN = "origin"

#: The key in the metadata of a kept call of an op without a handler: the call's decomposition, a
#: GraphModule of what handlers lower, or None if it has none.
KEPT = "kept"

#: The key in a program's metadata that says whether the module was in training mode.
TRAINING = "training"


class FxOrigin(NamedTuple):
    """The call of the exported program that a node comes from, in torch's own objects.

    :class:`taper_frontend.lowering.aten_program.Origin` is the same as plain data.
    """

    name: str
    op: Any
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    value: Any


def origin(node: Node) -> FxOrigin:
    """Return the call of the exported program that a node comes from: by default the node."""
    known: FxOrigin | None = node.meta.get(ORIGIN)
    return known or FxOrigin(node.name, node.target, node.args, node.kwargs, node.meta.get("val"))


def draws(node: Node) -> bool:
    """Return whether the node draws random numbers, or would in training mode."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def unbacked_sizes(node: Node) -> set[Any]:
    """Return the sizes in a node's results that depend on values."""
    value = node.meta.get("val")
    return set() if isinstance(value, CustomObjArgument) else set(free_unbacked_symbols(value))


def called(module: GraphModule) -> set[str]:
    """Return the names of what a program and its bodies call."""
    graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    return {
        str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"
    }


def source_of(node: Node) -> str:
    """Return the line of the user's model that a node comes from; see :func:`.source_line`."""
    return source_line(node.meta.get("stack_trace") or "", node.meta.get("nn_module_stack") or {})
