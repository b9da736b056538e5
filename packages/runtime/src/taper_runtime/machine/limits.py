"""Record the limits of a machine, and those of a typical one."""

from __future__ import annotations

from functools import lru_cache

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.opdef import CHAINED


class Memory(NamedTuple):
    """One level of the memory hierarchy.

    Attributes
    ----------
    name : str
        ``"L1"``, ``"L2"``, ``"L3"`` or ``"DRAM"``.
    size : int
        The bytes that the level holds for all threads together; 0 for DRAM.
    read, copy : float
        The bandwidth of all threads in GB/s, which is bytes per nanosecond. A copy counts bytes
        read and bytes written.
    """

    name: str
    size: int
    read: float
    copy: float


class MachineLimits(NamedTuple):
    """The limits of ``threads`` threads that run the code of one ISA level.

    The first five are measured (:mod:`taper_runtime.machine.measure`). The others are the costs of
    kernels and executor beyond arithmetic and traffic. They are 0 in a measured record, and
    ``reached`` is 1, so that its estimate is a lower bound of the time.

    Attributes
    ----------
    isa : str
    threads : int
    flops : float
        GFLOP/s of float32 multiply-adds in registers, each counted as two: flops per nanosecond.
    int8 : float
        Gop/s of int8 multiply-adds into int32; 0 if the CPU has no instruction for them.
    memory : tuple of Memory
        The nearest level first, DRAM last; a cache whose size the system does not report is
        missing.
    sum_steps : int
        The time of storing one sum of a product and starting the next, in multiply-adds.
    scratch_ns : float
        Nanoseconds per byte that a kernel transforms to, or from, scratch memory.
    spill : float
        How many times as long that takes where a transform needs more than 16 vectors at once.
    load_steps : float
        The time of loading a number that few multiply-adds share, in multiply-adds.
    node_ns : float
        Nanoseconds of overhead per node.
    worker_ns : float
        Nanoseconds of work from which one more thread pays.
    reached : float
        The part of ``flops`` and ``int8`` that the inner loops of products reach.
    function_ns : float
        Nanoseconds per unit of the measured times of elementwise functions
        (:func:`taper_runtime.native._kernels.function_times`).
    row_ns : float
        Nanoseconds from the end of one loop over elements to the next.
    int7 : float
        As ``int8``, where activations are from 0 to 127; 0 if that makes no difference.
    """

    isa: str
    threads: int
    flops: float
    int8: float
    memory: tuple[Memory, ...]
    sum_steps: int = 0
    scratch_ns: float = 0.0
    spill: float = 1.0
    node_ns: float = 0.0
    worker_ns: int = 0
    reached: float = 1.0
    function_ns: float = 0.0
    row_ns: float = 0.0
    int7: float = 0.0
    load_steps: float = 0.0

    @property
    def of_seven_bits(self) -> MachineLimits:
        """Return the machine's limits with int8 speed for activations from 0 to 127."""
        return self._replace(int8=self.int7 or self.int8)

    def rate(self, dtype: str) -> float:
        """Return the operations per nanosecond that products on numbers of a dtype reach."""
        if dtype in ("int8", "uint8"):
            return self.reached * (self.int8 or self.flops)
        # half as many lanes
        return self.reached * (self.flops / 2 if dtype == "float64" else self.flops)

    def function(self, name: str, dtype: str) -> float:
        """Return the nanoseconds of an elementwise function on an element in L1.

        The times were measured on vectors of 4 floats without a multiply-add (SSE), of 8 (AVX2) and
        of 16 (AVX-512). NEON is as fast as SSE, and at most half as fast as AVX2. What tile
        programs do not have is computed by numpy.
        """
        times = _CHAINED_TIMES if name == CHAINED else function_times().get((name, dtype))
        four, eight, sixteen = times or (_NUMPY_TIME,) * 3
        by_level = {"baseline": four, "neon": min(four, 2 * eight), "avx512": sixteen}
        return self.function_ns * by_level.get(self.isa, eight)

    def holding(self, nbytes: int) -> Memory:
        """Return the nearest level that holds this many bytes."""
        return next(level for level in self.memory if level.size >= nbytes or not level.size)


#: The times of :data:`.CHAINED`, as of :func:`function_times`.
_CHAINED_TIMES = (8, 4, 2)

#: About what numpy takes for an element, in the unit of :func:`function_times`.
_NUMPY_TIME = 100


@lru_cache
def function_times() -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the measured times of elementwise functions: see ``_kernels.function_times``."""
    from taper_runtime.native import _kernels

    return _kernels.function_times()


#: One thread of a server. Decisions of the compiler use it, so that plans do not depend on the
#: machine that exports them. The rates come from two machines, a Xeon (Sapphire
#: Rapids) and an EPYC (Zen 4), whose measured limits are in ``docs/results/benchmarks.md`` (avx512,
#: one thread).
TYPICAL = MachineLimits(
    isa="avx512",
    threads=1,
    # The peak is 174 on the Xeon and 118 on the EPYC. The value is that of the faster machine, on
    # which traffic is the larger part of the time.
    flops=174.0,
    # That of the Xeon. Choices between dtypes use its ratio to float32.
    int8=595.0,
    memory=(
        # A core's own cache: 1 MiB on the EPYC, 2 MiB on the Xeon. Row tiles of 1 MiB gave the
        # fastest MobileNetV2; those of 0.5 MiB lost 3% to rows computed twice, those of 2 MiB half
        # of the gain. Its rates are the Xeon's. No decision uses them: operands in this cache cost
        # nothing.
        Memory("L2", 1 << 20, 119.0, 77.0),
        # 25.6 read and 26.4 copied on the Xeon; the EPYC reaches 100 while its other cores are
        # idle. A node that waits for its operands reads at four fifths of that.
        Memory("L3", 32 << 20, 20.0, 80 / 3),
        # 12.3 read and 10.5 copied on the Xeon, 18 to 27 on the EPYC, 16 read on a Zen 3. At this
        # rate the form of a convolution's weight that is estimated to be fastest is the fastest of
        # 22 sizes on AVX2, and of 5 in 6 on AVX-512.
        Memory("DRAM", 0, 16.0, 10.5),
    ),
    # Like the next two, fitted to alternating runs of whole models. A product of K = 64 spends a
    # ninth of its time on storing its tiles and starting the next ones.
    sum_steps=8,
    # Winograd's transforms load, add and store a byte in about the time that a copy in L3 takes.
    scratch_ns=1 / 32,
    # An empty step takes 0.04 us. The rest is lost at the start and the end of a node: to cold
    # weights, and to its last task.
    node_ns=1000.0,
    # Two threads synchronise twice per node. So one more thread pays from 480 kflop, or 80 kB
    # copied.
    worker_ns=3000,
    reached=160 / 174,
    # The unit of the table is a hundredth of a nanosecond.
    function_ns=0.01,
    # Rows of three elements that are moved to another order take 2.5 ns on the Zen 3.
    row_ns=2.5,
    # Depthwise convolutions on the EPYC.
    load_steps=0.5,
)


class _Level(NamedTuple):
    """Differences of an ISA level from AVX-512, whose vectors have 16 floats.

    Attributes
    ----------
    lanes : int
        The floats of its vectors.
    reached : float
        See :class:`MachineLimits`.
    int8, int7 : float
        The operations on int8 in the time of one on float32, in products; with activations of any
        value, and from 0 to 127.
    scratch_ns, spill, load_steps : float
        See :class:`MachineLimits`.
    """

    lanes: int
    reached: float
    int8: float
    int7: float
    scratch_ns: float
    spill: float
    load_steps: float


#: A product on SSE has to copy a vector for each multiplication, and has too few registers: it does
#: 29.5 of 52 GFLOP/s on the Zen 4. Products of int8 without an instruction for them take 1.5 and
#: 1.8 operations there in the time of one on float32; with activations from 0 to 127 2.1 on AVX2,
#: where most weights are small. A transform of F(4x4) has 36 vectors at once: with 16 registers
#: most of them are stored and loaded again between its two passes, and take three times as long as
#: those of F(2x2), which have 16. Nobody has timed NEON.
_LEVELS = {
    "avx2": _Level(8, 0.92, 1.5, 2.1, 1 / 28, 3.0, 2.0),
    "neon": _Level(4, 0.92, 595 / 174, 595 / 174, 1 / 32, 1.0, 2.0),
    "baseline": _Level(4, 0.565, 1.8, 1.8, 1 / 20, 3.0, 2.0),
}


@lru_cache
def typical(isa: str) -> MachineLimits:
    """Return :data:`TYPICAL` for the vectors of an ISA level, the same on all machines."""
    if isa not in _LEVELS:
        return TYPICAL._replace(isa=isa)
    level = _LEVELS[isa]
    flops = TYPICAL.flops * level.lanes / 16
    return TYPICAL._replace(
        isa=isa,
        flops=flops,
        int8=flops * level.int8,
        int7=flops * level.int7,
        reached=level.reached,
        scratch_ns=level.scratch_ns,
        spill=level.spill,
        load_steps=level.load_steps,
    )
