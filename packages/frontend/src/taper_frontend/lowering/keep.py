"""Keep calls of ATen ops as CALL nodes, which passes do not change, for users' kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.source_calls import function_of
from taper_frontend.compiler.graph.node import SourceCall
from taper_frontend.compiler.outline import outline
from taper_frontend.errors import ExportError
from taper_frontend.lowering.aten_program import (
    DtypeArgument,
    Node,
    TensorValue,
    functional_name,
    nested_leaves,
    nodes_among,
)
from taper_frontend.lowering.context import Refusal
from taper_frontend.lowering.representation import REPRESENTATIONS
from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.compiler.graph.node import Node as GraphNode
    from taper_frontend.lowering.aten_program import Origin

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
        self.targets = frozenset(functional_name(name.removeprefix(_PREFIX)) for name in targets)

    def has(self, target: str) -> bool:
        """Return whether calls of an op are kept."""
        return bool(self.targets) and functional_name(target) in self.targets

    def check(self, called: Iterable[str]) -> None:
        """Check that a captured program, or a body in it, calls each of the ops.

        Parameters
        ----------
        called : iterable of str
            The targets of its calls.

        Raises
        ------
        ExportError
            If it does not; the message names the missing ops, and lists the ops that it calls.
        """
        called = set(map(functional_name, called))
        if missing := self.targets - called:
            raise ExportError(
                f"keep: expected ops that the program calls, "
                f"{', '.join(sorted(name for name in called if '.' in name))}, got "
                f"{', '.join(sorted(missing))}"
            )

    def check_kept(self, called: Iterable[str]) -> None:
        """Check that what torch has made of a captured program still calls each of the ops.

        Parameters
        ----------
        called : iterable of str
            The targets of its calls.

        Raises
        ------
        ExportError
            If not: torch must replace some calls, such as those of views that are written to.
        """
        if missing := self.targets - set(map(functional_name, called)):
            raise ExportError(
                f"keep: torch replaces the calls of {', '.join(sorted(missing))} in this program, "
                "because of what it writes, or because nothing needs them; keep what these "
                "calls consist of, or nothing"
            )


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
    node : Node
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
            "arguments": json.dumps(_arguments(node.call, argument)),
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
        call = node.origin
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
        if call.schema is None or call.args is None or node.blocks:
            return None
        tensors = [leaf for leaf in nested_leaves(call.value) if isinstance(leaf, TensorValue)]
        types = [self._graph.tensors[name] for name in node.outputs]
        if [(tensor.dtype, len(tensor.shape)) for tensor in tensors] != [
            (spec.dtype, len(spec.shape)) for spec in types
        ]:
            return None  # a part of the call, or numbers that are represented otherwise
        try:
            if _tensors((call.args, call.kwargs), self._argument) != node.inputs:
                return None
            return json.dumps(_arguments(call, self._argument))
        except (Refusal, KeyError):
            return None


def _tensors(given: tuple[Any, ...], argument: Callable[[Any], Any]) -> list[str]:
    """Return the tensors among arguments, in order."""
    return [str(argument(node)) for node in nodes_among(given) if _is_tensor(node, argument)]


def _is_tensor(node: Node, argument: Callable[[Any], Any]) -> bool:
    """Return whether an argument is a tensor that was in the graph before the call."""
    return node.op != "get_attr" and isinstance(argument(node), str)


def _arguments(call: Origin, argument: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the other arguments by their names in the op's schema, including defaults."""
    assert call.schema is not None
    assert call.args is not None
    names = (each.name for each in call.schema)
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    found = {}
    for each in call.schema:
        value = given.get(each.name, each.default)
        if not any(map(_holds_tensor, nodes_among(value))):
            found[each.name] = _plain(f"{call.target}: argument {each.name!r}", value, argument)
    return found


def _holds_tensor(node: Node) -> bool:
    return isinstance(node.value, TensorValue) or node.op == "get_attr"


def _plain(what: str, value: Any, argument: Callable[[Any], Any]) -> Any:
    """Return an argument as plain data: a dtype by name, a device as torch prints it."""
    if isinstance(value, list | tuple):
        return [_plain(what, item, argument) for item in value]
    if isinstance(value, Node):
        value = argument(value)
    if isinstance(value, Size):
        raise Refusal(
            f"keep: {what}: expected a value that is the same in every run", "dynamic shape"
        )
    if isinstance(value, DtypeArgument) and value not in REPRESENTATIONS:
        return f"torch.{value}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
