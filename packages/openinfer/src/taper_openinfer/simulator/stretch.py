"""A maximal run of ops without control between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_openinfer.errors import OpenInferError
from taper_openinfer.simulator.instructions import Instruction, located
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_openinfer.language.graph import Node
    from taper_openinfer.native import Stretches
    from taper_openinfer.simulator.frame import ThreadFrame

    Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

#: Sets of shapes and entries that a stretch keeps: more than models have layers.
MAX_KEPT = 512


class StretchCall(NamedTuple):
    """One op of a stretch.

    Attributes
    ----------
    node : Node
    op : str
    inputs : tuple of int
        Numbers of values: those that the stretch reads come first, then one for each call.
    settings : mapping
        No names of variables among them.
    output_dtype : str
    """

    node: Node
    op: str
    inputs: tuple[int, ...]
    settings: Mapping[str, Any]
    output_dtype: str


class StretchInput(NamedTuple):
    """A value that a stretch reads.

    Attributes
    ----------
    slot : int
        Of a variable; -1 of an entry of a table of weights.
    dtype : str
    table : str
        The table's name, else empty.
    entry : callable or None
        Returns the name of the file's tensor that the entry is.
    is_constant : bool
        Whether it is the same array in each run, but for which entry it is.
    """

    slot: int
    dtype: str
    table: str = ""
    entry: Callable[[ThreadFrame], str] | None = None
    is_constant: bool = False


class Stretch(Instruction):
    """Ops that are computed in one go.

    Parameters
    ----------
    block : str
    calls : sequence of StretchCall
    sources : sequence of StretchInput
        Those that vary, then variables that nobody writes, then entries of tables of weights.
    results : sequence of (int, int)
        Slots and the numbers of the values that they are left with.
    stretches : Stretches
        Makes what computes.
    """

    def __init__(
        self,
        block: str,
        calls: Sequence[StretchCall],
        sources: Sequence[StretchInput],
        results: Sequence[tuple[int, int]],
        stretches: Stretches,
    ) -> None:
        super().__init__(calls[0].node, block)
        self._calls, self._sources, self._stretches = calls, sources, stretches
        self._varying = [source.slot for source in sources if not source.is_constant]
        self._entries = [source.entry for source in sources if source.entry is not None]
        self._slots = [slot for slot, _ in results]
        self._outputs = [number for _, number in results]
        self._made: dict[tuple[Any, ...], Run] = {}

    def run(self, frame: ThreadFrame) -> None:
        """Compute."""
        values = frame.values
        inputs: list[Any] = [values[slot] for slot in self._varying]
        try:
            key: tuple[Any, ...] = tuple([value.shape for value in inputs])
        except AttributeError:  # one is None: its first value, which nobody has needed yet
            inputs = [self._first_value(frame, slot) for slot in self._varying]
            key = tuple([value.shape for value in inputs])
        if self._entries:
            key = (key, *[entry(frame) for entry in self._entries])
        run = self._made.get(key)
        if run is None:
            run = self._make(frame, inputs, key)
        try:
            results = run(inputs)
        except InputError as error:  # an index outside of what it indexes, say
            raise self._blamed(frame, error) from error
        for slot, value in zip(self._slots, results, strict=True):
            values[slot] = value

    def _first_value(self, frame: ThreadFrame, slot: int) -> np.ndarray:
        """Return the first value of a variable; where it has none, blame the op that reads it."""
        try:
            return frame.get(slot)
        except OpenInferError as error:
            at = [source.slot for source in self._sources].index(slot)
            call = next(call for call in self._calls if at in call.inputs)
            raise located(error, call.node) from error

    def _make(self, frame: ThreadFrame, inputs: Sequence[np.ndarray], key: tuple[Any, ...]) -> Run:
        """Return what computes inputs of these shapes."""
        first = len(inputs)
        constants = [
            frame.get(source.slot)
            if source.entry is None
            else frame.executor.entry(source.table, source.entry(frame))
            for source in self._sources[first:]
        ]
        if len(self._made) >= MAX_KEPT:
            del self._made[next(iter(self._made))]
        try:
            made: Run = self._stretches.make(
                self._calls,
                [array.shape for array in (*inputs, *constants)],
                [source.dtype for source in self._sources],
                dict(enumerate(constants, first)),
                self._outputs,
            )
        except (OpenInferError, OpError) as error:
            raise self._blamed(frame, error) from error
        self._made[key] = made
        return made

    def _blamed(self, frame: ThreadFrame, error: Exception) -> Exception:
        """Return the error of the node that fails when they are computed one by one."""
        for call in self._calls if len(self._calls) > 1 else ():
            try:
                frame.executor.single(call.node).run(frame)
            except (InputError, OpError) as found:
                return located(found, call.node)
        return located(error, self.node)
