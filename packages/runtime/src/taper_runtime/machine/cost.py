"""Estimate how long a node takes.

One model serves three uses: passes that compare forms of a graph, the number of threads of a node,
and the lower bound that a profile compares times with. It is the roofline model (Williams,
Waterman, Patterson: "Roofline", CACM 2009) with two kinds of traffic. Streamed traffic, such as
weights, overlaps with arithmetic. A kernel waits for the other kind, such as the output of the node
before when it has left the cache.
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

    Operands in the core's own cache cause no traffic.

    Attributes
    ----------
    share : float
        The fraction of the node's output elements that are computed at once.
    streamed : float
        Nanoseconds of traffic that overlap with arithmetic.
    waited : float
        Nanoseconds of traffic that do not overlap.
    """

    share: float = 1.0
    streamed: float = 0.0
    waited: float = 0.0


#: The whole node is computed at once, with its operands in the core's own cache.
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
        The types, with static shapes. The format of a weight's type decides the algorithm.
    outputs : sequence of TensorType
    attrs : mapping
        Complete.
    place : Locality
    limits : MachineLimits, optional
        By default :data:`taper_runtime.machine.limits.TYPICAL`.
    extra : (int, int), optional
        The kernel's own figures of extra flops, and of bytes of scratch traffic; they replace the
        op's ``padding`` and ``scratch``.
    """
    limits = limits or machine.TYPICAL
    work = op.work(inputs, outputs, attrs)
    if extra is not None:
        work = work._replace(padding=extra[0], scratch=extra[1])
    steps = limits.sum_steps * work.sums + limits.load_steps * work.loads
    flops = work.flops + work.padding + 2 * steps
    dtype = (inputs[0] if inputs and inputs[0] is not None else outputs[0]).dtype
    arithmetic = place.share * flops / limits.rate(dtype)
    elementwise = place.share * (_functions_ns(work, limits) + limits.row_ns * work.rows)
    transformed = work.scratch + (limits.spill - 1) * work.spilled
    scratch = place.share * transformed * limits.scratch_ns
    computed = arithmetic + elementwise
    return limits.node_ns + max(computed, place.streamed) + scratch + place.waited


def _functions_ns(work: Cost, limits: MachineLimits) -> float:
    """Return the nanoseconds of elementwise functions on elements in L1."""
    if not limits.function_ns:
        return 0.0
    return sum(n * limits.function(name, dtype) for name, dtype, n in work.functions)


def weight_cost(
    op: OpDef,
    inputs: Sequence[TensorType | None],
    outputs: Sequence[TensorType],
    attrs: Attrs,
    limits: MachineLimits | None = None,
    extra: tuple[int, int] | None = None,
) -> float:
    """Estimate the time of a node whose weights are read from DRAM: a run reads each weight once.

    Products prefetch the next panels of a weight, so its traffic overlaps with arithmetic.

    Parameters
    ----------
    op, inputs, outputs, attrs, limits, extra
        As :func:`cost` takes them. The op says which inputs are weights, and how much of them it
        reads.
    """
    weights = (inputs[i] for i in op.weights if i < len(inputs))
    stored = sum(type_.nbytes for type_ in weights if type_ is not None)
    read = op.work(inputs, outputs, attrs).bytes - sum(output.nbytes for output in outputs)
    place = Locality(streamed=memory_ns(max(0, min(stored, read))))
    return cost(op, inputs, outputs, attrs, place, limits, extra)


def shared_ns(nbytes: float) -> float:
    """Estimate the time of reading or writing bytes outside a core's own cache, in nanoseconds."""
    return nbytes / machine.TYPICAL.memory[-2].read


def memory_ns(nbytes: float) -> float:
    """Estimate the time of reading bytes that a run reads once, such as weights, in nanoseconds."""
    return nbytes / machine.TYPICAL.memory[-1].read


def cache_bytes() -> int:
    """Return how many bytes of a node's operands a core's own cache holds."""
    return machine.TYPICAL.memory[0].size


def beyond_cache(nbytes: float, room: int | None = None) -> float:
    """Return how many bytes of a tensor have left the cache when the next node reads it.

    Half of the cache, or of ``room`` bytes in its place, holds the operands that were read to
    compute the tensor.
    """
    return max(0.0, nbytes - (room or cache_bytes()) / 2)


def threads_worth(work: Cost) -> int:
    """Return how many threads a node can use well; 0 for a small one.

    This is the longer of arithmetic and traffic time, divided by the time that pays for one thread.
    All operands count as traffic outside the cache, since other cores have written or will read
    them. Sizes may be expressions, so the arithmetic uses integers.
    """
    limits = machine.TYPICAL
    flops = round(limits.rate("float32") * limits.worker_ns)
    nbytes = round(limits.memory[-2].copy * limits.worker_ns)
    return largest(work.flops // flops, work.bytes // nbytes)


def alone_ns(work: Cost) -> float:
    """Estimate the nanoseconds of a node on one thread, with all traffic outside the cache."""
    limits = machine.TYPICAL
    return limits.node_ns + max(
        work.flops / limits.rate("float32"), work.bytes / limits.memory[-2].copy
    )


def traffic_ns(
    limits: MachineLimits, constant: int, read: int, written: int, resident: int
) -> float:
    """Return the least time of a node's traffic, in nanoseconds.

    A run reads each constant once, so constants come from the level that holds everything that a
    run touches. Other inputs were just written, and come from the nearest level that holds them. A
    byte read per byte written counts as a copy.

    Parameters
    ----------
    limits : MachineLimits
    constant, read, written : int
        The bytes of weights, of other inputs, and of the output.
    resident : int
        The bytes that a whole run touches.
    """
    near = limits.holding(read + written)
    traffic = constant / limits.holding(resident).read
    traffic += max(read - written, 0) / near.read
    return traffic + (written + min(read, written)) / near.copy
