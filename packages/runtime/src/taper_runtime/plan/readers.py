"""Find the inputs that a plan does not depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.sizes import Size, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec


def unread_inputs(plan: Plan) -> frozenset[str]:
    """Return the inputs whose elements no node reads and whose sizes are used nowhere else.

    Fixed dims of such an input may still have influenced the capture; a plan does not record that.
    """
    read = {name for node in plan.nodes for name in node.reads}
    read |= {tensor for tensor, _ in plan.origins.values()}
    unread = {name for name in plan.inputs if name not in read}
    if not unread:
        return frozenset()
    others = {name: spec for name, spec in plan.tensors.items() if name not in unread}
    sizes = {*_sizes_of(plan.nodes, others), *_in([*plan.sizes.values()])}
    return frozenset(n for n in unread if sizes.isdisjoint(_in(plan.tensors[n].shape)))


def _sizes_of(nodes: tuple[PlanNode, ...], tensors: Mapping[str, TensorSpec]) -> Iterator[str]:
    """Yield the size variables that nodes and tensors use, including those of blocks."""
    for spec in tensors.values():
        yield from _in(spec.shape)
    for node in nodes:
        yield from _in([*node.attrs.values()])
        for block in node.blocks:
            yield from _sizes_of(block.nodes, block.tensors)


def _in(value: Any) -> Iterator[str]:
    """Yield the size variables in an attr."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _in(each)
    elif isinstance(value, Size):
        yield from (atom.text for atom in variables(value))
