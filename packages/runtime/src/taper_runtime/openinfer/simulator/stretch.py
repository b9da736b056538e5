"""A maximal run of ops without control between them: what it reads, computes and leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from taper_runtime.errors import OpError
from taper_runtime.openinfer.ops import output_type, prepare
from taper_runtime.openinfer.simulator.instructions import Instruction, located

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_runtime.openinfer.graph import Node
    from taper_runtime.openinfer.simulator.frame import Frame

    Shape = tuple[int, ...]


class Call(NamedTuple):
    """One op of a stretch.

    Attributes
    ----------
    node : Node
    op : str
    settings : dict
        As the program has them; a :class:`~taper_runtime.openinfer.graph.Name` of a variable is
        replaced by its value.
    inputs : tuple of int
        Numbers of values: those that the stretch reads come first, then one for each call.
    dtypes : tuple of str
    output_dtype : str
    """

    node: Node
    op: str
    settings: Mapping[str, Any]
    inputs: tuple[int, ...]
    dtypes: tuple[str, ...]
    output_dtype: str


class Runner(Protocol):
    """What computes a stretch for inputs of certain shapes."""

    def run(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Return what the stretch leaves behind; arrays of its own."""


class Source(NamedTuple):
    """Where a stretch reads a value from.

    Attributes
    ----------
    slot : int
        Of a variable; -1 where it is an entry of a table of weights.
    entry : callable or None
        Returns the name of the file's tensor then.
    is_constant : bool
        Whether it is the same array in each run, but for which entry it is.
    """

    slot: int
    entry: Callable[[Frame], str] | None = None
    is_constant: bool = False


class NumpyRunner:
    """Computes call after call in numpy.

    Parameters
    ----------
    calls : sequence of Call
    outputs : sequence of int
        Numbers of the values to return.
    """

    def __init__(self, calls: Sequence[Call], outputs: Sequence[int]) -> None:
        self._steps = [
            (prepare(call.op, call.dtypes, call.settings, call.output_dtype), call.inputs)
            for call in calls
        ]
        self._outputs = outputs

    def run(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Compute."""
        values = list(values)
        for compute, inputs in self._steps:
            values.append(compute([values[number] for number in inputs]))
        return [values[number] for number in self._outputs]


def check_types(calls: Sequence[Call], shapes: Sequence[Shape], dtypes: Sequence[str]) -> None:
    """Check that a stretch's calls fit each other for inputs of these shapes.

    Raises
    ------
    StepError
        Naming the node whose op has another rule.
    """
    types = list(zip(dtypes, shapes, strict=True))
    for call in calls:
        inputs = [types[number] for number in call.inputs]
        try:
            types.append(output_type(call.op, inputs, call.settings, call.output_dtype))
        except OpError as error:
            raise located(error, call.node) from error


class Stretch(Instruction):
    """Nodes that are computed in one go.

    Parameters
    ----------
    block : str
    calls : sequence of Call
    sources : sequence of Source
        The values that come first.
    dtypes : sequence of str
        Of the sources.
    results : sequence of (int, int)
        Slots and the numbers of the values that they are left with.
    make_runner : callable
        Returns what computes the calls: from calls, shapes and dtypes of the sources, numbers of
        the constant ones with their arrays, and numbers of the values to return.
    """

    def __init__(
        self,
        block: str,
        calls: Sequence[Call],
        sources: Sequence[Source],
        dtypes: Sequence[str],
        results: Sequence[tuple[int, int]],
        make_runner: Callable[..., Runner],
    ) -> None:
        super().__init__(calls[0].node, block)
        self.calls = calls
        self._sources = [source.slot for source in sources if source.slot >= 0]
        self._entries = [source.entry for source in sources if source.entry is not None]
        self._constant = [at for at, source in enumerate(sources) if source.is_constant]
        self._dtypes = dtypes
        self._slots = [slot for slot, _ in results]
        self._outputs = [number for _, number in results]
        self._make_runner = make_runner
        self._runners: dict[tuple[Any, ...], Runner] = {}
        self._last: tuple[Any, ...] = ()
        self._runner: Runner | None = None

    def run(self, frame: Frame) -> None:
        """Compute."""
        values = frame.values
        inputs: list[np.ndarray] = []
        for slot in self._sources:
            value = values[slot]
            inputs.append(frame.get(slot) if value is None else value)
        names = [entry(frame) for entry in self._entries]
        key = (*[value.shape for value in inputs], *names)
        for name in names:
            inputs.append(frame.executor.tensor(name))
        runner = self._runner
        if key != self._last or runner is None:
            runner = self._runners.get(key)
            if runner is None:
                runner = self._runners[key] = self._make(frame, inputs)
            self._last, self._runner = key, runner
        for slot, value in zip(self._slots, runner.run(inputs), strict=True):
            values[slot] = value

    def _make(self, frame: Frame, inputs: Sequence[np.ndarray]) -> Runner:
        """Return what computes inputs of these shapes, with these weights."""
        calls = [
            call._replace(settings=frame.executor.settings(call.settings)) for call in self.calls
        ]
        shapes = [value.shape for value in inputs]
        check_types(calls, shapes, self._dtypes)
        constants = {at: inputs[at] for at in self._constant}
        return self._make_runner(calls, shapes, self._dtypes, constants, self._outputs)
