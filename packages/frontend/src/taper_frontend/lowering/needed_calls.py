"""Find which calls are needed, and which have no handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.aten_program import (
    SymbolicNumber,
    symbols_in,
    tensors_of,
    unbacked_sizes,
)
from taper_frontend.lowering.context import Refusal
from taper_frontend.lowering.handlers import HANDLERS
from taper_frontend.lowering.numbers import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_frontend.lowering.aten_program import AtenProgram, Node
    from taper_frontend.lowering.handlers import Handler


#: The target of a node that picks one of several results.
GETITEM = "operator.getitem"

#: Ops that move numbers unchanged, and so may move floats of 8 bits.
_MOVES = frozenset(
    f"aten.{op}"
    for op in (
        *("alias.default", "cat.default", "clone.default", "detach.default", "embedding.default"),
        *("expand.default", "index_select.default", "permute.default", "reshape.default"),
        *("select.int", "slice.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims"),
        *("t.default", "transpose.int", "unsqueeze.default", "view.default"),
    )
)

#: torch's check of the results of torch.linalg, which a plan leaves out.
LINALG_CHECK = "aten._linalg_check_errors.default"


def needed(nodes: Iterable[Node]) -> list[Node]:
    """Return, in order, the nodes that results depend on, and those that draw random numbers.

    The others only assert something: a plan's inputs have one type, and a plan cannot raise a
    model's own errors. Unused random numbers are drawn too, because later draws depend on them.
    """
    wanted = {node for node in nodes if node.op == "output" or node.draws}
    for node in reversed(list(nodes)):
        if node in wanted and _is_check(node):
            wanted.remove(node)
        elif node in wanted:
            wanted.update(node.all_input_nodes)
    return [node for node in nodes if node in wanted]


def _has_bodies(node: Node) -> bool:
    """Return whether the node has graphs to run as arguments."""
    return any(source.op == "get_attr" for source in node.all_input_nodes)


def _is_check(node: Node) -> bool:
    """Return whether the node is torch.linalg's check of its results, or its token."""
    source = node.args[0] if node.target == GETITEM else node
    return source.target == "with_effects" and source.args[1] == LINALG_CHECK


def find_handler(node: Node) -> Handler | None:
    """Return the handler of a node, or None if a node that it depends on was refused.

    Raises
    ------
    Refusal
        If this kind of node is not supported.
    """
    target = node.target
    if node.is_higher_order and target not in HANDLERS:
        mutates = target.startswith("auto_functionalized")
        category = "mutation" if mutates else "control flow" if _has_bodies(node) else "op"
        raise Refusal("no handler lowers this higher-order operator", category)
    if is_item(node):
        return HANDLERS[target]
    if isinstance(node.value, SymbolicNumber):
        return None
    for value in tensors_of([node]):
        if (reason := value.refused) and not (value.is_of_codes and target in _MOVES):
            raise Refusal(reason, "dtype")
    if (handler := HANDLERS.get(target)) is not None:
        return handler
    known = set[object]().union(*(unbacked_sizes(source) for source in node.all_input_nodes))
    if unbacked_sizes(node) - known:
        raise Refusal(
            "the shape of the result depends on values, and no handler lowers this op",
            "data-dependent",
        )
    if node.draws:
        reason = (
            "no handler lowers this random distribution; docs/random-numbers.md lists the others"
        )
        raise Refusal(reason, "op")
    raise Refusal("no handler lowers this op; docs/adding-an-op.md shows how to add one", "op")


def is_item(node: Node) -> bool:
    """Return whether the node extracts a number from a tensor."""
    return node.target in ("aten.item.default", "aten._local_scalar_dense.default")


def is_only_computed_with(node: Node, program: AtenProgram) -> bool:
    """Return whether an int is used only in arithmetic, and in no shape or guard.

    Such an int may be negative, and a plan need not know it before a run.
    """
    symbols = node.value.expr.free_symbols
    if any(guard.free_symbols & symbols for guard in program.guards):
        return False
    if any(symbols_in(value.shape) & symbols for value in tensors_of(program.nodes)):
        return False
    limits = program.ranges.get(next(iter(symbols), None))
    return (limits is None or not limits.lower > 0) and _computes_only(node, set())


def _computes_only(number: Node, seen: set[Node]) -> bool:
    """Return whether all users of a number take it as a tensor, or compute such a number."""
    seen.add(number)
    for user in number.users:
        if user.op == "output" or user in seen:
            continue
        if isinstance(user.value, SymbolicNumber) and user.value.kind == "int":
            if user.target not in NUMBERS or not _computes_only(user, seen):
                return False
        elif not _takes_as_tensors(user, number):
            return False
    return True


def _takes_as_tensors(node: Node, number: Node) -> bool:
    """Return whether a node's schema has a tensor wherever this number is an argument."""
    if node.schema is None or number in node.kwargs.values():
        return False
    places = [i for i, each in enumerate(node.args) if each is number]
    nested = any(number in each for each in node.args if isinstance(each, list | tuple))
    return not nested and all(node.schema[i].is_tensor for i in places)
