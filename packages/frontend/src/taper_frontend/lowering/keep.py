"""Keep calls of ATen ops as CALL nodes, which passes do not change, for users' kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.compiler.analysis.source_calls import function_of
from taper_frontend.compiler.graph.node import SourceCall
from taper_frontend.compiler.outline import outline
from taper_frontend.errors import ExportError
from taper_frontend.lowering.context import Refusal
from taper_frontend.lowering.fx_nodes import functional_name, origin
from taper_frontend.lowering.pytrees import tensor_leaves
from taper_frontend.lowering.representation import DTYPE_NAMES
from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch.fx import GraphModule, Node

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.compiler.graph.node import Node as GraphNode
    from taper_frontend.lowering.fx_nodes import Origin

_PREFIX = "torch.ops."

#: The key in the metadata of a kept call of an op without a handler: the call's decomposition, a
#: GraphModule of what handlers lower, or None if it has none.
KEPT = "kept"


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
        self.targets = frozenset(functional_name(name.removeprefix(_PREFIX)) for name in targets)

    def __contains__(self, node: Node) -> bool:
        return bool(self.targets) and functional_name(str(node.target)) in self.targets

    def check(self, captured: GraphModule) -> None:
        """Check that a captured program, or a body in it, calls each of the ops.

        Raises
        ------
        ExportError
            If it does not; the message names the missing ops, and lists the ops that it calls.
        """
        called = _called(captured)
        if missing := self.targets - called:
            raise ExportError(
                f"keep: expected ops that the program calls, "
                f"{', '.join(sorted(name for name in called if '.' in name))}, got "
                f"{', '.join(sorted(missing))}"
            )

    def check_kept(self, decomposed: GraphModule) -> None:
        """Check that what torch has made of a captured program still calls each of the ops.

        Raises
        ------
        ExportError
            If not: torch must replace some calls, such as those of views that are written to.
        """
        if missing := self.targets - _called(decomposed):
            raise ExportError(
                f"keep: torch replaces the calls of {', '.join(sorted(missing))} in this program, "
                "because of what it writes, or because nothing needs them; keep what these "
                "calls consist of, or nothing"
            )


def _called(module: GraphModule) -> set[str]:
    """Return the names of the ops that a program and its bodies call, in functional form."""
    graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return {functional_name(str(node.target)) for node in nodes}


def keep_call(
    graph: Graph,
    node: Node,
    argument: Callable[[Any], Any],
    before: Collection[str],
    results: Sequence[str | None],
    defined: bool = True,
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
    defined : bool
        Whether the nodes compute the call; if not, they only have its types.

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
        raise Refusal(
            f"keep: expected a call that draws no random numbers, got {node.target}", "op"
        )
    given = [name for name in results if name is not None]
    made = outline(
        graph,
        emitted,
        "CALL",
        {
            "arguments": json.dumps(_arguments(node.target, node.args, node.kwargs, argument)),
            "defined": defined,
        },
        inputs=_tensors((node.args, node.kwargs), argument),
        outputs=given,
    )
    types = [type(name) for name in given]
    kept = iter([of(name) for of, name in zip(types, made, strict=True)])
    return [None if name is None else next(kept) for name in results]


class SourceCalls:
    """The calls of the exported program, and the nodes of a graph that each was lowered to.

    Parameters
    ----------
    graph : Graph
    argument : callable
        See :func:`keep_call`.
    """

    def __init__(self, graph: Graph, argument: Callable[[Any], Any]) -> None:
        self._graph = graph
        self._argument = argument
        self._made: dict[str, tuple[Origin, list[str], list[str | None]]] = {}

    def add(self, node: Node, made: Sequence[GraphNode], results: Sequence[str | None]) -> None:
        """Note what an FX node was lowered to."""
        call = origin(node)
        _, outputs, last = self._made.setdefault(call.name, (call, [], []))
        if made:
            outputs += [each.output for each in made]
            last[:] = results

    def note(self) -> None:
        """Note in each node that computes one whole call which arguments the call has."""
        for call, outputs, results in self._made.values():
            if len(outputs) != 1 or (node := self._graph.producers.get(outputs[0])) is None:
                continue
            if results == node.outputs and (text := self._whole(call, node)) is not None:
                known = SourceCall(text, function_of(self._graph, node))
                node.source = node.source._replace(call=known)

    def _whole(self, call: Origin, node: GraphNode) -> str | None:
        """Return the other arguments of a call; None if the node is not the whole call."""
        if not isinstance(call.op, torch._ops.OpOverload) or call.args is None or node.blocks:
            return None
        tensors = tensor_leaves([call.value])
        types = [self._graph.tensors[name] for name in node.outputs]
        if [(DTYPE_NAMES.get(t.dtype), len(t.shape)) for t in tensors] != [
            (spec.dtype, len(spec.shape)) for spec in types
        ]:
            return None  # a part of the call, or numbers that are represented otherwise
        try:
            if _tensors((call.args, call.kwargs), self._argument) != node.inputs:
                return None
            return json.dumps(_arguments(call.op, call.args, call.kwargs, self._argument))
        except (Refusal, KeyError):
            return None


def _tensors(given: tuple[Any, ...], argument: Callable[[Any], Any]) -> list[str]:
    """Return the tensors among arguments, in order."""
    args, kwargs = given
    leaves = torch.utils._pytree.tree_leaves((args, dict(kwargs)))
    return [str(argument(leaf)) for leaf in leaves if _is_tensor(leaf, argument)]


def _is_tensor(value: Any, argument: Callable[[Any], Any]) -> bool:
    """Return whether an argument is a tensor that was in the graph before the call."""
    if not isinstance(value, torch.fx.Node) or value.op == "get_attr":
        return False
    return isinstance(argument(value), str)


def _arguments(
    op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], argument: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the other arguments by their names in the op's schema, including defaults."""
    assert isinstance(op, torch._ops.OpOverload)
    parameters = op._schema.arguments
    given = dict(zip((each.name for each in parameters), args, strict=False)) | dict(kwargs)
    found = {}
    for each in parameters:
        value = given.get(each.name, each.default_value)
        leaves = torch.utils._pytree.tree_leaves([value])
        if not any(isinstance(x, torch.fx.Node) and _holds_tensor(x) for x in leaves):
            found[each.name] = _plain(f"{op}: argument {each.name!r}", value, argument)
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
        raise Refusal(
            f"keep: {what}: expected a value that is the same in every run", "dynamic shape"
        )
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES.get(value, str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
