"""Keep calls of ATen ops as CALL nodes, which passes do not change, for users' kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.compiler.outline import outline
from taper_frontend.errors import ExportError
from taper_frontend.lowering.context import Refusal
from taper_frontend.lowering.representation import DTYPE_NAMES
from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch.fx import GraphModule, Node

    from taper_frontend.compiler.graph import Graph

_PREFIX = "torch.ops."


class Keep:
    """The set of ATen ops whose calls are kept.

    Parameters
    ----------
    targets : sequence of str
        Names such as ``"aten.relu.default"`` or ``"torch.ops.aten.relu.default"``.

    Raises
    ------
    ExportError
        If ``targets`` is not a sequence of strings.
    """

    def __init__(self, targets: Sequence[str] = ()) -> None:
        if isinstance(targets, str) or not all(isinstance(name, str) for name in targets):
            raise ExportError(f"keep: expected a list of ATen ops, got {targets!r}")
        self.targets = frozenset(name.removeprefix(_PREFIX) for name in targets)

    def __contains__(self, node: Node) -> bool:
        return str(node.target) in self.targets

    def check(self, module: GraphModule) -> None:
        """Check that a program, or a body in it, calls each of the ops.

        Raises
        ------
        ExportError
            If it does not; the message names the missing ops, and lists the ops that it calls.
        """
        graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
        nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
        called = {str(node.target) for node in nodes}
        if missing := self.targets - called:
            raise ExportError(
                f"keep: the program calls no {', '.join(sorted(missing))}; it calls "
                f"{', '.join(sorted(name for name in called if '.' in name))}"
            )


def keep_call(
    graph: Graph,
    node: Node,
    argument: Callable[[Any], Any],
    before: Collection[str],
    results: Sequence[str | None],
) -> list[str | None]:
    """Move the nodes that a call was lowered to into the block of a CALL.

    Parameters
    ----------
    graph : Graph
    node : torch.fx.Node
    argument : callable
        Returns the value of an argument of the FX node: the name of a tensor, or a number.
    before : collection of str
        The nodes of the graph that do not belong to the call.
    results : sequence of str or None
        The results of the FX node; None for unused ones.

    Returns
    -------
    list of str or None
        The results of the CALL.

    Raises
    ------
    Refusal
        If the call draws random numbers, or one of its number arguments varies.
    """
    emitted = [name for name in graph.nodes if name not in before]
    if any(graph.nodes[name].op == "RANDOM" for name in emitted):
        raise Refusal(f"keep: {node.target} draws random numbers", "op")
    given = [name for name in results if name is not None]
    made = outline(
        graph,
        emitted,
        "CALL",
        {"arguments": json.dumps(_arguments(node, argument))},
        inputs=_tensors(node, argument),
        outputs=given,
    )
    types = [type(name) for name in given]
    kept = iter([of(name) for of, name in zip(types, made, strict=True)])
    return [None if name is None else next(kept) for name in results]


def _tensors(node: Node, argument: Callable[[Any], Any]) -> list[str]:
    """Return the tensor arguments of a node, in order."""
    leaves = torch.utils._pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [str(argument(leaf)) for leaf in leaves if _is_tensor(leaf, argument)]


def _is_tensor(value: Any, argument: Callable[[Any], Any]) -> bool:
    """Return whether an argument is a tensor that was in the graph before the call."""
    if not isinstance(value, torch.fx.Node) or value.op == "get_attr":
        return False
    return isinstance(argument(value), str)


def _arguments(node: Node, argument: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the other arguments by their names in the op's schema, including defaults."""
    assert isinstance(node.target, torch._ops.OpOverload)
    parameters = node.target._schema.arguments
    given = dict(zip((each.name for each in parameters), node.args, strict=False)) | node.kwargs
    found = {}
    for each in parameters:
        value = given.get(each.name, each.default_value)
        leaves = torch.utils._pytree.tree_leaves([value])
        if not any(isinstance(x, torch.fx.Node) and _holds_tensor(x) for x in leaves):
            found[each.name] = _plain(f"{node.target}: argument {each.name!r}", value, argument)
    return found


def _holds_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) or node.op == "get_attr"


def _plain(what: str, value: Any, argument: Callable[[Any], Any]) -> Any:
    """Return an argument as plain data: a dtype by name, a device as torch prints it."""
    if isinstance(value, list | tuple):
        return [_plain(what, item, argument) for item in value]
    if isinstance(value, torch.fx.Node):
        value = argument(value)
    if isinstance(value, Size):
        raise Refusal(f"keep: {what} varies from run to run", "dynamic shape")
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES.get(value, str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
