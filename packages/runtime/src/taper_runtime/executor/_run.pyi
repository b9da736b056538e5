"""Types of the extension; see _run.pyx."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from taper_runtime.executor._pool import FramePool
from taper_runtime.executor._program import Program, Weights
from taper_runtime.executor._stop import Stop
from taper_runtime.extend.servers import Server
from taper_runtime.native._kernels import Selection

_Result = TypeVar("_Result")

class RunLog:
    closed: bool
    @property
    def timed(self) -> int: ...
    @property
    def errors(self) -> int: ...
    def run(self, function: Callable[..., _Result], *args: Any) -> _Result: ...
    def count_error(self) -> None: ...
    def latest(self, count: int = ...) -> list[tuple[float, float]]: ...
    def baseline(self) -> list[tuple[float, float]] | None: ...

def in_order(names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...

class Runner:
    def __init__(
        self,
        program: Program,
        weights: Weights,
        sizes: Sequence[int],
        pool: FramePool | None = None,
    ) -> None: ...
    @property
    def program(self) -> Program: ...
    def with_weights(self, weights: Weights) -> Runner: ...
    @property
    def weights_version(self) -> int: ...
    @property
    def pool(self) -> FramePool: ...
    def kernels(self) -> list[str | None]: ...
    def servers(self) -> list[Server]: ...
    def selections(self) -> list[Selection | None]: ...
    def arena(self) -> tuple[list[tuple[int, int, int]], list[int], int]: ...
    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]: ...
    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int, int]]]]: ...
