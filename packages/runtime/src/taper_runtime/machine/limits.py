"""Record what a machine can do at most, and what a typical one does."""

from __future__ import annotations

from taper_runtime.base.records import NamedTuple


class Memory(NamedTuple):
    """One level of the memory hierarchy.

    Attributes
    ----------
    name : str
        ``"L1"``, ``"L2"``, ``"L3"`` or ``"DRAM"``.
    size : int
        Bytes the level holds for all threads together; 0 for DRAM.
    read, copy : float
        GB/s of all threads, which is bytes per nanosecond. A copy counts bytes read and bytes
        written.
    """

    name: str
    size: int
    read: float
    copy: float


class MachineLimits(NamedTuple):
    """What ``threads`` threads can do with the code of one ISA level.

    The first five are measured (:mod:`taper_runtime.machine.measure`). The others are what kernels
    and executor cost beyond arithmetic and traffic: 0 in a measured record, so that its estimate is
    a time that no code can beat.

    Attributes
    ----------
    isa : str
    threads : int
    flops : float
        GFLOP/s of float32 multiply-adds in registers, two for each: flops per nanosecond.
    int8 : float
        Gop/s of int8 multiply-adds into int32; 0 where the CPU has no instruction for them.
    memory : tuple of Memory
        Nearest first, DRAM last; a cache whose size the system does not tell is missing.
    sum_steps : int
        Multiply-adds that storing one sum of a product and starting the next one takes the time of.
    scratch_ns : float
        Nanoseconds for each byte that a kernel writes to scratch, or reads there, to transform it.
    node_ns : float
        Nanoseconds that a node takes beside its work.
    worker_ns : float
        Nanoseconds of work that pay for one more thread.
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
        """Operations per nanosecond on numbers of a dtype."""
        if dtype in ("int8", "uint8"):
            return self.int8 or self.flops
        return self.flops / 2 if dtype == "float64" else self.flops  # half as many lanes

    def holding(self, nbytes: int) -> Memory:
        """The nearest level that holds this many bytes."""
        return next(level for level in self.memory if level.size >= nbytes or not level.size)


#: One thread of a server, for decisions that must not depend on the machine that makes them: plans
#: are the same wherever they are exported. The rates come from two machines, a Xeon (Sapphire
#: Rapids) and an EPYC (Zen 4), whose measured limits are in ``docs/results/benchmarks.md`` (avx512,
#: one thread).
TYPICAL = MachineLimits(
    isa="avx512",
    threads=1,
    # Matrix products reach up to 92% of the peak, which is 174 on the Xeon and 118 on the EPYC. The
    # faster machine counts: there traffic is the larger part of the time.
    flops=160.0,
    # 92% of 595 on the Xeon. Its ratio to float32 is what a choice between dtypes rests on.
    int8=550.0,
    memory=(
        # A core's own cache: 1 MiB on the EPYC, 2 on the Xeon. Bands of 1 MiB gave the fastest
        # MobileNetV2, those of 0.5 lost 3% to rows computed twice, those of 2 half of the gain.
        # Of its rates, the Xeon's, no decision makes use: what is in it costs nothing.
        Memory("L2", 1 << 20, 119.0, 77.0),
        # 25.6 read and 26.4 copied on the Xeon; the EPYC has 100 while its other cores are idle.
        # A node that waits for its operands reads four fifths of that.
        Memory("L3", 32 << 20, 20.0, 80 / 3),
        # 12.3 read and 10.5 copied on the Xeon, 18 to 27 on the EPYC.
        Memory("DRAM", 0, 12.0, 10.5),
    ),
    # Fitted, as the next two, to whole models in alternating runs. A product of K = 64 loses a
    # ninth of its time to the stores of its tiles and to the start of the next ones.
    sum_steps=8,
    # Winograd's transforms load, add and store a byte in about the time that a copy in L3 takes.
    scratch_ns=1 / 32,
    # An empty step takes 0.04 us. The rest is what a node loses where it begins and ends: cold
    # weights, the last of its tasks.
    node_ns=1000.0,
    # Two threads meet twice around a node. So one more is worth 480 kflop, or 80 kB copied.
    worker_ns=3000,
)
