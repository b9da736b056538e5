"""Ask which kernels of our library can compute a node, without computing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.dispatching import find_implementations
from taper_runtime.executor.executor import definition, input_types, operand, output_types
from taper_runtime.extend.servers import label_of
from taper_runtime.machine.choices import FIRST, Choice, ChosenNode
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.native.variants import Offer
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Plan, PlanNode


class NodeOffers(NamedTuple):
    """The kernels that were offered for a node.

    Attributes
    ----------
    node : ChosenNode
    offers : sequence of Offer
        The default one first.
    refused : sequence of (str, str)
        Kernels and variants that do not support the node, each with the reason.
    taken : Offer or None
        The one that computes the node; None if a server or a user's kernel does.
    """

    node: ChosenNode
    offers: Sequence[Offer]
    refused: Sequence[tuple[str, str]]
    taken: Offer | None


class _Heard(Choice):
    """Choice that asks another one, and remembers what was offered and taken."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self.offers: Sequence[Offer] = ()
        self.refused: Sequence[tuple[str, str]] = ()
        self.taken: Offer | None = None

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        self.offers, self.refused = offers, refused
        index = self._choice.choose(node, offers, refused)
        self.taken = None if index is None else offers[index]
        return index


def find_offers(
    plan: Plan,
    node: PlanNode,
    dispatch: Dispatch,
    types: Sequence[TensorType | None] | None = None,
    strides: Sequence[tuple[int, ...]] | None = None,
) -> NodeOffers:
    """Return the kernels that are offered for a node of known sizes.

    Parameters
    ----------
    plan : Plan
    node : PlanNode
    dispatch : Dispatch
    types, strides : sequence, optional
        The types and strides (elements) of the inputs, if they are not those of the plan.

    Raises
    ------
    UnsupportedOpError
        If the choice of ``dispatch`` allows none.
    """
    op, attrs = definition(node)
    if types is None or strides is None:
        types = input_types(plan, node)
        strides = [() if each is None else plan.placements[each].strides for each in node.inputs]
    kernels, _ = find_implementations(plan, node, dispatch, _no_block, _no_server)
    inputs = [None if each is None else (each, at) for each, at in zip(types, strides, strict=True)]
    outputs = [operand(plan, name) for name in node.outputs]
    places = [*strides, *(each for _, each in outputs)]
    told = ChosenNode(label_of(node), op, types, output_types(plan, node), attrs, places)
    heard = _Heard(dispatch.chooser(node.op) or FIRST)
    prepared = _kernels.prepare(op, attrs, inputs, outputs, kernels, heard, told)
    taken = None if prepared is None or prepared.kind != "native" else heard.taken
    return NodeOffers(told, heard.offers, heard.refused, taken)


def _no_block(index: int) -> Any:
    """Stand in for a block of a node; no node is run."""


def _no_server(*_: object) -> Any:
    """Stand in for foreign code, whose nodes are not asked about."""
