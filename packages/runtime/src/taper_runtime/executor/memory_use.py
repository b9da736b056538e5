"""Compute the memory that a run of a plan needs, for reports and profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor import DEFAULT_SETTINGS, Settings
from taper_runtime.executor.memory_layout import MemoryLayout, layout_of
from taper_runtime.executor.program import example_sizes, make_runner
from taper_runtime.executor.rollback import with_saves
from taper_runtime.executor.sites import executed_nodes
from taper_runtime.extend.providers import NUMPY, Dispatch
from taper_runtime.plan.liveness import LiveRange, live_bytes
from taper_runtime.plan.replaceable import outlined
from taper_runtime.plan.specialize import specialize
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.plan.plan import Plan


class MemoryUse(NamedTuple):
    """The memory of a run on one thread, in bytes.

    Attributes
    ----------
    arena : int
    live : list of int
        Bytes of the arena that are needed at each executed node, each tensor and scratch rounded
        up to its alignment.
    intermediates : int
        Bytes of all that executed nodes compute, without outputs, if no tensors shared memory.
    weights : int
        Bytes of the values that the plan has: weights, also those from which replaceable ones are
        computed, and initial states.
    packed : int
        Bytes of the constants that the plan lacks: weights that each session packs, or otherwise
        computes, when it is opened.
    sizes : mapping of str to int
        The values of the size variables for which this holds.
    """

    arena: int
    live: list[int]
    intermediates: int
    weights: int
    packed: int
    sizes: Mapping[str, int]

    @property
    def lower_bound(self) -> int:
        """Return the largest number of bytes live at one node: a lower bound for any arena."""
        return max(self.live, default=0)


#: Numpy alone, for plans that are not trusted: then no kernel is prepared.
_NO_KERNELS = Settings(dispatch=Dispatch(providers=(NUMPY,)))


def memory_use(
    plan: Plan, sizes: Mapping[str, int] | None = None, *, kernels: bool = True
) -> MemoryUse:
    """Return the memory that a run of a plan needs on this machine.

    Parameters
    ----------
    plan : Plan
    sizes : mapping of str to int, optional
        Values of all size variables, none 0. By default those of the samples, or else the least
        ones.
    kernels : bool
        Whether to prepare this CPU's kernels, whose scratch is then part of the arena. If not, no
        native code reads the plan's shapes and attrs.

    Raises
    ------
    PlanFormatError
        If the plan is not valid.
    InputError
        If a tensor or the arena would be larger than it may be.
    """
    validate(plan)
    stored = sum(a.nbytes for a in (*plan.constants.values(), *plan.originals.values()))
    packed = sum(plan.tensors[n].nbytes for n in plan.derived if n not in plan.constants)
    plan = outlined(plan)
    sizes = example_sizes(plan) if sizes is None else sizes
    plan = with_saves(specialize(plan, sizes))
    settings = DEFAULT_SETTINGS if kernels else _NO_KERNELS
    ranges, _, arena = make_runner(plan, settings).arena()
    nodes = executed_nodes(plan)
    computed = (plan.tensors[name] for node in nodes for name in node.outputs)
    return MemoryUse(
        arena,
        live_bytes((LiveRange(birth, death, aligned(n)) for birth, death, n in ranges), len(nodes)),
        sum(spec.nbytes for spec in computed if spec.role != "output"),
        stored,
        packed,
        sizes,
    )


def memory_layout(
    plan: Plan, sizes: Mapping[str, int] | None = None, *, kernels: bool = True
) -> MemoryLayout:
    """Return where a run's memory lies in the arena on this machine; see :func:`memory_use`."""
    validate(plan)
    plan = outlined(plan)
    sizes = example_sizes(plan) if sizes is None else sizes
    plan = with_saves(specialize(plan, sizes))
    settings = DEFAULT_SETTINGS if kernels else _NO_KERNELS
    return layout_of(plan, make_runner(plan, settings).arena())


def parallel_arena(
    plan: Plan, sizes: Mapping[str, int] | None = None, *, kernels: bool = True
) -> int:
    """Return the bytes of the arena where nodes run at the same time; see :func:`memory_use`."""
    validate(plan)
    sizes = example_sizes(plan) if sizes is None else sizes
    settings = DEFAULT_SETTINGS if kernels else _NO_KERNELS
    parallel = settings._replace(nodes_at_once=2)
    _, _, arena = make_runner(with_saves(specialize(plan, sizes)), parallel).arena()
    return arena
