"""Run the program as captured by torch, before decomposition, node by node."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._C._functorch import (
    get_dynamic_layer_stack_depth,
    pop_dynamic_layer_stack_and_undo_to_depth,
)
from torch._ops import OpOverload
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map_only

from taper_frontend.capture.fx_nodes import ORIGIN, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

    Change = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def _ends_transforms() -> Iterator[None]:
    """Close transforms, such as ``torch.vmap``, that are open where a program stops."""
    depth = get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if get_dynamic_layer_stack_depth() > depth:
            pop_dynamic_layer_stack_and_undo_to_depth(depth)


class NotRunError(Exception):
    """A node of the captured program cannot be computed alone."""


class Captured:
    """A copy of a captured program, whose original may be decomposed.

    Parameters
    ----------
    program : ExportedProgram
        It may be decomposed in place afterwards: its graph is copied, its tensors are not.
    states : mapping of str to str, optional
        The placeholders of states among the arguments -> the names of the buffers.

    Attributes
    ----------
    graph : torch.fx.Graph
        The copy of the graph, without its results.
    """

    def __init__(self, program: ExportedProgram, states: Mapping[str, str] | None = None) -> None:
        self._signature = program.graph_signature
        self._states = states or {}
        self._tensors = {**program.state_dict, **program.constants}
        # a graph module's metadata hold this object, so a reference back would keep tensors alive
        has_bodies = any(node.op == "get_attr" for node in program.graph.nodes)
        self._bodies = program.graph_module if has_bodies else None
        self._original = id(program.graph)
        self._copies: dict[Node, Node] = {}
        self.graph = Graph()
        self.graph.graph_copy(program.graph, self._copies)
        self._named = {node.name: copy for node, copy in self._copies.items()}

    def __deepcopy__(self, memo: Any) -> Captured:
        """Return this object: copies of a program share it."""
        return self

    def note_calls(self, became: Mapping[str, str]) -> None:
        """Record the nodes with which :func:`.decompose_calls` replaced each call."""
        for new, old in became.items():
            if old in self._named:
                self._named.setdefault(new, self._named[old])

    def note_program(self, program: ExportedProgram) -> None:
        """Record how torch decomposed the whole program.

        Only certain facts are recorded: a node is the only one made from a call and has the call's
        op, perhaps in functional form if the call wrote to its argument.
        """
        before, self._named = self._named, {}
        made: dict[Node, list[Node]] = {}
        for node in program.graph.nodes:
            old = before.get(next(self._origins(node.meta.get("from_node") or ()), ""))
            if old is not None and node.op == "call_function":
                made.setdefault(old, []).append(node)
        for old, nodes in made.items():
            calls = [node for node in nodes if _op(node) is not None and _op(node) == _op(old)]
            if len(calls) != 1:
                continue
            self._named[calls[0].name] = old
            parts = {user.args[1]: user for user in old.users if _is_part(user)}
            for user in calls[0].users:
                if _is_part(user) and user.args[1] in parts:
                    self._named[user.name] = parts[user.args[1]]
        self._note_origins(program, made)

    def _note_origins(self, program: ExportedProgram, made: Mapping[Node, list[Node]]) -> None:
        """Note in each node of a decomposition which call it comes from."""
        nodes = {node.name: node for node in program.graph.nodes}
        values = {old: nodes[new] for new, old in self._named.items()}
        values.update((old, new) for old, (new, *others) in made.items() if not others)
        for old in self.graph.nodes:
            if old.op == "placeholder" and old.name in nodes:
                values[old] = nodes[old.name]
        for old, parts in made.items():
            call = origin(old)
            if all(source in values for source in old.all_input_nodes):
                given = torch.fx.map_arg((old.args, old.kwargs), values.__getitem__)
                call = call._replace(args=given[0], kwargs=given[1])
            else:
                call = call._replace(args=None)
            for part in parts:
                if isinstance(old.target, OpOverload) and old.target != part.target:
                    part.meta[ORIGIN] = call

    def _origins(self, sources: Any) -> Iterator[str]:
        """Yield the names of the nodes in the program from which another node comes."""
        for source in sources:
            if source.graph_id == self._original:
                yield source.name
            yield from self._origins(source.from_node)

    def name(self, lowered: str) -> str:
        """Return the node whose value a node of the decomposed program has, or an empty text."""
        node = self._named.get(lowered)
        return "" if node is None else node.name

    @_ends_transforms()
    def run(
        self,
        arguments: Sequence[Any],
        buffers: Mapping[str, torch.Tensor],
        see: Callable[[Node, Any], None],
        change: Change | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """Compute the values in order; each is dropped after its last reader.

        Parameters
        ----------
        arguments : sequence
            The program's own arguments, flat; they may be written to.
        buffers : mapping of str to torch.Tensor
            Values that replace those of buffers; they are copied.
        see : callable
            Called with each node and its value, before the next one runs.
        change : callable, optional
            Changes the floats among parameters and buffers.
        exact : bool
            Whether to compute all floats in float64.

        Raises
        ------
        NotRunError
            If a node cannot be computed.
        """
        values: dict[Node, Any] = {}
        weights: dict[Node, torch.Tensor] = {}
        last = {source: node for node in self.graph.nodes for source in node.all_input_nodes}
        dying: dict[Node, list[Node]] = {}
        for source, node in last.items():
            dying.setdefault(node, []).append(source)

        def load(node: Node) -> Any:
            if node not in weights:
                return values[node]
            # not kept, because they are large for a large model
            return changed(weights[node], change)

        given = self._given(arguments, buffers, change)
        for node in self.graph.nodes:
            if node.op == "placeholder":
                value, is_weight = next(given)
                if is_weight:
                    weights[node] = value
                elif node in last:
                    values[node] = value
                continue
            if node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self._bodies)
            else:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), load)
                if exact:
                    args, kwargs = tree_map_only(torch.dtype, _widest, (args, kwargs))
                try:
                    value = node.target(*args, **kwargs)
                except Exception as error:  # torch raises many types
                    first = (str(error).strip().splitlines() or [""])[0]
                    raise NotRunError(
                        f"{node.target} fails with {type(error).__name__}: {first}"
                    ) from error
                del args, kwargs
            for source in dying.get(node, ()):
                values.pop(source, None)
            see(node, value)
            if node in last:
                values[node] = value
            del value

    def _given(
        self,
        arguments: Sequence[Any],
        buffers: Mapping[str, torch.Tensor],
        change: Change | None,
    ) -> Iterator[tuple[Any, bool]]:
        """Yield the value of each placeholder, and whether it is a tensor that is not changed."""
        own = iter(arguments)
        written = set(self._signature.buffers_to_mutate.values())
        for spec in self._signature.input_specs:
            if spec.arg.name in self._states:
                yield changed(buffers[self._states[spec.arg.name]].clone(), change), False
                continue
            if spec.kind == InputKind.USER_INPUT:
                yield next(own), False
                continue
            name = spec.target or spec.arg.name
            value = buffers[name] if name in buffers else self._tensors[name]
            if name in written:
                yield changed(value.clone(), change), False
            else:
                yield value, isinstance(value, torch.Tensor)


def changed(value: Any, change: Change | None) -> Any:
    """Return a value, changed if it is a tensor of floats."""
    if change is None or not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return torch.view_as_complex(change(torch.view_as_real(value.detach().resolve_conj())))
    return change(value.detach()) if value.is_floating_point() else value


def _op(node: Node) -> str | None:
    """Return the op that a node calls, without its overload, in functional form."""
    if not isinstance(node.target, OpOverload):
        return None
    name: str = node.target._schema.name
    return name.removesuffix("_")


def _is_part(node: Node) -> bool:
    return node.target is operator.getitem


def _widest(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype
