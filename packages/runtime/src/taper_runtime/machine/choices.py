"""Choose which kernel computes a node, and in which of its ways.

A kernel's row lists its variants, such as dot products or tiles over packed panels. What serves a
node is offered to a :class:`Choice` when the node is prepared: when a session is opened, and for
each new set of sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import OptionError, UnsupportedOpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.machine.cost import cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.native.variants import Offer
    from taper_runtime.ops.opdef import OpDef, TensorType


class ChosenNode(NamedTuple):
    """A node that something is chosen for, all sizes known.

    Attributes
    ----------
    label : str
        What errors call it.
    op : OpDef
    inputs, outputs : sequence of TensorType or None
    attrs : mapping
        Complete.
    """

    label: str
    op: OpDef
    inputs: Sequence[TensorType | None]
    outputs: Sequence[TensorType]
    attrs: Mapping[str, Any]


class Choice(ABC):
    """Chooses among what serves a node."""

    @abstractmethod
    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """Return which of the offers computes the node; None where there is none.

        Parameters
        ----------
        node : ChosenNode
        offers : sequence of Offer
            By kernel in order of preference, what a kernel chooses itself before its other
            variants: the first is what is taken where nobody chooses.
        refused : sequence of (str, str)
            Kernels and variants of the op that do not serve the node, each with the reason.
        """


class First(Choice):
    """Takes the first kernel that serves a node, and the variant that it chooses itself."""

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        return 0 if offers else None


class LeastCost(Choice):
    """Takes what the cost model estimates to be fastest (:mod:`taper_runtime.machine.cost`).

    The estimate adds what an offer does beyond its op to the op's work. It rests on a typical
    machine, so that all machines of one ISA level choose alike.
    """

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        if len(offers) < 2:
            return 0 if offers else None
        return min(range(len(offers)), key=lambda i: estimate_ns(node, offers[i]))


def estimate_ns(node: ChosenNode, offer: Offer) -> float:
    """Estimate the nanoseconds of a node on one thread, as this offer computes it."""
    extra = (offer.extra_flops, offer.scratch_traffic)
    return cost(node.op, node.inputs, node.outputs, node.attrs, extra=extra)


class MeasuredChoice(Choice):
    """Takes what was measured to be fastest, and the first offer where nothing was measured.

    Parameters
    ----------
    times : callable
        ``(node, offers) -> sequence of float or None``: nanoseconds of each offer; None where they
        are not known.
    other_bits : bool
        Whether offers of other bits than the first may be taken. Measurements differ from time to
        time, and results would with them.
    """

    def __init__(
        self,
        times: Callable[[ChosenNode, Sequence[Offer]], Sequence[float] | None],
        other_bits: bool = False,
    ) -> None:
        self._times, self._other_bits = times, other_bits

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        allowed = [i for i, each in enumerate(offers) if self._other_bits or not each.other_bits]
        if len(allowed) < 2:
            return 0 if offers else None
        times = self._times(node, [offers[i] for i in allowed])
        if times is None:
            return 0
        return min(zip(times, allowed, strict=True))[1]


class Forced(Choice):
    """Takes the kernel or the variant of one name only.

    Parameters
    ----------
    name : str
    among : Choice
        Chooses where several offers have the name.
    """

    def __init__(self, name: str, among: Choice) -> None:
        self._name, self._among = name, among

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`.

        Raises
        ------
        UnsupportedOpError
            If no offer has the name: with the reason of each that does not serve the node, and what
            serves it.
        """
        named = [i for i, offer in enumerate(offers) if self._name in (offer.kernel, offer.variant)]
        if not named:
            raise UnsupportedOpError(self._reason(node, offers, refused))
        chosen = self._among.choose(node, [offers[i] for i in named], refused)
        return None if chosen is None else named[chosen]

    def _reason(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> str:
        types = ", ".join("absent" if each is None else _type_text(each) for each in node.inputs)
        asked = f"kernels={{{node.op.name!r}: {self._name!r}}}"
        lines = [
            f"node {node.label}: {asked}, but {self._name!r} does not serve it",
            f"  of {types} -> {', '.join(map(_type_text, node.outputs))}",
        ]
        lines += [f"  {name}: {reason}" for name, reason in refused]
        names = [
            f"{each.variant} ({each.kernel})" if each.variant else each.kernel for each in offers
        ]
        lines.append(f"  what serves it: {', '.join(names) or 'no kernel'}")
        return "\n".join(lines)


def _type_text(type_: TensorType) -> str:
    text = f"{type_.dtype}{list(type_.shape)}"
    return text if type_.format == "plain" else f"{text} in {type_.format}"


FIRST = First()

#: What ``SessionOptions.kernel_choice`` may be called.
NAMES = ("first", "cost", "measured")


def choice_named(name: str) -> Choice | None:
    """Return the choice of one of :data:`NAMES`; None for ``"first"``, which asks nobody.

    Raises
    ------
    OptionError
        For ``"measured"``: no measurements are stored yet.
    """
    if name == "measured":
        raise OptionError(
            "kernel_choice='measured': no measurements of kernels are stored on this machine; "
            "give a taper_runtime.machine.choices.MeasuredChoice(times), whose function knows the "
            "times of a node's kernels, or choose 'first' or 'cost'"
        )
    return LeastCost() if name == "cost" else None
