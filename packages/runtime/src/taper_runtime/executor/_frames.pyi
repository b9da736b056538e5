"""Types of the extension; see _frames.pyx."""

from collections.abc import Sequence

import numpy as np

from taper_runtime.executor._kernels import Selection
from taper_runtime.executor._pool import FramePool, Stop
from taper_runtime.executor._program import Program, Weights
from taper_runtime.executor.hosts import Host

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
    def hosts(self) -> list[Host]: ...
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
