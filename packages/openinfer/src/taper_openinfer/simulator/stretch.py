"""Run a stretch: consecutive ops without control nodes between them, as many as there are."""

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

#: How many sets of shapes and entries a stretch caches: more than models have layers.
MAX_KEPT = 512


class StretchCall(NamedTuple):
    """One op of a stretch.

    Attributes
    ----------
    node : Node
    op : str
    inputs : tuple of int
        The values that the op reads. The stretch's inputs are numbered first, then its calls.
    settings : mapping
        The settings, with names replaced by their values.
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
        The slot of a variable; -1 for an entry of a prefix table.
    dtype : str
    table : str
        The name of the prefix table, else empty.
    entry : callable or None
        Evaluates which tensor of the file the entry is.
    is_constant : bool
        Whether the variable, or each entry of the table, is the same array in every run.
    """

    slot: int
    dtype: str
    table: str = ""
    entry: Callable[[ThreadFrame], str] | None = None
    is_constant: bool = False


class Stretch(Instruction):
    """Ops that are computed by one call.

    Parameters
    ----------
    block : str
    calls : sequence of StretchCall
    sources : sequence of StretchInput
        Inputs that vary, then variables that nothing writes, then entries of prefix tables.
    results : sequence of (int, int)
        The slots that are written, and the numbers of their values.
    stretches : Stretches
        Compiles the calls.
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
        """Compute all ops."""
        values = frame.values
        inputs: list[Any] = [values[slot] for slot in self._varying]
        try:
            key: tuple[Any, ...] = tuple([value.shape for value in inputs])
        except AttributeError:  # one is None: an initial value that was not needed yet
            inputs = [self._first_value(frame, slot) for slot in self._varying]
            key = tuple([value.shape for value in inputs])
        if self._entries:
            key = (key, *[entry(frame) for entry in self._entries])
        run = self._made.get(key)
        if run is None:
            run = self._make(frame, inputs, key)
        try:
            results = run(inputs)
        except InputError as error:  # for example an index that is out of range
            raise self._blamed(frame, error) from error
        for slot, value in zip(self._slots, results, strict=True):
            values[slot] = value

    def _first_value(self, frame: ThreadFrame, slot: int) -> np.ndarray:
        """Return a variable's initial value; blame the op that reads it if there is none."""
        try:
            return frame.get(slot)
        except OpenInferError as error:
            at = [source.slot for source in self._sources].index(slot)
            call = next(call for call in self._calls if at in call.inputs)
            raise located(error, call.node) from error

    def _make(self, frame: ThreadFrame, inputs: Sequence[np.ndarray], key: tuple[Any, ...]) -> Run:
        """Return a function that computes inputs of these shapes."""
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
        """Run the ops one by one to find the node that fails; return its error."""
        for call in self._calls if len(self._calls) > 1 else ():
            try:
                frame.executor.single(call.node).run(frame)
            except (InputError, OpError) as found:
                return located(found, call.node)
        return located(error, self.node)
