"""Measure the limits of this machine; write and read the record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.machine.limits import MachineLimits, Memory
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from taper_runtime.native._kernels import Buffer

#: The minimum length of a trial in seconds, and the number of trials, of which the best counts.
_TRIAL_NS, _TRIALS = 2_000_000, 5
_LINE = 64


def measure_limits(
    levels: Sequence[str], threads: Sequence[int], advance: Callable[[], None] = lambda: None
) -> list[MachineLimits]:
    """Measure every ISA level at every number of threads; about a second each.

    ``advance`` is called after each measurement.
    """
    caches = [(f"L{i}", _kernels.cache_bytes(i)) for i in (1, 2, 3)]
    caches = [(name, size) for name, size in caches if size]
    largest = max((size for _, size in caches), default=1 << 27)
    wanted = 2 * largest * (max(threads) if len(caches) < 3 else 1)
    buffer = _kernels.Buffer(min(wanted, _kernels.memory_bytes() // 4 or wanted))
    made = []
    for isa in levels:
        for count in threads:
            memory: list[Memory] = []
            for name, size in caches:
                ours = size if name == "L3" else size * count  # the others are each core's own
                # Not much more than the level before holds: a limit is the best a level can do.
                used = min(ours // 2, 4 * memory[-1].size if memory else ours)
                memory.append(_memory(isa, count, buffer, name, ours, used))
            memory.append(_memory(isa, count, buffer, "DRAM", 0, buffer.size))
            flops = _best(isa, "fma", count, buffer, _LINE * count)
            int8 = _best(isa, "int8", count, buffer, _LINE * count)
            made.append(MachineLimits(isa, count, flops, int8, tuple(memory)))
            advance()
    return made


def _memory(isa: str, threads: int, buffer: Buffer, name: str, size: int, used: int) -> Memory:
    rates = [_best(isa, probe, threads, buffer, used) for probe in ("read", "copy")]
    return Memory(name, size, *rates)


def _best(isa: str, probe: str, threads: int, buffer: Buffer, nbytes: int) -> float:
    """Return the best trial's work per nanosecond; 0 if this CPU lacks the probe's instructions."""
    each = min(nbytes, buffer.size) // threads // _LINE * _LINE
    passes = 1
    best = 0.0
    trials = 0
    while trials < _TRIALS:
        result = _kernels.measure(isa, probe, threads, buffer, each, passes)
        if result is None:
            return 0.0
        work, ns = result
        best = max(best, work / ns)
        if ns < _TRIAL_NS:
            passes *= 2
        else:
            trials += 1
    return best


def describe_limits(limits: Sequence[MachineLimits]) -> str:
    """Return a table, one line per ISA level and number of threads."""
    caches = ", ".join(f"{m.name} {m.size >> 10} KiB" for m in limits[0].memory if m.size)
    names = [m.name for m in limits[0].memory]
    head = " ".join(f"{f'{name} read':>9} {'copy':>6}" for name in names)
    lines = [
        f"caches: {caches or 'unknown'}",
        f"{'isa':<9} threads  GFLOP/s int8 Gop/s {head}  (GB/s)",
    ]
    for limit in limits:
        rates = " ".join(f"{m.read:9.1f} {m.copy:6.1f}" for m in limit.memory)
        int8 = f"{limit.int8:10.0f}" if limit.int8 else f"{'-':>10}"
        lines.append(f"{limit.isa:<9} {limit.threads:7d} {limit.flops:8.1f} {int8} {rates}")
    return "\n".join(lines)


def save_limits(limits: Sequence[MachineLimits], path: str | os.PathLike[str]) -> None:
    """Write measured limits as JSON."""
    with open(path, "w") as file:
        json.dump([limits_data(item) for item in limits], file, indent=1)


def limits_data(limits: MachineLimits) -> dict[str, Any]:
    """Return the measured fields of limits, as plain data for JSON."""
    measured = {name: getattr(limits, name) for name in ("isa", "threads", "flops", "int8")}
    return {**measured, "memory": [m._asdict() for m in limits.memory]}


def load_limits(path: str | os.PathLike[str], isa: str, threads: int) -> MachineLimits:
    """Read the limits that :func:`save_limits` wrote for an ISA level and number of threads.

    Raises
    ------
    InputError
        If ``save_limits`` did not write the file, or it has no limits for these two.
    """
    try:
        with open(path) as file:
            made = [
                MachineLimits(**{**item, "memory": tuple(Memory(**m) for m in item["memory"])})
                for item in json.load(file)
            ]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: expected what `taper bench --machine` writes: {error}") from None
    for limits in made:
        if (limits.isa, limits.threads) == (isa, threads):
            return limits
    known = ", ".join(f"{limits.isa} x {limits.threads}" for limits in made)
    raise InputError(f"{path}: expected limits of {isa} x {threads} threads, got {known or 'none'}")
