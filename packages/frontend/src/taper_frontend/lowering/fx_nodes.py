"""Find which FX nodes are needed, which draw random numbers, and which have no handler."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export.graph_signature import CustomObjArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from taper_frontend.lowering.context import Refusal
from taper_frontend.lowering.handlers import HANDLERS
from taper_frontend.lowering.numbers import NUMBERS
from taper_frontend.lowering.pytrees import tensor_leaves
from taper_frontend.lowering.representation import refused_type
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.fx import Node

    from taper_frontend.lowering.handlers import Handler

#: The key in a graph module's metadata that holds the program as captured, before decomposition.
CAPTURED = "captured"

#: The key in a node's metadata that holds the :class:`Origin` of a node of a decomposition.
ORIGIN = "origin"


class Origin(NamedTuple):
    """The call of the exported program that a node comes from.

    Attributes
    ----------
    name : str
        The name of the call's node there.
    op : object
        What it calls, in functional form.
    args, kwargs
        Its arguments; None if they are unknown.
    value : object
        torch's description of its result.
    """

    name: str
    op: Any
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]
    value: Any

    @property
    def target(self) -> str:
        """Return the op's name, such as ``aten.relu.default``."""
        if isinstance(self.op, OpOverload | HigherOrderOperator):
            return functional_name(str(self.op))
        return f"{self.op.__module__.removeprefix('_')}.{self.op.__name__}"


def functional_name(target: str) -> str:
    """Return the name of the op that returns what another op writes: relu_ becomes relu."""
    namespace, _, name = target.partition(".")
    op, _, overload = name.partition(".")
    if op.endswith("_") and not op.endswith("__"):
        op = op[:-1]
    return ".".join(part for part in (namespace, op, overload) if part)


def origin(node: Node) -> Origin:
    """Return the call of the exported program that a node comes from: by default the node."""
    known: Origin | None = node.meta.get(ORIGIN)
    return known or Origin(node.name, node.target, node.args, node.kwargs, node.meta.get("val"))


def needed(nodes: Iterable[Node]) -> list[Node]:
    """Return, in order, the nodes that results depend on, and those that draw random numbers.

    The others only assert something: a plan's inputs have one type, and a plan cannot raise a
    model's own errors. Unused random numbers are drawn too, because later draws depend on them.
    """
    wanted = {node for node in nodes if node.op == "output" or draws(node)}
    for node in reversed(list(nodes)):
        if node in wanted and _is_check(node):
            wanted.remove(node)
        elif node in wanted:
            wanted.update(node.all_input_nodes)
    return [node for node in nodes if node in wanted]


def draws(node: Node) -> bool:
    """Return whether the node draws random numbers, or would in training mode."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _has_bodies(node: Node) -> bool:
    """Return whether the node has graphs to run as arguments."""
    return any(source.op == "get_attr" for source in node.all_input_nodes)


def _is_check(node: Node) -> bool:
    """Return whether the node is torch.linalg's check of its results, or its token."""
    source = node.args[0] if node.target is operator.getitem else node
    return (
        isinstance(source, torch.fx.Node)
        and str(source.target) == "with_effects"
        and source.args[1] is torch.ops.aten._linalg_check_errors.default
    )


def find_handler(node: Node) -> Handler | None:
    """Return the handler of a node, or None if a node that it depends on was refused.

    Raises
    ------
    Refusal
        If this kind of node is not supported.
    """
    target = node.target
    if isinstance(target, HigherOrderOperator) and str(target) not in HANDLERS:
        mutates = str(target).startswith("auto_functionalized")
        category = "mutation" if mutates else "control flow" if _has_bodies(node) else "op"
        raise Refusal("no handler lowers this higher-order operator", category)
    if is_item(node):
        return HANDLERS[str(target)]
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    for value in tensors_of([node]):
        if reason := refused_type(value):
            raise Refusal(reason, "dtype")
    if (handler := HANDLERS.get(str(target))) is not None:
        return handler
    known = set[object]().union(*(unbacked_sizes(source) for source in node.all_input_nodes))
    if unbacked_sizes(node) - known:
        raise Refusal(
            "the shape of the result depends on values, and no handler lowers this op",
            "data-dependent",
        )
    if draws(node):
        reason = (
            "no handler lowers this random distribution; docs/random-numbers.md lists the others"
        )
        raise Refusal(reason, "op")
    raise Refusal("no handler lowers this op; docs/adding-an-op.md shows how to add one", "op")


def is_item(node: Node) -> bool:
    """Return whether the node extracts a number from a tensor."""
    return str(node.target) in ("aten.item.default", "aten._local_scalar_dense.default")


def is_only_computed_with(node: Node) -> bool:
    """Return whether an int is used only in arithmetic, and in no shape or guard.

    Such an int may be negative, and a plan need not know it before a run.
    """
    symbols = node.meta["val"].node.expr.free_symbols
    env = node.meta["val"].node.shape_env
    if any(guard.expr.free_symbols & symbols for guard in env.guards):
        return False
    shapes = [value.shape for value in tensors_of(node.graph.nodes)]
    if any(_symbols(size) & symbols for shape in shapes for size in shape):
        return False
    limits = env.var_to_range.get(next(iter(symbols), None))
    return (limits is None or not limits.lower > 0) and _computes_only(node, set())


def _symbols(size: Any) -> set[Any]:
    """Return torch's symbols in a size."""
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def _computes_only(number: Node, seen: set[Node]) -> bool:
    """Return whether all users of a number take it as a tensor, or compute such a number."""
    seen.add(number)
    for user in number.users:
        if user.op == "output" or user in seen:
            continue
        if isinstance(user.meta.get("val"), torch.SymInt):
            if user.target not in NUMBERS or not _computes_only(user, seen):
                return False
        elif not _takes_as_tensors(user, number):
            return False
    return True


def _takes_as_tensors(node: Node, number: Node) -> bool:
    """Return whether a node's schema has a tensor wherever this number is an argument."""
    if not isinstance(node.target, OpOverload) or number in node.kwargs.values():
        return False
    arguments = node.target._schema.arguments
    places = [i for i, each in enumerate(node.args) if each is number]
    nested = any(number in each for each in node.args if isinstance(each, list | tuple))
    return not nested and all(str(arguments[i].type) == "Tensor" for i in places)


def tensors_of(nodes: Iterable[Node]) -> list[torch.Tensor]:
    """Return torch's descriptions of the tensors that the nodes compute."""
    return tensor_leaves([node.meta.get("val") for node in nodes])


def unbacked_sizes(node: Node) -> set[Any]:
    """Return the sizes in a node's results that depend on values."""
    value = node.meta.get("val")
    return set() if isinstance(value, CustomObjArgument) else set(free_unbacked_symbols(value))


def unbacked_shapes(node: Node) -> set[Any]:
    """Return those of them that are sizes of tensors."""
    return set(free_unbacked_symbols([tuple(value.shape) for value in tensors_of([node])]))
