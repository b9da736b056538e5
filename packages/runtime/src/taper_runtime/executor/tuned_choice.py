"""Choose kernels by the times in a database that ``taper tune`` wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base import VERSION
from taper_runtime.base.errors import OptionError
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.measurements import MachineSetting, node_key
from taper_runtime.machine.choices import MeasuredChoice
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
        Those of them whose kernel is not the default one.
    missing : tuple of str
        Nodes for which there was a choice, but no measured times: they have the default kernel.
    skipped : tuple of str
        Why lines of the database were left out.
    """

    chosen: Mapping[str, KernelName]
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    skipped: tuple[str, ...]


class TunedChoice(MeasuredChoice):
    """Takes the offer that was measured to be fastest, if it wins by more than times vary.

    Parameters
    ----------
    measurements : Measurements
    other_bits : bool
        As for :class:`.MeasuredChoice`.
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
        super().__init__(self._winning, other_bits)
        self.other_bits, self.required = other_bits, required
        self.measurements = measurements
        # of each node the kernel and whether it is the default one; None without measured times
        self._nodes: dict[str, tuple[KernelName, bool] | None] = {}

    def _winning(self, node: ChosenNode, offers: Sequence[Offer]) -> list[float] | None:
        """Return the times of offers: infinity for those that do not win against the first one."""
        names = [offer_name(offer) for offer in offers]
        times = self.measurements.find(node_key(node), list(map(str, names)))
        if times is None:
            self._nodes[node.label] = None
            if self.required:
                raise self.missing(node, f"of {', '.join(map(str, names))}")
            return None
        best = fastest(times)
        self._nodes[node.label] = names[best], best == 0
        return [0.0 if place == best else 1.0 for place in range(len(times))]

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

    def times(self, node: ChosenNode, offer: Offer) -> Quartiles | None:
        """Return the measured times of one offer for a node; None if they are not known."""
        found = self.measurements.find(node_key(node), [str(offer_name(offer))])
        return None if found is None else found[0]

    def used(self) -> TunedNodes:
        """Tell how the database was used so far."""
        chosen = {label: found for label, found in self._nodes.items() if found is not None}
        return TunedNodes(
            {label: kernel for label, (kernel, _) in chosen.items()},
            tuple(label for label, (_, is_default) in chosen.items() if not is_default),
            tuple(label for label, found in self._nodes.items() if found is None),
            self.measurements.skipped,
        )


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
    """Return what times depend on: this machine, an ISA level, a number of threads."""
    return MachineSetting(isa, cpu_model(), threads, VERSION)
