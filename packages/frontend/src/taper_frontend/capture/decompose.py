"""Decompose a captured program to Core ATen and ops with handlers, call by call.

``ExportedProgram.run_decompositions`` traces the whole program again, which takes longer than its
capture. Most programs only compute. Then calls are independent, and only those without a handler
are traced, each kind of call once.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from taper_frontend.capture.fx_nodes import KEPT, ORIGIN, draws, origin, unbacked_sizes
from taper_frontend.capture.packed import is_packed
from taper_frontend.capture.respell import CASTS, arguments, respell
from taper_frontend.lowering import HANDLERS
from taper_frontend.lowering.keep import Keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OperatorBase
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule

    Table = dict[OperatorBase, Callable[..., Any]]

aten = torch.ops.aten

#: The op that replaces a part of a tensor, by the op that returns the part.
_SCATTERS: dict[Any, OpOverload[..., Any]] = {
    aten.select.int: aten.select_scatter.default,
    aten.slice.Tensor: aten.slice_scatter.default,
}

#: Ops that return views of their first argument for all strides.
_VIEWS = frozenset({
    aten.alias.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.view.default,
})  # fmt: skip

#: Ops on numbers in a program with varying sizes.
_NUMBERS = frozenset({"_operator", "math", "torch"})


def decompose_calls(
    program: ExportedProgram,
    table: Table,
    became: dict[str, str] | None = None,
    keep: Keep | None = None,
) -> bool:
    """Replace calls without a handler by their decompositions, in place.

    Parameters
    ----------
    program : ExportedProgram
        The result of ``torch.export.export``.
    table : mapping
        The decompositions of ops without a handler.
    became : dict of str to str, optional
        Extended by the names of replaced calls, by the names of the nodes with their values.
    keep : Keep, optional
        The ops whose calls stay.

    Returns
    -------
    bool
        Whether nothing is left to decompose. If not, the program is still correct, and must be
        decomposed as a whole: it writes to tensors that are visible elsewhere, draws random
        numbers, has control flow, or has an op without a handler whose decomposition does so, or
        whose result has a size that depends on values.
    """
    graph = program.graph
    if not all(map(_stands_alone, graph.nodes)) or any(
        map(_has_parts, program.state_dict.values())
    ):
        return False
    keep = keep or Keep()
    calls = _Calls(graph, table, became={} if became is None else became, keep=keep)
    complete = all(map(calls.decompose, _keep_needed(graph)))
    (results,) = next(node.args for node in graph.nodes if node.op == "output")
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, Node):
            spec.arg.name = result.name
    if not complete:
        program.graph_module.recompile()
    return complete


def _keep_needed(graph: Graph) -> list[Node]:
    """Erase calls that no result, write or size check needs; return the others in order.

    Checks of sizes that depend on values are used later (:mod:`.lowering.relations`).
    """
    wanted = {node for node in graph.nodes if node.op == "output" or writes(node) or checks(node)}
    for node in reversed(graph.nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    for node in reversed(calls):
        if node not in wanted:
            graph.erase_node(node)
    return [node for node in calls if node in wanted]


def writes(node: Node) -> bool:
    """Return whether a node changes a tensor."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def checks(node: Node) -> bool:
    """Return whether a node checks a size that depends on values."""
    is_check = node.target is aten._assert_scalar.default
    return is_check and any(map(unbacked_sizes, node.all_input_nodes))


def _takes_packed(node: Node) -> bool:
    """Return whether a call makes or takes a packed parameter, which lowering refuses by name."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return any(map(is_packed, tree_leaves(values)))


def _stands_alone(node: Node) -> bool:
    """Return whether the result of a node depends only on its arguments."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    if _finds_sizes(node) and str(node.target) not in HANDLERS:
        return False
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__module__", "") in _NUMBERS
    return not draws(node) or _chance(node) == 0


def _has_parts(value: Any) -> bool:
    """Return whether a tensor is made of others, such as torchao's weights, which tracing finds."""
    return bool(is_traceable_wrapper_subclass(value))


def _finds_sizes(node: Node) -> bool:
    """Return whether a size of the node's result depends on values, and no argument's does."""
    given = set[Any]().union(*map(unbacked_sizes, node.all_input_nodes))
    return not unbacked_sizes(node) <= given


def _chance(node: Node) -> Any:
    """Return the probability with which an op drops elements; 1 for other ops that draw."""
    given = arguments(node)
    if given.get("train") is False:
        return 0
    return next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), 1)


class _Calls:
    """The calls of one graph, and the decomposition of each kind of them.

    Parameters
    ----------
    graph : Graph
    table : mapping
        The decompositions of ops without a handler.
    tracing : bool
        Whether calls are traced. Calls that come from a trace would be replaced by themselves;
        those that replace writes have not been traced.
    became : dict of str to str
        See :func:`decompose_calls`.
    keep : Keep
        The ops whose calls stay.
    """

    def __init__(
        self,
        graph: Graph,
        table: Table,
        *,
        tracing: bool = True,
        became: dict[str, str],
        keep: Keep,
    ) -> None:
        self._keep = keep
        self._graph = graph
        self._table = table
        self._tracing = tracing
        self._became = became
        self._traced: dict[Any, GraphModule | None] = {}
        self._done: set[Node] = set()

    def decompose(self, node: Node) -> bool:
        """Replace a call if necessary; return whether the result can be lowered."""
        was_write = writes(node) and str(node.target) not in CASTS
        if was_write and not self._make_functional(node):
            return False
        self._done.add(node)
        if not isinstance(node.target, OpOverload) or str(node.target) in HANDLERS:
            return True
        if self._keep.has(str(node.target)):
            return True
        if checks(node) or _takes_packed(node):
            return True
        if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
            return True
        node.meta.setdefault(ORIGIN, origin(node))
        return self._respell(node) or ((self._tracing or was_write) and self._trace(node))

    def _make_functional(self, node: Node) -> bool:
        """Replace a write by its functional form if nothing else sees the written tensor.

        Later reads of the tensor, also through views made before the write, or through the write's
        own result, then read the new tensor.
        """
        target: Any = node.target
        function, parts = _find_function(target), _parts(node.args[0])
        written = parts[-1].args[0] if parts else node.args[0]
        if (
            function is None
            or not isinstance(written, Node)
            or any(argument.alias_info for argument in target._schema.arguments[1:])
        ):
            return False
        views = self._views(written, node)
        if views is None:
            return False
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with _fake_mode(node):
            value = function(*args, **kwargs)
        if (value.dtype, value.shape) != (node.meta["val"].dtype, node.meta["val"].shape):
            return False
        node.target = function
        whole = node
        for part in parts:
            source: Any = part.args[0]
            whole = self._add(whole, _SCATTERS[part.target], part, (source, whole))
            whole.meta["val"] = source.meta["val"]
        readers = {view: self._later(view, node) for view in views}
        if parts:
            readers[node] = self._later(node, node)
        written.replace_all_uses_with(
            whole, delete_user_cb=lambda user: user not in self._done and user is not node
        )
        made, last = {written: whole}, whole
        for view, users in readers.items():
            for step in self._steps(parts[0] if view is node else view, made) if users else ():
                viewed: Any = step.args[0]
                last = made[step] = self._add(last, step.target, step, (made[viewed],))
                last.meta["val"] = step.meta["val"]
            for user in users:
                user.replace_input_with(view, made[parts[0] if view is node else view])
        return True

    def _views(self, written: Node, write: Node) -> list[Node] | None:
        """Return the views of a tensor that were made before a write to it.

        Return None if the write is visible through another tensor: one of which the written tensor
        is itself a view, or a view that may be a copy.
        """
        source: Any = written
        while isinstance(source, Node) and source.op == "call_function" and not is_fresh(source):
            source = source.args[0]
        if not isinstance(source, Node) or source.op != "call_function":
            return None
        names, views = [source], {written: None}
        for name in names:
            if name not in views and self._later(name, write):
                return None
            for user in name.users:
                if user in self._done and not is_fresh(user):
                    names.append(user)
                    if name in views and user.args[0] is name and user.target in _VIEWS:
                        views[user] = None
        return [view for view in views if view is not written]

    def _later(self, name: Node, write: Node) -> list[Node]:
        """Return the nodes after a write that read this tensor."""
        return [user for user in name.users if user not in self._done and user is not write]

    def _steps(self, view: Any, made: dict[Node, Node]) -> list[Node]:
        """Return the chain of views from one in ``made`` to this one."""
        steps: list[Node] = []
        while view not in made:
            steps.insert(0, view)
            view = view.args[0]
        return steps

    def _add(self, after: Node, target: Any, part: Node, args: tuple[Node, ...]) -> Node:
        """Add a call about the same part as another call."""
        with self._graph.inserting_after(after):
            new = self._graph.call_function(target, (*args, *part.args[1:]), part.kwargs)
        new.meta = dict(after.meta)
        self._done.add(new)
        return new

    def _respell(self, node: Node) -> bool:
        """Replace a call by one other call, if that needs no tracing."""
        found = respell(node)
        if isinstance(found, Node):
            self._replace(node, found)
        elif found is not None:
            node.target, node.args, node.kwargs, results = found
            if results:
                self._pick_first(node, results)
        return found is not None

    def _pick_first(self, node: Node, results: tuple[torch.Tensor, ...]) -> None:
        """Replace a call by its first result."""
        with self._graph.inserting_after(node):
            first = self._graph.call_function(operator.getitem, (node, 0))
        first.meta = dict(node.meta)
        node.meta["val"] = results
        node.replace_all_uses_with(first, delete_user_cb=lambda user: user is not first)
        self._done.add(first)
        self._became[first.name] = node.name

    def _trace(self, node: Node) -> bool:
        """Replace a call by the nodes of its decomposition."""
        leaves, spec = tree_flatten((node.args, node.kwargs))
        values = tree_map_only(Node, lambda each: each.meta["val"], leaves)
        key = (node.target, str(spec), *map(_kind, values))
        if key not in self._traced:
            with _fake_mode(node):
                self._traced[key] = _trace_call(node.target, values, spec, self._table)
        traced = self._traced[key]
        if traced is None:
            return False
        sources = (leaf for leaf in leaves if isinstance(leaf, Node))
        copies: dict[Node, Any] = {}
        with self._graph.inserting_before(node):
            for each in traced.graph.nodes:
                if each.op == "placeholder":
                    copies[each] = next(sources)
                elif each.op == "call_function":
                    new = self._graph.node_copy(each, copies.__getitem__)
                    new.meta = {**node.meta, "val": each.meta["val"]}
                    copies[each] = new
                    self._done.add(new)
                else:
                    self._replace(node, torch.fx.map_arg(each.args[0], copies.__getitem__))
        return True

    def _replace(self, node: Node, result: Any) -> None:
        """Replace a call by a result: a node, or several if other nodes pick one of them."""
        if isinstance(result, Node):
            self._done.add(result)
            self._became[result.name] = node.name
            node.replace_all_uses_with(result)
        else:
            for user in list(node.users):
                part = result[user.args[1]]
                self._became[part.name] = user.name
                user.replace_all_uses_with(part)
                self._graph.erase_node(user)
        self._graph.erase_node(node)


def _parts(written: Any) -> list[Node]:
    """Return the chain of nested parts to which a write goes, ending at a part of the tensor."""
    parts = []
    while isinstance(written, Node) and written.target in _SCATTERS:
        parts.append(written)
        written = written.args[0]
    return parts


def _find_function(write: OpOverload) -> Any:
    """Return the op that returns the values which another op writes; None if there is none.

    The overload may have another name: ``pow_.Scalar`` corresponds to ``pow.Tensor_Scalar``.
    """
    name = write._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(aten, name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    wanted = _parameters(write)
    return next(
        (op for op in overloads if not op._schema.is_mutable and _parameters(op) == wanted), None
    )


def _parameters(op: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in op._schema.arguments]


def is_fresh(node: Node) -> bool:
    """Return whether the result of a node has its own memory."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_fresh(node.args[0])
    if not isinstance(node.target, OpOverload):
        return node.op == "output"
    returns = node.target._schema.returns
    return not any(each.alias_info for each in returns) and str(node.target) not in CASTS


def views(node: Any) -> Iterator[Node]:
    """Yield a node, the tensor that it is a view of, and so on to the owner of the memory."""
    while isinstance(node, Node):
        yield node
        if node.op != "call_function" or is_fresh(node):
            return
        node = node.args[0]


def written(program: ExportedProgram) -> set[str]:
    """Return the names of the nodes whose tensors are changed, directly or through views."""
    writers = filter(writes, program.graph.nodes)
    return {view.name for writer in writers for view in views(writer.args[0])}


def _fake_mode(node: Node) -> FakeTensorMode:
    """Return the mode in which the tensors of a program have no data."""
    tensor = tree_leaves(node.meta["val"])[0]
    assert isinstance(tensor, FakeTensor)
    return tensor.fake_mode


def trace_kept(program: ExportedProgram, table: Table, keep: Keep) -> None:
    """Note the decomposition of each kept call of an op without a handler, under :data:`KEPT`."""
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.nodes]
    for node in nodes:
        if (
            node.op != "call_function"
            or not keep.has(str(node.target))
            or str(node.target) in HANDLERS
        ):
            continue
        leaves, spec = tree_flatten((node.args, node.kwargs))
        values = tree_map_only(Node, lambda each: each.meta["val"], leaves)
        with _fake_mode(node):
            module = _trace_call(node.target, values, spec, table)
        node.meta[KEPT] = module
        for inner in () if module is None else module.graph.nodes:
            inner.meta[ORIGIN] = origin(node)


def _kind(value: Any) -> Any:
    """Return the properties of an argument on which a call's decomposition depends."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        bits = value.is_conj(), value.is_neg()
        return value.dtype, value.device, value.dim(), *map(str, sizes), *bits
    return type(value), str(value)


def _trace_call(target: Any, values: list[Any], spec: Any, table: Table) -> GraphModule | None:
    """Trace a call on tensors without data; None if the result cannot be lowered."""
    function = table.get(target, target)
    traced = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)

    def call(*given: Any) -> Any:
        rest = iter(given)
        leaves = [next(rest) if isinstance(value, traced) else value for value in values]
        args, kwargs = tree_unflatten(leaves, spec)
        return function(*args, **kwargs)

    try:
        given = [_fresh(value) for value in values if isinstance(value, traced)]
        with enable_python_dispatcher():  # this mode knows varying sizes
            module = make_fx(call, decomposition_table=table)(*given)  # type: ignore[arg-type]
    except Exception:  # torch raises many types; the whole program may succeed, or report why not
        return None
    # stft writes to its own intermediates
    calls = _Calls(module.graph, table, tracing=False, became={}, keep=Keep())
    made = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(map(calls.decompose, made)):
        return None
    left = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    return None if any(map(_finds_sizes, left)) or not all(map(_is_lowered, left)) else module


def _fresh(value: Any) -> Any:
    """Return a new tensor of the same kind without data; a number is returned as it is.

    Tracing identifies its inputs by the objects. Two nodes may share an object: those of two equal
    calls do, and so do two arguments with the same value here, but not in the next call of this
    kind.
    """
    if not isinstance(value, torch.Tensor):
        return value
    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    fresh = empty.conj() if value.is_conj() else empty
    return torch._neg_view(fresh) if value.is_neg() else fresh


def _is_lowered(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return node.op == "call_function" and getattr(target, "__module__", "") in _NUMBERS
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return str(target) in HANDLERS and not target._schema.is_mutable and not draws(node)
