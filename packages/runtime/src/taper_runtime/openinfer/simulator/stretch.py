"""A maximal run of ops without control between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taper_runtime.errors import OpError
from taper_runtime.openinfer.errors import OpenInferError
from taper_runtime.openinfer.native import Call
from taper_runtime.openinfer.simulator.instructions import Instruction, located

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_runtime.openinfer.graph import Node
    from taper_runtime.openinfer.native import Stretch as NativeStretch
    from taper_runtime.openinfer.native import Stretches
    from taper_runtime.openinfer.simulator.frame import Frame


class Constants(NamedTuple):
    """What a stretch reads that is the same array whenever it runs, but for which entries.

    Attributes
    ----------
    slots : dict of str to int
        Variables that no node writes.
    entries : dict of str to callable
        Entries of tables of weights, as the program spells them: what gives the name of the file's
        tensor.
    dtypes : dict of str to str
        Of both.
    """

    slots: dict[str, int]
    entries: dict[str, Callable[[Frame], str]]
    dtypes: dict[str, str]


class Stretch(Instruction):
    """Ops that are computed in one go.

    Parameters
    ----------
    nodes : sequence of Node
    block : str
    inputs : mapping of str to (int, str)
        Variables whose values vary: slot and dtype.
    constants : Constants
    outputs : mapping of str to int
        Variables that are left with a value, and their slots.
    dtypes : mapping of str to str
        Of what the ops write.
    stretches : Stretches
        Makes what computes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        block: str,
        inputs: Mapping[str, tuple[int, str]],
        constants: Constants,
        outputs: Mapping[str, int],
        dtypes: Mapping[str, str],
        stretches: Stretches,
    ) -> None:
        super().__init__(nodes[0], block)
        self.nodes = nodes
        self._inputs = {name: dtype for name, (_, dtype) in inputs.items()}
        self._sources = [slot for slot, _ in inputs.values()]
        self._constants = constants
        self._entries = list(constants.entries.values())
        self._outputs = list(outputs)
        self._targets = list(outputs.values())
        self._dtypes = dtypes
        self._stretches = stretches
        self._made: dict[tuple[str, ...], NativeStretch] = {}

    def run(self, frame: Frame) -> None:
        """Compute."""
        values = frame.values
        names = tuple([entry(frame) for entry in self._entries]) if self._entries else ()
        made = self._made.get(names)
        if made is None:
            made = self._made[names] = self._make(frame, names)
        inputs = []
        for slot in self._sources:
            value = values[slot]
            inputs.append(frame.get(slot) if value is None else value)
        try:
            results = made.run(inputs)
        except (OpenInferError, OpError) as error:
            raise self._blamed(frame, error) from error
        for slot, value in zip(self._targets, results, strict=True):
            values[slot] = value

    def _make(self, frame: Frame, names: Sequence[str]) -> NativeStretch:
        """Return what computes with these entries of tables of weights."""
        slots, entries, dtypes = self._constants
        arrays = {name: frame.get(slot) for name, slot in slots.items()}
        found = zip(entries, names, strict=True)
        arrays |= {
            entry: frame.executor.entry(entry.partition("[")[0], name) for entry, name in found
        }
        for other in self._made.values():
            return other.with_constants(list(arrays.values()))
        constants = {name: (dtypes[name], array) for name, array in arrays.items()}
        calls = [
            Call(
                kind.op,
                tuple(map(str, kind.inputs)),
                frame.executor.settings(kind.settings),
                str(kind.output),
                self._dtypes[str(kind.output)],
            )
            for kind in (node.kind for node in self.nodes)
        ]
        return self._stretches.of(calls, self._inputs, constants, self._outputs)

    def _blamed(self, frame: Frame, error: Exception) -> Exception:
        """Return the error of the node that fails when they are computed one by one."""
        if len(self.nodes) == 1:
            return located(error, self.node)
        for node in self.nodes:
            single = frame.executor.single(node)
            try:
                single.run(frame)
            except (OpenInferError, OpError) as found:
                return located(found, node)
        return located(error, self.node)
