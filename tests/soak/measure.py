"""Run jobs from many threads for a while; keep how long they took, in memory that does not grow."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.soak.jobs import Job

_PER_DECADE, _LEAST_S, _BINS = 60, 1e-6, 60 * 9


class Histogram:
    """Durations, each within 4%."""

    def __init__(self) -> None:
        self.counts = [0] * _BINS

    def add(self, seconds: float) -> None:
        """Count one."""
        place = int(_PER_DECADE * math.log10(max(seconds, _LEAST_S) / _LEAST_S))
        self.counts[min(place, _BINS - 1)] += 1

    def merge(self, other: Histogram) -> None:
        """Count what another has."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]

    def percentile(self, share: float) -> float:
        """Return the seconds that ``share`` of the durations do not exceed."""
        reached = np.cumsum(self.counts)
        place = int(np.searchsorted(reached, share * reached[-1]))
        return _LEAST_S * 10 ** ((place + 1) / _PER_DECADE)


class Sample(NamedTuple):
    """The process at one moment."""

    seconds: float
    resident: int
    done: int


class Soak(NamedTuple):
    """What became of a soak."""

    times: dict[str, Histogram]
    samples: list[Sample]
    errors: list[BaseException]

    def growth(self) -> float:
        """Return the largest resident size of the last third over that of the second."""
        third = len(self.samples) // 3
        sizes = [sample.resident for sample in self.samples]
        return max(sizes[2 * third :]) / max(sizes[third : 2 * third])


def soak(jobs: Sequence[Job], seconds: float, threads: int) -> Soak:
    """Have threads take turns at jobs, each in an order of its own."""
    times = [{job.name: Histogram() for job in jobs} for _ in range(threads)]
    errors: list[BaseException] = []
    end = threading.Event()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        begun = [job.begin() for job in jobs]
        while not end.is_set():
            which = int(rng.integers(len(jobs)))
            start = time.perf_counter()
            try:
                begun[which](rng)
            except BaseException as error:  # whatever it is, the soak has found it
                errors.append(error)
                end.set()
            times[number][jobs[which].name].add(time.perf_counter() - start)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    samples: list[Sample] = []
    begin = time.monotonic()
    while not end.wait(min(1.0, seconds / 30)):
        passed = time.monotonic() - begin
        done = sum(sum(h.counts) for each in times for h in each.values())
        samples.append(Sample(passed, resident_bytes(), done))
        if passed >= seconds:
            break
    end.set()
    for worker in workers:
        worker.join()
    merged = {job.name: Histogram() for job in jobs}
    for each in times:
        for name, histogram in each.items():
            merged[name].merge(histogram)
    return Soak(merged, samples, errors)


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM, as Linux tells it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
