"""Compile stretches, which are runs of ops between two control nodes, to native plans.

A stretch is a sequence of calls of ops on inputs of known shapes. Taper's executor compiles it to a
plan: intermediate values lie in an arena, weights are packed once, and one call runs everything. A
call that no op of Taper computes is run by numpy, between two plans.
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
from taper_runtime.session.opening import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_openinfer.native.stretch_parts import OpCall, Packed, Shape, StretchPart, Typed
    from taper_openinfer.native.varying import ShapePattern
    from taper_runtime.ops.opdef import TensorType

    #: A function from input arrays to output arrays.
    Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

#: Size of the cache of stretches with different calls, which other shapes and constants reuse.
MAX_FAMILIES = 256

#: How many sets of shapes one stretch keeps plans for, if no plan serves all shapes.
MAX_SHAPES = 8

#: How many plans with varying sizes one stretch keeps.
MAX_GENERALS = 4


class Stretches:
    """Compiles stretches, which share packed weights.

    Parameters
    ----------
    isa : str, optional
        The level of the kernels; see :attr:`taper_runtime.SessionOptions.isa`.
    threads : int
        Threads that may compute one node; 0 takes ``TAPER_NUM_THREADS``, else the number of CPUs.

    Raises
    ------
    InputError
        If this CPU does not support the level.
    """

    def __init__(self, isa: str | None = None, threads: int = 0) -> None:
        self._settings = Settings(thread_count(threads), dispatch=Dispatch(isa=active_isa(isa)))
        self._generations = itertools.count(1)
        self._families: dict[str, _Family] = {}
        # Keyed by the array's id and the format. The array is kept so that its id is not reused.
        self._packed: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}

    @property
    def packed_bytes(self) -> int:
        """Return the bytes of the copies of constants in the formats that kernels read."""
        return sum(stored.nbytes for _, stored in self._packed.values())

    def make(
        self,
        calls: Sequence[OpCall],
        shapes: Sequence[Shape],
        dtypes: Sequence[str],
        constants: Mapping[int, np.ndarray],
        outputs: Sequence[int],
    ) -> Run:
        """Return a function that computes calls on inputs of certain shapes.

        A stretch with the same calls and constant shapes is reused with the new constants. From
        the second set of shapes on, a plan with varying sizes is used if possible.

        Parameters
        ----------
        calls : sequence of OpCall
            The calls; each may read the inputs and the results of earlier calls.
        shapes : sequence of tuple of int
            The shapes of the inputs.
        dtypes : sequence of str
        constants : mapping of int to numpy.ndarray
            The inputs that are the same array in every run, by number; nobody writes to them.
        outputs : sequence of int
            The values that a run returns. Inputs are numbered first, then the calls' results.

        Returns
        -------
        callable
            Takes the arrays of the varying inputs, in order, and only reads them. Returns the
            outputs as new arrays; an output that is an input is that array itself.

        Raises
        ------
        OpError, OpenInferError
            If a call does not accept its inputs.
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
        """Return the compiled form of a stretch, reusing that of an equal stretch if possible."""
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
        """Compile for all shapes of a pattern; None if an op's rule needs a size's value."""
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
        """Compile a stretch for one set of shapes."""
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
        """Return a function that runs the pieces with these constants."""
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
        """Return the constants in the formats that the plan stores."""
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
    """The arguments of :meth:`Stretches.make`."""

    calls: Sequence[NumberedCall]
    given: Sequence[Typed]
    constants: Mapping[int, np.ndarray]
    outputs: Sequence[int]


class _Piece(NamedTuple):
    """A part that is ready to run.

    Attributes
    ----------
    reads : list of int
        The values that the piece reads; as slots in a :class:`_Compiled`.
    compute : callable
    executor : CompiledExecutor, optional
        The executor of a plan, with the constants that it was compiled with.
    packed : dict of str to Packed, optional
        The values of the plan's constants.
    """

    reads: list[int]
    compute: Run
    executor: CompiledExecutor | None = None
    packed: Mapping[str, Packed] | None = None


class _Compiled(NamedTuple):
    """The pieces of a stretch.

    The slots of a run are the varying inputs, the constants, then the results of each piece.

    Attributes
    ----------
    pieces : list of _Piece
    results : list of int
        The slots of the results.
    is_one_plan : bool
        Whether one plan has the inputs and the outputs of the whole stretch.
    """

    pieces: list[_Piece]
    results: list[int]
    is_one_plan: bool


def _in_order(
    stretch: _Stretch, pieces: Sequence[_Piece], writes: Sequence[Sequence[int]]
) -> _Compiled:
    """Renumber the values that pieces read to slots, given the values that each piece writes."""
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
    """A compiled stretch that serves all shapes of a pattern.

    Attributes
    ----------
    pattern : ShapePattern
    outputs : dict of int to tuple of size
        The shapes of the plan's outputs.
    compiled : _Compiled
    """

    pattern: ShapePattern
    outputs: dict[int, Shape]
    compiled: _Compiled


class _Family:
    """Stretches with the same calls, on inputs of any shapes.

    Attributes
    ----------
    varying : list of int
        The inputs that are not constants.
    compiled : dict of tuple to _Compiled
        The compiled stretches, by their shapes.
    generals : list of _General
    """

    def __init__(self, varying: list[int]) -> None:
        self.varying = varying
        self.compiled: dict[tuple[Shape, ...], _Compiled] = {}
        self.generals: list[_General] = []

    def general(self, shapes: Sequence[Shape], types: Mapping[int, Typed]) -> _Compiled | None:
        """Return a compiled stretch with varying sizes that serves these shapes, or None."""
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
    """Return a function that runs pieces one after the other."""

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        slots = [*values, *constants]
        for compute, reads in steps:
            slots += compute([slots[read] for read in reads])
        return [slots[result] for result in results]

    return run


def _numpy(call: NumberedCall, types: Mapping[int, Typed]) -> Run:
    """Return a function that computes a call in numpy."""
    dtypes = [types[read][0] for read in call.reads]
    compute = prepare(call.op, dtypes, call.settings, types[call.value][0])
    return lambda arrays: [compute(arrays)]
