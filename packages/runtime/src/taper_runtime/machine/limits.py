"""Record the limits of a machine, and those of a typical one."""

from __future__ import annotations

from functools import lru_cache

from taper_runtime.base.records import NamedTuple


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
    kernels and executor beyond arithmetic and traffic. They are 0 in a measured record, whose
    estimate is a lower bound of the time.

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
    node_ns : float
        Nanoseconds of overhead per node.
    worker_ns : float
        Nanoseconds of work from which one more thread pays.
    """

    isa: str
    threads: int
    flops: float
    int8: float
    memory: tuple[Memory, ...]
    sum_steps: int = 0
    scratch_ns: float = 0.0
    node_ns: float = 0.0
    worker_ns: int = 0

    def rate(self, dtype: str) -> float:
        """Return the operations per nanosecond on numbers of a dtype."""
        if dtype in ("int8", "uint8"):
            return self.int8 or self.flops
        return self.flops / 2 if dtype == "float64" else self.flops  # half as many lanes

    def holding(self, nbytes: int) -> Memory:
        """Return the nearest level that holds this many bytes."""
        return next(level for level in self.memory if level.size >= nbytes or not level.size)


#: One thread of a server. Decisions of the compiler use it, so that plans do not depend on the
#: machine that exports them. The rates come from two machines, a Xeon (Sapphire
#: Rapids) and an EPYC (Zen 4), whose measured limits are in ``docs/results/benchmarks.md`` (avx512,
#: one thread).
TYPICAL = MachineLimits(
    isa="avx512",
    threads=1,
    # Matrix products reach up to 92% of the peak, which is 174 on the Xeon and 118 on the EPYC. The
    # value is that of the faster machine, on which traffic is the larger part of the time.
    flops=160.0,
    # 92% of 595 on the Xeon. Choices between dtypes use its ratio to float32.
    int8=550.0,
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
)

#: The time of arithmetic by ISA level, as a multiple of that with AVX-512. Its vectors have 16
#: floats, those of AVX2 8, those of SSE and NEON 4, and SSE has no multiply-add.
_SLOWER = {"avx512": 1, "avx2": 2, "neon": 4, "baseline": 8}


@lru_cache
def typical(isa: str) -> MachineLimits:
    """Return :data:`TYPICAL` for the vectors of an ISA level, the same on all machines."""
    slower = _SLOWER.get(isa, 1)
    return TYPICAL._replace(isa=isa, flops=TYPICAL.flops / slower, int8=TYPICAL.int8 / slower)
