"""Stretches: ops between two nodes of control, run by kernels.

A stretch is straight-line calls of ops on inputs of known shapes. It becomes a plan, compiled by
Taper's executor: values inside lie in an arena, weights are packed once, one call runs all. A call
that no op of Taper's computes is numpy's, between two plans.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from taper_openinfer.native.stretch_parts import (
    NumberedCall,
    cut,
    infer,
    infer_part,
    make_plan,
    needed,
    tensor_type,
    written,
)
from taper_openinfer.native.varying import find_pattern, shape_at
from taper_openinfer.ops import prepare
from taper_runtime.base.errors import OpError, PlanFormatError, UnsupportedOpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.extend.providers import Dispatch
from taper_runtime.formats import PLAIN, find
from taper_runtime.native._kernels import active_isa
from taper_runtime.plan.validate import validate
from taper_runtime.session.config import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_openinfer.native.stretch_parts import OpCall, Packed, Shape, StretchPart, Typed
    from taper_openinfer.native.varying import ShapePattern
    from taper_runtime.ops.opdef import TensorType

    #: Arrays in, arrays out.
    Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

#: Stretches of different calls that are kept for other shapes and constants.
MAX_FAMILIES = 256

#: Sets of shapes for which the plans of one are kept, where there is none for all of them.
MAX_SHAPES = 8

#: Plans of one for sizes that vary.
MAX_GENERALS = 4


class Stretches:
    """Makes stretches that share packed weights.

    Parameters
    ----------
    isa : str, optional
        The level of the kernels; see :attr:`taper_runtime.SessionOptions.isa`.
    threads : int
        That may compute one node; 0 takes ``TAPER_NUM_THREADS``, else the CPUs at hand.

    Raises
    ------
    InputError
        If this CPU lacks the level.
    """

    def __init__(self, isa: str | None = None, threads: int = 0) -> None:
        self._settings = Settings(thread_count(threads), dispatch=Dispatch(isa=active_isa(isa)))
        self._generations = itertools.count(1)
        self._families: dict[str, _Family] = {}
        # By an array's identity and the format; with the array, so that its identity stays its own.
        self._packed: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copies of constants in the formats that kernels read."""
        return sum(stored.nbytes for _, stored in self._packed.values())

    def make(
        self,
        calls: Sequence[OpCall],
        shapes: Sequence[Shape],
        dtypes: Sequence[str],
        constants: Mapping[int, np.ndarray],
        outputs: Sequence[int],
    ) -> Run:
        """Return what computes calls on inputs of certain shapes.

        Where one was made of the same calls, and constants of the same shapes, it is used again
        over these constants; from a second set of shapes on by a plan whose sizes vary.

        Parameters
        ----------
        calls : sequence of OpCall
            Each may read the inputs and what calls before it give.
        shapes : sequence of tuple of int
            Of the inputs.
        dtypes : sequence of str
        constants : mapping of int to numpy.ndarray
            Inputs that are the same array in each run, by their numbers; nobody writes to it.
        outputs : sequence of int
            Values that a run returns: the inputs' numbers, then one for each call.

        Returns
        -------
        callable
            Takes the arrays of the inputs that vary, in order, and only reads them. Returns those
            of the outputs: new ones, or where no call computes it the input itself.

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
        fixed = {number: given[number] for number in sorted(constants)}
        varying = [number for number in range(len(given)) if number not in fixed]
        key = repr((numbered, dtypes, fixed, outputs))
        if key not in self._families:
            if len(self._families) >= MAX_FAMILIES:
                del self._families[next(iter(self._families))]
            self._families[key] = _Family(varying)
        stretch = _Stretch(numbered, given, constants, outputs)
        return self._bind(self._find(self._families[key], stretch), constants)

    def _find(self, family: _Family, stretch: _Stretch) -> _Compiled:
        """Return what computes a stretch: that of another of the same calls, if it does."""
        types = infer(stretch.calls, stretch.given)
        shapes = tuple([types[number][1] for number in family.varying])
        found = family.compiled.get(shapes) or family.general(shapes, types)
        if found is not None:
            return found
        parts = cut(needed(stretch.calls, stretch.outputs), types)
        is_one = len(parts) == 1 and parts[0].nodes is not None
        if is_one and family.compiled and len(family.generals) < MAX_GENERALS:
            pattern = find_pattern(next(reversed(family.compiled)), shapes)
            general = pattern and self._generalize(family, stretch, parts[0], types, pattern)
            if general is not None:
                family.generals.append(general)
                return general.compiled
        if len(family.compiled) >= MAX_SHAPES:
            del family.compiled[next(iter(family.compiled))]
        family.compiled[shapes] = self._compile(stretch, parts, types)
        return family.compiled[shapes]

    def _generalize(
        self,
        family: _Family,
        stretch: _Stretch,
        part: StretchPart,
        types: Mapping[int, Typed],
        pattern: ShapePattern,
    ) -> _General | None:
        """Return what computes all shapes of a pattern; None where a rule asks what they are."""
        given = {value: tensor_type(types[value]) for value in stretch.constants}
        for value, shape in zip(family.varying, pattern.shapes, strict=True):
            given[value] = tensor_type((types[value][0], shape))
        (writes,) = written([part], stretch.outputs)
        try:
            inferred = infer_part(part, given)
            piece = self._piece(part, inferred, stretch, writes, pattern.sizes)
        except (OpError, PlanFormatError, UnsupportedOpError):
            return None
        compiled = _in_order(stretch, [piece], [writes])
        return _General(pattern, {value: inferred[value].shape for value in writes}, compiled)

    def _compile(
        self, stretch: _Stretch, parts: Sequence[StretchPart], types: Mapping[int, Typed]
    ) -> _Compiled:
        """Return what computes a stretch of one set of shapes."""
        all_writes = written(parts, stretch.outputs)
        pieces = []
        for part, writes in zip(parts, all_writes, strict=True):
            if part.nodes is None:
                (call,) = part.calls
                pieces.append(_Piece(list(call.reads), _numpy(call, types)))
            else:
                ends = {read for call in part.calls for read in (*call.reads, call.value)}
                known = {value: tensor_type(types[value]) for value in ends}
                pieces.append(self._piece(part, known, stretch, writes, {}))
        return _in_order(stretch, pieces, all_writes)

    def _piece(
        self,
        part: StretchPart,
        types: Mapping[int, TensorType],
        stretch: _Stretch,
        writes: Sequence[int],
        sizes: Mapping[str, tuple[int, int]],
    ) -> _Piece:
        """Compile the plan of a part."""
        plan, packed, reads = make_plan(part, types, stretch.constants, writes, sizes)
        plan = plan._replace(constants=self._stored(packed, stretch.constants))
        validate(plan)
        executor = CompiledExecutor.compile(plan, self._settings)
        return _Piece(reads, executor.run, executor, packed)

    def _bind(self, compiled: _Compiled, constants: Mapping[int, np.ndarray]) -> Run:
        """Return what runs the pieces over constants."""
        generation = next(self._generations)
        steps: list[tuple[Run, list[int]]] = []
        for reads, compute, executor, packed in compiled.pieces:
            if executor is not None and packed:
                stored = self._stored(packed, constants)
                compute = executor.with_constants(stored, generation).run
            steps.append((compute, reads))
        if compiled.is_one_plan:
            return steps[0][0]
        return _all(steps, [constants[number] for number in sorted(constants)], compiled.results)

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


class _Stretch(NamedTuple):
    """What is asked for; see :meth:`Stretches.make`."""

    calls: Sequence[NumberedCall]
    given: Sequence[Typed]
    constants: Mapping[int, np.ndarray]
    outputs: Sequence[int]


class _Piece(NamedTuple):
    """A part that is ready to run.

    Attributes
    ----------
    reads : list of int
        Values; of a :class:`_Compiled`, slots.
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

    Slots of a run are the inputs that vary, the constants, then what each piece gives.

    Attributes
    ----------
    pieces : list of _Piece
    results : list of int
        Slots.
    is_one_plan : bool
        Whether its plan takes what the stretch is given and gives what the stretch gives.
    """

    pieces: list[_Piece]
    results: list[int]
    is_one_plan: bool


def _in_order(
    stretch: _Stretch, pieces: Sequence[_Piece], writes: Sequence[Sequence[int]]
) -> _Compiled:
    """Return pieces that read slots instead of values, given what each of them writes."""
    constants = sorted(stretch.constants)
    varying = [value for value in range(len(stretch.given)) if value not in stretch.constants]
    is_one_plan = (
        len(pieces) == 1
        and pieces[0].executor is not None
        and (pieces[0].reads, list(writes[0])) == (varying, list(stretch.outputs))
    )
    slots = {value: slot for slot, value in enumerate((*varying, *constants))}
    made = []
    for piece, values in zip(pieces, writes, strict=True):
        made.append(piece._replace(reads=[slots[read] for read in piece.reads]))
        slots.update(zip(values, range(len(slots), len(slots) + len(values)), strict=True))
    return _Compiled(made, [slots[value] for value in stretch.outputs], is_one_plan)


class _General(NamedTuple):
    """What computes all shapes of a pattern.

    Attributes
    ----------
    pattern : ShapePattern
    outputs : dict of int to tuple of size
        Shapes of the plan's outputs.
    compiled : _Compiled
    """

    pattern: ShapePattern
    outputs: dict[int, Shape]
    compiled: _Compiled


class _Family:
    """Stretches of the same calls over inputs of any shapes.

    Attributes
    ----------
    varying : list of int
        Inputs that are no constants.
    compiled : dict of tuple to _Compiled
        By their shapes.
    generals : list of _General
    """

    def __init__(self, varying: list[int]) -> None:
        self.varying = varying
        self.compiled: dict[tuple[Shape, ...], _Compiled] = {}
        self.generals: list[_General] = []

    def general(self, shapes: Sequence[Shape], types: Mapping[int, Typed]) -> _Compiled | None:
        """Return what computes these shapes among others, and gives what it has to."""
        for pattern, outputs, compiled in self.generals:
            sizes = pattern.match(shapes)
            if sizes is not None and all(
                shape_at(shape, sizes) == types[value][1] for value, shape in outputs.items()
            ):
                return compiled
        return None


def _all(
    steps: Sequence[tuple[Run, list[int]]], constants: Sequence[np.ndarray], results: Sequence[int]
) -> Run:
    """Return what runs pieces one after the other."""

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        slots = [*values, *constants]
        for compute, reads in steps:
            slots += compute([slots[read] for read in reads])
        return [slots[result] for result in results]

    return run


def _numpy(call: NumberedCall, types: Mapping[int, Typed]) -> Run:
    """Return numpy's computation of a call."""
    dtypes = [types[read][0] for read in call.reads]
    compute = prepare(call.op, dtypes, call.settings, types[call.value][0])
    return lambda arrays: [compute(arrays)]
