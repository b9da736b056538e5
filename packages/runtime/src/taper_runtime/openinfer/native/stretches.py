"""Stretches: ops between two nodes of control, run by kernels.

A stretch is straight-line calls of ops on inputs of known shapes. It becomes a plan, compiled by
Taper's executor: values inside lie in an arena, weights are packed once, one call runs all. A call
that no op of Taper's computes is numpy's, between two plans.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from taper_runtime.executor._kernels import active_isa
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.formats import PLAIN, find
from taper_runtime.openinfer.native.segments import (
    NumberedCall,
    cut,
    infer,
    make_plan,
    needed,
    written,
)
from taper_runtime.openinfer.ops import prepare
from taper_runtime.plan.validate import validate
from taper_runtime.providers import Dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_runtime.openinfer.native.segments import Call, Packed, Shape, Typed

    #: Arrays in, arrays out.
    Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

#: Stretches that are kept for constants other than their first ones.
MAX_COMPILED = 256


class Stretch(NamedTuple):
    """Calls that run as one.

    Attributes
    ----------
    run : callable
        Takes the arrays of all inputs, constants among them, in order; they are only read. Returns
        those of the outputs: new ones, or where no call computes it the input itself.
    """

    run: Run


class Stretches:
    """Makes stretches that share packed weights.

    Parameters
    ----------
    isa : str, optional
        The level of the kernels; see :attr:`taper_runtime.SessionOptions.isa`.
    threads : int
        That may compute one node.

    Raises
    ------
    InputError
        If this CPU lacks the level.
    """

    def __init__(self, isa: str | None = None, threads: int = 1) -> None:
        self._settings = Settings(threads, dispatch=Dispatch(isa=active_isa(isa)))
        self._generations = itertools.count(1)
        self._compiled: dict[str, _Compiled] = {}
        # By an array's identity and the format; with the array, so that its identity stays its own.
        self._packed: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copies of constants in the formats that kernels read."""
        return sum(stored.nbytes for _, stored in self._packed.values())

    def make(
        self,
        calls: Sequence[Call],
        shapes: Sequence[Shape],
        dtypes: Sequence[str],
        constants: Mapping[int, np.ndarray],
        outputs: Sequence[int],
    ) -> Stretch:
        """Return a stretch for inputs of certain shapes.

        Where one was made of the same calls and shapes, and constants of the same shapes, its
        kernels are used again over these constants.

        Parameters
        ----------
        calls : sequence of Call
            Each may read the inputs and what calls before it give.
        shapes : sequence of tuple of int
            Of the inputs.
        dtypes : sequence of str
        constants : mapping of int to numpy.ndarray
            Inputs that are the same array in each run, by their numbers; nobody writes to it.
        outputs : sequence of int
            Values that a run returns: the inputs' numbers, then one for each call.

        Raises
        ------
        OpError, OpenInferError
            Where a call does not take such inputs.
        """
        numbered = [
            NumberedCall(call.op, call.inputs, call.settings, value, call.output_dtype)
            for value, call in enumerate(calls, len(shapes))
        ]
        given = list(zip(dtypes, shapes, strict=True))
        key = repr((numbered, given, sorted(constants), outputs))
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(self._compiled) >= MAX_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            compiled = self._compiled[key] = self._compile(numbered, given, constants, outputs)
        return Stretch(self._bind(compiled, constants))

    def _compile(
        self,
        calls: Sequence[NumberedCall],
        given: Sequence[Typed],
        constants: Mapping[int, np.ndarray],
        outputs: Sequence[int],
    ) -> _Compiled:
        types = infer(calls, given)
        segments = cut(needed(calls, outputs), types)
        slots = {value: value for value in range(len(given))}
        pieces = []
        for segment, writes in zip(segments, written(segments, outputs), strict=True):
            if segment.nodes is None:
                (call,) = segment.calls
                pieces.append(_Piece([slots[read] for read in call.reads], _numpy(call, types)))
            else:
                plan, packed, reads = make_plan(segment, types, constants, writes)
                plan = plan._replace(constants=self._stored(packed, constants))
                validate(plan)
                executor = CompiledExecutor.compile(plan, self._settings)
                pieces.append(
                    _Piece([slots[read] for read in reads], executor.run, executor, packed)
                )
            slots.update(zip(writes, itertools.count(len(slots))))
        return _Compiled(len(given), pieces, [slots[value] for value in outputs])

    def _bind(self, compiled: _Compiled, constants: Mapping[int, np.ndarray]) -> Run:
        """Return what runs the pieces over constants."""
        generation = next(self._generations)
        steps: list[tuple[Run, list[int]]] = []
        for reads, compute, executor, packed in compiled.pieces:
            if executor is not None and packed:
                stored = self._stored(packed, constants)
                compute = executor.with_constants(stored, generation).run
            steps.append((compute, reads))
        behind = compiled.n_inputs
        if len(steps) == 1 and compiled.results == [*range(behind, behind + len(compiled.results))]:
            return _only(*steps[0], behind)
        return _all(steps, compiled.results)

    def _stored(
        self, packed: Mapping[str, Packed], constants: Mapping[int, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return a plan's constants as it stores them."""
        return {
            name: self._pack(constants[value], format_) for name, (value, format_) in packed.items()
        }

    def _pack(self, array: np.ndarray, format_: str) -> np.ndarray:
        if format_ == PLAIN:
            return array
        key = (id(array), format_)
        if key not in self._packed:
            self._packed[key] = (array, find(format_).encode(array))
        return self._packed[key][1]


class _Piece(NamedTuple):
    """A segment that is ready to run.

    Attributes
    ----------
    reads : list of int
        Slots: of a run, the inputs, then what each piece gives.
    compute : callable
    executor : CompiledExecutor, optional
        Of a plan, with the constants that it was compiled with.
    packed : dict of str to Packed, optional
        What its constants are.
    """

    reads: list[int]
    compute: Run
    executor: CompiledExecutor | None = None
    packed: Mapping[str, Packed] | None = None


class _Compiled(NamedTuple):
    """The pieces of a stretch.

    Attributes
    ----------
    n_inputs : int
    pieces : list of _Piece
    results : list of int
        Slots.
    """

    n_inputs: int
    pieces: list[_Piece]
    results: list[int]


def _only(compute: Run, reads: list[int], n_inputs: int) -> Run:
    """Return what runs one piece whose outputs are the stretch's."""
    if reads == [*range(n_inputs)]:
        return compute
    return lambda values: compute([values[read] for read in reads])


def _all(steps: Sequence[tuple[Run, list[int]]], results: Sequence[int]) -> Run:
    """Return what runs several."""

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        slots = [*values]
        for compute, reads in steps:
            slots += compute([slots[read] for read in reads])
        return [slots[result] for result in results]

    return run


def _numpy(call: NumberedCall, types: Mapping[int, Typed]) -> Run:
    """Return numpy's computation of a call."""
    dtypes = [types[read][0] for read in call.reads]
    compute = prepare(call.op, dtypes, call.settings, types[call.value][0])
    return lambda arrays: [compute(arrays)]
