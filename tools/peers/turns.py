"""Engines taking turns, so that a drift of the machine's speed meets all of them alike."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from tools.peers.cases import SETS
from tools.peers.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from tools.peers.engines import Run


class Refused(Exception):
    """An engine does not take a model; the text says why."""


class Runner(Protocol):
    """What takes a turn."""

    def seconds(self) -> float:
        """Run once; the time it took."""


class Timed:
    """A function, timed by a clock."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.perf_counter) -> None:
        self._run = run
        self._clock = clock

    def seconds(self) -> float:
        """See :class:`Runner`."""
        with torch.no_grad():
            begin = self._clock()
            self._run()
            return self._clock() - begin


class Here(Timed):
    """An engine in this process."""

    def __init__(self, engine: str, family: str, model: str, plan: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            module, args = SETS[family][model]()
            with torch.no_grad():
                super().__init__(ENGINES[engine](module, args, plan, threads))
                self.output = self._run().copy()
        except Exception as error:  # whatever an engine raises is its refusal
            raise Refused(f"{type(error).__name__}: {error}") from error

    def woken_seconds(self) -> float:
        """Run once to wake the threads, then as :meth:`seconds`."""
        self.seconds()
        return self.seconds()

    def close(self) -> None:
        """Nothing to end."""


class Apart:
    """What takes turns, in a process of its own that is stopped between its turns.

    Stopped, because an engine's threads may spin for a while after a run, on others' CPUs.

    Parameters
    ----------
    make : callable
        Of a module, called there; it may raise :class:`Refused`. What it makes has an ``output``.
    *what
        Its arguments.
    """

    def __init__(self, make: Callable[..., Any], *what: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, what), daemon=True)
        self._process.start()
        theirs.close()
        try:
            answer = self._pipe.recv()
        except EOFError:
            answer = "its process ended"
        if isinstance(answer, str):
            self.close()
            raise Refused(answer)
        self.output = answer
        self._signal(signal.SIGSTOP)

    def seconds(self) -> float:
        """See :class:`Runner`: one run to wake its threads and one that is timed."""
        self.begin("woken_seconds")
        seconds: float = self.end()
        return seconds

    def begin(self, method: str, *arguments: Any) -> None:
        """Have the process go on, and call a method there."""
        self._signal(signal.SIGCONT)
        self._pipe.send((method, arguments))

    def end(self) -> Any:
        """Wait for what the method returns, and stop the process."""
        result = self._pipe.recv()
        self._signal(signal.SIGSTOP)
        return result

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _serve(pipe: Connection, make: Callable[..., Any], what: tuple[Any, ...]) -> None:
    try:
        runner = make(*what)
    except Refused as refusal:
        pipe.send(str(refusal))
        return
    pipe.send(runner.output)
    while True:
        method, arguments = pipe.recv()
        pipe.send(getattr(runner, method)(*arguments))


def take_turns(
    runners: Mapping[str, Runner], seconds: float, least: int = 5
) -> dict[str, list[float]]:
    """Times of every runner, one run each per turn, in a new order every turn.

    Parameters
    ----------
    runners : mapping of str to Runner
    seconds : float
        For all of them together, after two turns that are not counted.
    least : int
        Turns taken at the least.
    """
    order = list(runners)
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(2):
        for name in order:
            runners[name].seconds()
    end = time.perf_counter() + seconds
    turns = 0
    while turns < least or time.perf_counter() < end:
        shuffle(order)
        for name in order:
            times[name].append(runners[name].seconds())
        turns += 1
    return times


def paired_ratios(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median of the ratios theirs / ours, turn by turn, and its 95% interval: low, high.

    What slows a turn down slows both, and cancels. The interval is the percentile bootstrap of the
    median (Efron, "Bootstrap methods: another look at the jackknife", 1979) over the turns.
    """
    ratios = np.array(theirs) / np.array(ours)
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)
