"""Choose the kernel that computes a node, and the kernel's variant.

A kernel's row lists its variants, such as dot products or tiles over packed panels. When a node is
prepared, a :class:`Choice` gets an offer for each kernel and variant that supports it. Nodes are
prepared when a session is opened, and for each new set of sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import UnsupportedOpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.machine.cost import weight_cost
from taper_runtime.machine.limits import typical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.native.variants import Offer
    from taper_runtime.ops.opdef import OpDef, TensorType


class ChosenNode(NamedTuple):
    """A node for which a kernel is chosen; all sizes are known.

    Attributes
    ----------
    label : str
        The node's name in errors.
    op : OpDef
    inputs, outputs : sequence of TensorType or None
    attrs : mapping
        Complete.
    strides : sequence of tuple of int
        Of the arrays that store the inputs, then the outputs, in elements; empty for an absent
        input.
    """

    label: str
    op: OpDef
    inputs: Sequence[TensorType | None]
    outputs: Sequence[TensorType]
    attrs: Mapping[str, Any]
    strides: Sequence[tuple[int, ...]]


class Choice(ABC):
    """Chooses one of the offers for a node."""

    @abstractmethod
    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """Return the offer that computes the node, or None if there is none.

        Parameters
        ----------
        node : ChosenNode
        offers : sequence of Offer
            The offers, by kernel in order of preference, with a kernel's default before its other
            variants. The first one is the default.
        refused : sequence of (str, str)
            Kernels and variants of the op that do not support the node, each with the reason.
        """

    def threads(self, node: ChosenNode, offer: Offer) -> int:
        """Return the most threads that may compute a node by the chosen offer; 0 for no limit."""
        return 0


class First(Choice):
    """Takes the first kernel that supports a node, in its default variant."""

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        return 0 if offers else None


#: Estimates tell ways apart from here on: a way other than the default one must be estimated to
#: take at most this fraction of its time.
WORTH = 0.95


def least_estimate(ns: Sequence[float]) -> int:
    """Return which of several estimated times is the least; the first, unless one is well below."""
    best = min(range(len(ns)), key=ns.__getitem__)
    return best if ns[best] <= WORTH * ns[0] else 0


class LeastCost(Choice):
    """Takes the fastest offer by the cost model's estimate (:mod:`taper_runtime.machine.cost`).

    It takes the first offer unless another is estimated to take at most :data:`WORTH` of its time.
    The estimate is :func:`estimate_ns` by the limits of a typical machine, so that all machines of
    one ISA level make the same choice.

    Parameters
    ----------
    isa : str, optional
        The ISA level; by default the one that kernels use.
    """

    def __init__(self, isa: str | None = None) -> None:
        from taper_runtime.native import _kernels

        self._limits = typical(_kernels.active_isa(isa))

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        if len(offers) < 2:
            return 0 if offers else None
        return least_estimate([estimate_ns(node, each, self._limits) for each in offers])


def estimate_ns(node: ChosenNode, offer: Offer, limits: MachineLimits) -> float:
    """Estimate the nanoseconds of a node on one thread, as this offer computes it.

    A kernel with several ways of computing a node says what each does beyond the op. Weights are
    read from DRAM.
    """
    extra = (offer.extra_flops, offer.scratch_traffic) if offer.variant else None
    return weight_cost(node.op, node.inputs, node.outputs, node.attrs, limits, extra)


class MeasuredChoice(Choice):
    """Takes the offer that was measured to be fastest, or the first one without measurements.

    Parameters
    ----------
    times : callable
        ``(node, offers) -> sequence of float or None``: the nanoseconds of each offer, or None if
        they are unknown.
    other_bits : bool
        Whether offers whose results differ in bits from the first's may be taken. Measurements
        vary, so results would vary with them.
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
    """Takes only the kernel or the variant of one name.

    Parameters
    ----------
    name : str
    among : Choice
        Chooses if several offers have the name.
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
            If no offer has the name. The message says why the kernel or variant does not support
            the node, and what does.
        """
        named = [i for i, offer in enumerate(offers) if self._name in (offer.kernel, offer.variant)]
        if not named:
            raise UnsupportedOpError(self._reason(node, offers, refused))
        chosen = self._among.choose(node, [offers[i] for i in named], refused)
        return None if chosen is None else named[chosen]

    def threads(self, node: ChosenNode, offer: Offer) -> int:
        """See :meth:`Choice.threads`."""
        return self._among.threads(node, offer)

    def _reason(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> str:
        """Explain why no offer has the forced name."""
        types = ", ".join("absent" if each is None else _type_text(each) for each in node.inputs)
        asked = f"kernels={{{node.op.name!r}: {self._name!r}}}"
        lines = [
            f"node {node.label}: {asked}: expected {self._name!r} to compute it, but it cannot",
            f"  of {types} -> {', '.join(map(_type_text, node.outputs))}",
        ]
        lines += [f"  {name}: {reason}" for name, reason in refused]
        names = [
            f"{each.variant} ({each.kernel})" if each.variant else each.kernel for each in offers
        ]
        lines.append(f"  kernels that can: {', '.join(names) or 'none'}")
        return "\n".join(lines)


def _type_text(type_: TensorType) -> str:
    text = f"{type_.dtype}{list(type_.shape)}"
    return text if type_.format == "plain" else f"{text} in {type_.format}"


FIRST = First()

#: The values of ``SessionOptions.kernel_choice``.
NAMES = ("first", "cost", "measured")
