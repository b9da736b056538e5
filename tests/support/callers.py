"""Requests from many threads at the same time."""

import threading
import time
from typing import NamedTuple


class Load(NamedTuple):
    """What became of requests.

    Attributes
    ----------
    seconds : float
        From the first request's begin to the last one's end.
    latencies : list of float
        Seconds that each request took.
    """

    seconds: float
    latencies: list


def call_from(callers, run, requests):
    """Have so many threads call ``run()`` until it has been called ``requests`` times; a Load."""
    latencies = []
    left = iter(range(requests))
    start = threading.Barrier(callers + 1)

    def call():
        start.wait()
        for _ in left:  # the GIL makes each number one thread's
            begin = time.perf_counter()
            run()
            latencies.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return Load(time.perf_counter() - begin, latencies)
