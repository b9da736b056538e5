"""Choose kernels by the times in a database that ``taper tune`` wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base import VERSION
from taper_runtime.base.errors import OptionError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.file.measurements import MachineSetting, node_key
from taper_runtime.machine.choices import Choice
from taper_runtime.machine.cost import threads_worth
from taper_runtime.machine.cpu_model import cpu_model
from taper_runtime.native.variants import KernelName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.file.measurements import Measurements, Quartiles
    from taper_runtime.machine.choices import ChosenNode
    from taper_runtime.native.variants import Offer


class TunedNodes(NamedTuple):
    """Nodes of an entry by whether a database has measured times for them.

    If sizes vary, a node is listed as it was for the latest sizes that were prepared. Formats of
    weights that were chosen by measured times stand in the session's plan, not here.

    Attributes
    ----------
    chosen : mapping of str to KernelName
        The kernel of each node that has measured times, by the node's label: its first output and
        op, as in errors.
    changed : tuple of str
        Those of them whose kernel is not the default one, or which fewer threads compute.
    threads : mapping of str to int
        The most threads that compute a node, for nodes that were fastest on fewer than they could
        have.
    missing : tuple of str
        Nodes for which there was a choice, but no measured times: they have the default kernel.
    skipped : tuple of str
        Why lines of the database were left out.
    """

    chosen: Mapping[str, KernelName]
    changed: tuple[str, ...]
    threads: Mapping[str, int]
    missing: tuple[str, ...]
    skipped: tuple[str, ...]


class Way(NamedTuple):
    """A way to compute a node; ``str`` returns the name under which its times are stored.

    Attributes
    ----------
    kernel : KernelName
    threads : int
        The most threads that compute it; 0 for those of the session.
    """

    kernel: KernelName
    threads: int = 0

    def __str__(self) -> str:
        """Return the name."""
        return (
            f"{self.kernel} on {counted(self.threads, 'thread')}"
            if self.threads
            else str(self.kernel)
        )


class TunedChoice(Choice):
    """Takes the way with the least measured time, if it wins by more than measurements vary.

    Parameters
    ----------
    measurements : Measurements
    other_bits : bool
        Whether kernels whose results differ in bits from the first's may be taken.
    required : bool
        Whether a node without measured times is an error, rather than computed by the first offer.
    """

    def __init__(
        self,
        measurements: Measurements,
        *,
        other_bits: bool = False,
        required: bool = False,
    ) -> None:
        self.other_bits, self.required = other_bits, required
        self.measurements = measurements
        # of each node its way and whether it is the default one; None without measured times
        self._nodes: dict[str, tuple[Way, bool] | None] = {}

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        ways = ways_of(node, offers, self.measurements.machine.threads, other_bits=self.other_bits)
        if len(ways) < 2:
            return 0 if offers else None
        times = self.measurements.find(node_key(node), list(map(str, ways)))
        if times is None:
            self._nodes[node.label] = None
            if self.required:
                raise self.missing(node, f"of {', '.join(map(str, ways))}")
            return 0
        best = fastest(times)
        self._nodes[node.label] = ways[best], best == 0
        return [*map(offer_name, offers)].index(ways[best].kernel)

    def threads(self, node: ChosenNode, offer: Offer) -> int:
        """See :meth:`Choice.threads`."""
        found = self._nodes.get(node.label)
        return 0 if found is None else found[0].threads

    def not_required(self) -> TunedChoice:
        """Return a choice by the same times that takes the first offer where they are missing."""
        return TunedChoice(self.measurements, other_bits=self.other_bits)

    def missing(self, node: ChosenNode, what: str) -> OptionError:
        """Return the error for a node that lacks measured times."""
        machine = self.measurements.machine
        why = "; ".join(("", *self.measurements.skipped))
        return OptionError(
            f"require_tuned: node {node.label}: expected measured times {what} in "
            f"{self.measurements.path}, for {machine.cpu!r}, {machine.isa}, threads "
            f"{machine.threads}, version {machine.version}, got none; run `taper tune`{why}"
        )

    def times(self, node: ChosenNode, way: Way) -> Quartiles | None:
        """Return the measured times of one way for a node; None if they are not known."""
        found = self.measurements.find(node_key(node), [str(way)])
        return None if found is None else found[0]

    def used(self) -> TunedNodes:
        """Tell how the database was used so far."""
        chosen = {label: found for label, found in self._nodes.items() if found is not None}
        return TunedNodes(
            {label: way.kernel for label, (way, _) in chosen.items()},
            tuple(label for label, (_, is_default) in chosen.items() if not is_default),
            {label: way.threads for label, (way, _) in chosen.items() if way.threads},
            tuple(label for label, found in self._nodes.items() if found is None),
            self.measurements.skipped,
        )


def ways_of(
    node: ChosenNode, offers: Sequence[Offer], threads: int, *, other_bits: bool
) -> list[Way]:
    """Return the ways to compute a node, the default one first.

    These are the offers, each on all threads of the session and on a half, a quarter... of those
    that it would keep busy. The number of threads changes no bits.
    """
    work = node.op.work(node.inputs, node.outputs, node.attrs) if threads > 1 else None
    ways = []
    for offer in offers:
        if other_bits or not offer.other_bits:
            ways.append(Way(offer_name(offer)))
            most = 1 if work is None else min(threads, offer.tasks, threads_worth(work))
            while most > 1:
                most //= 2
                ways.append(Way(offer_name(offer), most))
    return ways


def offer_name(offer: Offer) -> KernelName:
    """Return the name under which the times of an offer are stored."""
    return KernelName(offer.kernel, offer.variant)


def fastest(times: Sequence[Quartiles]) -> int:
    """Return which times are the least: 0, unless others win by more than the times vary.

    Other times win if three quarters of them are less than three quarters of the first ones.
    """
    winners = [i for i, each in enumerate(times) if not i or each.high < times[0].low]
    return min(winners, key=lambda i: times[i].median)


def machine_setting(isa: str, threads: int) -> MachineSetting:
    """Return the setting on which times depend: this machine, an ISA level, the threads."""
    return MachineSetting(isa, cpu_model(), threads, VERSION)
