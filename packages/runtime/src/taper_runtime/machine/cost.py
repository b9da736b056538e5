"""Estimate how long a node takes.

One model serves the passes that weigh one form of a graph against another, the number of threads
of a node, and the floor that a profile holds times against. It is the roofline (Williams, Waterman,
Patterson: "Roofline", CACM 2009) with two kinds of traffic: what streams in while a kernel
computes, such as weights, and what it waits for, such as the output of the node before that no
longer fits the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import largest
from taper_runtime.machine import limits as machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.ops.opdef import Attrs, Cost, OpDef, TensorType


class Locality(NamedTuple):
    """The memory traffic of a node, and how much of the node is computed at once.

    Operands that are in the core's own cache cause none.

    Attributes
    ----------
    share : float
        Part of the node that is computed at once, by its output's elements.
    streamed : float
        Nanoseconds of traffic that overlap with arithmetic.
    waited : float
        Nanoseconds of traffic that do not.
    """

    share: float = 1.0
    streamed: float = 0.0
    waited: float = 0.0


#: The whole node, its operands in the core's own cache.
NEAR = Locality()


def cost(
    op: OpDef,
    inputs: Sequence[TensorType | None],
    outputs: Sequence[TensorType],
    attrs: Attrs,
    place: Locality = NEAR,
    limits: MachineLimits | None = None,
    extra: tuple[int, int] | None = None,
) -> float:
    """Estimate the time of one node on one thread, in nanoseconds.

    Parameters
    ----------
    op : OpDef
    inputs : sequence of TensorType
        With static shapes. The type says in which format a weight is stored, and so which
        algorithm reads it.
    outputs : sequence of TensorType
    attrs : mapping
        Complete.
    place : Locality
    limits : MachineLimits, optional
        :data:`taper_runtime.machine.limits.TYPICAL` unless given.
    extra : (int, int), optional
        What a kernel says that it does beyond the op, in place of what the op expects: flops, and
        bytes of traffic with scratch.
    """
    limits = limits or machine.TYPICAL
    work = op.work(inputs, outputs, attrs)
    if extra is not None:
        work = work._replace(padding=extra[0], sums=0, scratch=extra[1])
    flops = work.flops + work.padding + 2 * limits.sum_steps * work.sums
    dtype = (inputs[0] if inputs and inputs[0] is not None else outputs[0]).dtype
    arithmetic = place.share * flops / limits.rate(dtype)
    scratch = place.share * work.scratch * limits.scratch_ns
    return limits.node_ns + max(arithmetic, place.streamed) + scratch + place.waited


def shared_ns(nbytes: float) -> float:
    """Estimate the time of reading or writing bytes beyond a core's own cache."""
    return nbytes / machine.TYPICAL.memory[-2].read


def memory_ns(nbytes: float) -> float:
    """Estimate the time of reading bytes that a run touches once, such as its weights."""
    return nbytes / machine.TYPICAL.memory[-1].read


def cache_bytes() -> int:
    """Return how many bytes a core's own cache holds of what a node reads and writes."""
    return machine.TYPICAL.memory[0].size


def beyond_cache(nbytes: float) -> float:
    """Return how much of a tensor has left the cache when the next node reads it.

    The other half of the cache is taken by what was read to make the tensor.
    """
    return max(0.0, nbytes - cache_bytes() / 2)


def threads_worth(work: Cost) -> int:
    """Return how many threads a node keeps busy; 0 for a small one.

    That is the longer of arithmetic and traffic, in units of what pays for a thread. All operands
    are copied beyond the cache, since other cores have written or will read them. Sizes may be
    expressions: the arithmetic is in integers.
    """
    limits = machine.TYPICAL
    flops = round(limits.flops * limits.worker_ns)
    nbytes = round(limits.memory[-2].copy * limits.worker_ns)
    return largest(work.flops // flops, work.bytes // nbytes)


def alone_ns(work: Cost) -> float:
    """Estimate the nanoseconds of a node on one thread, with all its traffic beyond the cache."""
    limits = machine.TYPICAL
    return limits.node_ns + max(work.flops / limits.flops, work.bytes / limits.memory[-2].copy)


def traffic_ns(
    limits: MachineLimits, constant: int, read: int, written: int, resident: int
) -> float:
    """Return the least time of a node's traffic, in nanoseconds.

    Constants come from the level that holds all that a run touches, since they are touched once a
    run; the rest was just written and is read where it fits. A byte read for each byte written
    counts as copied.

    Parameters
    ----------
    limits : MachineLimits
    constant, read, written : int
        Bytes of weights, of other inputs, of the output.
    resident : int
        Bytes a whole run touches.
    """
    near = limits.holding(read + written)
    traffic = constant / limits.holding(resident).read
    traffic += max(read - written, 0) / near.read
    return traffic + (written + min(read, written)) / near.copy
