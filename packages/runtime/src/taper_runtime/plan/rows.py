"""Find the outputs of a batch that are computed item by item, each from one item of the inputs.

The bits of such an item do not depend on the other items or on their number, because no kernel
changes its order of additions for them.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UndecidedError, is_static
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.region import Grouped, Relation, Same, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan, PlanNode


class _Items(NamedTuple):
    """The position of a batch in a tensor: element i of ``axis`` is of an item.

    The item is ``(i + shift) // each``.
    """

    axis: int
    each: int
    shift: int = 0


#: The value for a tensor whose items depend on each other.
_MIXED = _Items(-1, 0)


class Batch(NamedTuple):
    """A batch in a plan, and the outputs that keep its items apart.

    Attributes
    ----------
    size : size
        The number of items: the dim that states have a row for each of, or else the first dim of
        most inputs.
    apart : tuple of str
        The outputs whose items depend only on the same item of the inputs and states, and on
        weights.
    mixed : tuple of str
        The outputs whose items may depend on other items, by the rules of the ops. Outputs that
        depend on no input are in neither.
    """

    size: int
    apart: tuple[str, ...]
    mixed: tuple[str, ...]


def batch_of_states(plan: Plan) -> str:
    """Return the size variable that counts the rows of states; empty if each run has one state."""
    rows = ((name, _rows(plan, name)) for name in plan.states)
    found = (str(plan.tensors[name].shape[each.axis]) for name, each in rows if each is not None)
    return next(found, "")


def find_batch(plan: Plan) -> Batch | None:
    """Return how a plan treats a batch.

    None if no state has a row for each item, and no input has a first dim other than 1.
    """
    rows = {name: items for name in plan.states if (items := _rows(plan, name)) is not None}
    firsts = {
        name: plan.tensors[name].shape[0]
        for name in plan.inputs
        if plan.tensors[name].shape and plan.tensors[name].shape[0] != 1
    }
    if rows:
        size = next(plan.tensors[name].shape[items.axis] for name, items in rows.items())
        shapes = {name: plan.tensors[name].shape for name in plan.inputs}
        given = {n: _Items(shape.index(size), 1) for n, shape in shapes.items() if size in shape}
    elif firsts:
        counts = Counter(firsts.values())
        size = max(counts, key=lambda first: (counts[first], not is_static(first)))
        given = {name: _Items(0, 1) for name, first in firsts.items() if first == size}
    else:
        return None
    while True:
        # states have rows, as long as runs compute each row by itself
        held = given | dict.fromkeys(plan.states, _MIXED) | rows
        for node in plan.nodes:
            found = _of_node(plan, node, held)
            if found is not None:
                held.update(dict.fromkeys(node.outputs, found))
        kept = {n: items for n, items in rows.items() if held.get(plan.states[n]) == items}
        if len(kept) == len(rows):
            break
        rows = kept
    outputs = [name for name in dict.fromkeys(plan.outputs) if name in held]
    mixed = tuple(name for name in outputs if held[name] == _MIXED or held[name].shift != 0)
    return Batch(size, tuple(name for name in outputs if name not in mixed), mixed)


def _rows(plan: Plan, state: str) -> _Items | None:
    """Return the axis of a state that has a row for each item of a batch."""
    shape = plan.tensors[state].shape
    return next((_Items(axis, 1) for axis, size in enumerate(shape) if not is_static(size)), None)


def describe_batch(plan: Plan) -> list[str]:
    """Return a line for each output that says whether its items depend on each other."""
    batch = find_batch(plan)
    if batch is None:
        return []
    lines = [f"batch   {name}: each of {batch.size} items by itself" for name in batch.apart]
    mixed = f"an item may depend on others of the {batch.size}"
    return [*lines, *(f"batch   {name}: {mixed}" for name in batch.mixed)]


def batch_data(plan: Plan) -> dict[str, Any]:
    """Return the result of :func:`find_batch` as plain data."""
    batch = find_batch(plan) or Batch(1, (), ())
    size = batch.size if is_static(batch.size) else str(batch.size)
    return {"size": size, "apart": list(batch.apart), "mixed": list(batch.mixed)}


def _of_node(plan: Plan, node: PlanNode, held: Mapping[str, _Items]) -> _Items | None:
    """Return how the output of a node holds the batch; None if it does not depend on it."""
    given = [held.get(name) if name is not None else None for name in node.inputs]
    if all(items is None for items in given):
        return None
    if _MIXED in given or node.blocks or len(node.outputs) > 1:
        return _MIXED
    types = [None if name is None else plan.tensors[name].type for name in node.inputs]
    output = plan.tensors[node.output].type
    found: set[_Items] = set()
    regions = REGISTRY[node.op].needs(types, output, node.attrs)
    for type_, items, region in zip(types, given, regions, strict=True):
        if items is not None and type_ is not None:
            relation = region[items.axis]
            found.add(_through(relation, items, type_.shape, output.shape))
    return found.pop() if len(found) == 1 else _MIXED


def _through(relation: Relation, items: _Items, shape: Shape, output: Shape) -> _Items:
    """Return how an op's output holds the items, for an input axis with this relation."""
    match relation:
        case Same(axis):
            return items._replace(axis=axis)
        case Window(axis, first, 1, 1):  # only some of them, or mixed with others
            return items._replace(axis=axis, shift=items.shift + first)
        case Grouped(inputs, outputs) if inputs[0] == items.axis:
            more = math.prod(shape[axis] for axis in inputs[1:])
            fewer = math.prod(output[axis] for axis in outputs[1:])
            try:
                each, shift = items.each * more // fewer, items.shift * more // fewer
            except (UndecidedError, ZeroDivisionError):
                return _MIXED
            if each * fewer == items.each * more and shift * fewer == items.shift * more:
                return _Items(outputs[0], each, shift)
    return _MIXED
