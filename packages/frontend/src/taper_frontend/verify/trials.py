"""The plan beside the module, on the example's inputs and on random ones."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from taper_frontend.compiler.partition import verifying_delegates
from taper_frontend.errors import ExportError
from taper_frontend.verify.compare import Difference, difference, readable, tolerance
from taper_frontend.verify.draw import draw
from taper_frontend.verify.reference import SEED
from taper_frontend.verify.ties import Jitter, rests_on_ties
from taper_runtime.errors import TaperError
from taper_runtime.options import RunOptions, SessionOptions
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.specialize import with_ranges
from taper_runtime.plan.trees import leaves
from taper_runtime.providers import CPU
from taper_runtime.session import InferenceSession
from taper_runtime.size_values import size_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_frontend.verify.reference import Reference, Tensors
    from taper_runtime.plan.plan import Plan

#: Random inputs tried beside the given ones.
TRIALS = 2

#: Runs with noise, at most, that tell what rests on ties. Half of them turn a pair over.
_JITTERED = 16

#: Runs beside the given one that tell how far float32 is off. One may be close by chance.
_PERTURBED = 4

Arrays = list[np.ndarray]
Shapes = list[tuple[int, ...]]


class VerificationError(ExportError):
    """The plan computes something else than the module."""


def verify_plan(plan: Plan, reference: Reference) -> Plan:
    """Run plan and module side by side on the example inputs and on random ones.

    Random inputs look like the example's (:func:`taper_frontend.verify.draw.draw`). Where sizes
    vary, the last trials have others: the example's neighbours, and the least from 1 on. State goes
    on from trial to trial on both sides. Only the example must run: what the module refuses of the
    rest says nothing about the plan. Sizes that may be 0 are then tried with it, one at a
    time: torch.export does not look at empty dims, so that nobody knows before what a program does
    with them.

    An output that is farther from the module's than
    :data:`taper_frontend.verify.compare.TOLERANCE` is right if float32 does not tell better: if the
    two differ by a choice among scores that tie within rounding
    (:mod:`taper_frontend.verify.ties`), or if the plan's error against the module in float64 is at
    most twice that of the module in float32 (the largest of a few runs, whose parameters and inputs
    differ in the last bit).

    Parameters
    ----------
    plan : Plan
        With samples.
    reference : Reference
        The module; it is left as it was.

    Returns
    -------
    Plan
        Its metadata has ``verified``: ``max_error`` (largest absolute difference) and
        ``relative_error`` (largest relative L2 difference of an output) over all trials, each the
        next power of ten, so that a file does not depend on torch's number of threads;
        ``trials``, how many ran; ``refused``, how many random ones the module did not
        run, and ``reason``, its first words on that; ``uncertain``, the outputs that differ as
        float32 allows, each with why. Sizes for which 0 is wrong or refused start at 1.

    Raises
    ------
    VerificationError
        If an output's relative error exceeds the tolerance (more where the plan holds 16-bit
        floats), or an integer or bool output differs, or NaNs stand in other places.
    ExportError
        If the module cannot run its own example.
    """
    with reference.unchanged():
        trials = _Trials(plan, reference)
        trials.run_all()
        limits = trials.sizes_from_zero()
    plan = plan._replace(metadata={**plan.metadata, "verified": trials.report()})
    return plan if limits == plan.sizes else with_ranges(plan, limits)


class _Trials:
    """Runs of both sides, and what they gave."""

    def __init__(self, plan: Plan, reference: Reference) -> None:
        self.plan = plan
        self.reference = reference
        options = SessionOptions()
        options.delegates, options.allow_native_code = verifying_delegates(), True
        options.bfloat16 = "bits"  # as the module's results come
        self.session = InferenceSession(plan, options, [CPU])
        self.given = [plan.samples[name] for name in plan.inputs]
        self.numbers = [] if plan.input_tree is None else list(leaves(plan.input_tree))
        self.tolerance = tolerance(spec.dtype for spec in plan.tensors.values())
        self.rng = np.random.default_rng(0)
        self.error = Difference(0.0, 0.0)
        self.ran = 0
        self.refusals: list[str] = []
        self.uncertain: dict[str, str] = {}
        self.no_float64 = ""  # why the module did not run in float64, where that was wanted

    def run_all(self) -> None:
        """Run the example, and random inputs like it."""
        try:
            self._run(None)
        except _RefusedError as refused:
            raise ExportError(
                "the module cannot run its example arguments: expected results for "
                f"{self._describe(self.given)}, got {refused}"
            ) from refused.__cause__
        shapes = [array.shape for array in self.given]
        for wanted in [shapes] * TRIALS + _other_shapes(self.plan):
            self._run_random(wanted)

    def _run_random(self, shapes: Shapes) -> None:
        refusals = []
        for timid in (False, True):
            arrays = draw(self.given, shapes, self.rng, timid=timid)
            if not timid:
                self._draw_ints(arrays)
            if self.plan.sizes and not self.reference.admits(arrays):
                refusals.append(f"torch captured it for other sizes than {shapes}")
                break
            try:
                return self._run(arrays)
            except _RefusedError as refused:
                refusals.append(str(refused))
        self.refusals.append(refusals[0])
        return None

    def _draw_ints(self, arrays: Arrays) -> None:
        """Draw ints that vary: those that are sizes in their range, others near the example."""
        sizes = {tensor: name for name, (tensor, _) in self.plan.origins.items()}
        for place, name in enumerate(self.plan.inputs):
            if ["number", name] not in self.numbers:
                continue
            example = int(self.given[place])
            low, high = example - 3, example + 3
            if name in sizes:
                least, most = self.plan.sizes[sizes[name]]
                low, high = max(least, 1), min(most, 2 * example + 2)
            arrays[place] = np.array(self.rng.integers(low, high, endpoint=True))

    def sizes_from_zero(self) -> dict[str, tuple[int, int]]:
        """Return the plan's sizes: from 0 where module and plan agree there, else from 1."""
        limits = dict(self.plan.sizes)
        for name, shapes in _empty_shapes(self.plan):
            limits[name] = 1, limits[name][1]
            arrays = draw(self.given, shapes, self.rng)
            try:
                want = self._module(arrays)
                got = self._session(arrays)
            except (_RefusedError, ValueError):  # by numpy too, which has no maximum of nothing
                continue
            pairs = zip(got, want, strict=True)
            if all(difference(*pair).relative <= self.tolerance for pair in pairs):
                limits[name] = self.plan.sizes[name]
        return limits

    def report(self) -> dict[str, Any]:
        """Return what the plan's metadata says."""
        verified: dict[str, Any] = {
            "max_error": _power_of_ten(self.error.largest),
            "relative_error": _power_of_ten(self.error.relative),
            "trials": self.ran,
        }
        if self.refusals:
            verified |= {"refused": len(self.refusals), "reason": self.refusals[0]}
        if self.uncertain:
            verified["uncertain"] = dict(self.uncertain)
        return verified

    def _module(self, arrays: Arrays | None) -> Arrays:
        try:
            return self.reference.run(arrays)
        except Exception as error:  # anyone's code may raise anything
            raise _RefusedError(_first_line(error)) from error

    def _session(self, arrays: Arrays) -> Arrays:
        options = RunOptions()
        options.seed = SEED
        return self.session.run(None, dict(zip(self.plan.inputs, arrays, strict=True)), options)

    def _run(self, arrays: Arrays | None) -> None:
        """Compare both sides on one input, None for the example."""
        before = self.reference.buffers() if self.plan.states else {}
        try:
            want = self._module(arrays)
        except _RefusedError:
            self.reference.set_buffers(before)  # it may have got as far as writing to them
            raise
        try:
            got = self._session(arrays or self.given)
        except TaperError as error:
            raise VerificationError(
                f"the plan refuses what the module runs, {self._inputs(arrays)}: {error}"
            ) from error
        self.ran += 1
        if len(got) != len(want):
            raise VerificationError(
                f"the module returns other tensors than were captured: expected {len(got)}, "
                f"got {len(want)}"
            )
        errors = [difference(*pair) for pair in zip(got, want, strict=True)]
        wrong = [index for index, error in enumerate(errors) if error.relative > self.tolerance]
        if wrong:
            wrong = self._judge(wrong, got, want, arrays, before)
        if wrong:
            index = wrong[0]
            raise VerificationError(
                f"output {self.plan.outputs[index]!r} differs from the module's on "
                f"{self._inputs(arrays)}: expected a relative error of at most "
                f"{self.tolerance:g}, got {errors[index].relative:.3g} (largest difference "
                f"{errors[index].largest:.3g}).{self._float64_note()} "
                "export(..., verify=False) skips this check"
            )
        certain = [
            error
            for error, name in zip(errors, self.plan.outputs, strict=True)
            if name not in self.uncertain
        ]
        self.error = Difference(*(max(both) for both in zip(self.error, *certain, strict=True)))

    def _judge(
        self, doubtful: list[int], got: Arrays, want: Arrays, arrays: Arrays | None, before: Tensors
    ) -> list[int]:
        """Return which of the outputs that differ are wrong, beyond what float32 leaves open."""
        jittered: list[Arrays] = []
        wrong = doubtful
        while wrong and len(jittered) < _JITTERED:
            with Jitter(len(jittered)):
                jittered.append(self.reference.rerun(arrays, before))
            wrong = [
                index
                for index in wrong
                if not rests_on_ties(
                    got[index], want[index], [run[index] for run in jittered], self.tolerance
                )
            ]
        for index in set(doubtful) - set(wrong):
            self.uncertain[self.plan.outputs[index]] = "a choice among scores that tie"
        return self._inexact(wrong, got, want, arrays, before) if wrong else []

    def _inexact(
        self, doubtful: list[int], got: Arrays, want: Arrays, arrays: Arrays | None, before: Tensors
    ) -> list[int]:
        """Return which of the outputs err by more than twice what the module does in float32."""
        try:
            exact = self.reference.exact(arrays, before)
        except Exception as error:  # the module has a place for float32 only: the plain rule holds
            self.no_float64 = _first_line(error)
            return doubtful
        noise = torch.Generator().manual_seed(0)
        runs = [
            want,
            *(
                self.reference.rerun(arrays, before, partial(_in_the_last_bit, noise))
                for _ in range(_PERTURBED)
            ),
        ]
        wrong = []
        for index in doubtful:
            truth = _numbers(exact[index])
            ours = difference(_numbers(got[index]), truth).relative
            torchs = max(difference(_numbers(run[index]), truth).relative for run in runs)
            if math.isinf(ours) or ours > 2 * torchs:
                wrong.append(index)
                continue
            self.uncertain[self.plan.outputs[index]] = (
                f"{ours:.0e} from the module in float64, which in float32 is {torchs:.0e} away"
            )
        return wrong

    def _float64_note(self) -> str:
        if not self.no_float64:
            return ""
        return f" The module does not run in float64, which could tell more: {self.no_float64}."

    def _inputs(self, arrays: Arrays | None) -> str:
        return "the example inputs" if arrays is None else f"random inputs {self._describe(arrays)}"

    def _describe(self, arrays: Arrays) -> str:
        dtypes = (self.plan.tensors[name].dtype for name in self.plan.inputs)
        pairs = zip(dtypes, arrays, strict=True)
        return ", ".join(f"{dtype}{list(array.shape)}" for dtype, array in pairs) or "()"


def _first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def _in_the_last_bit(generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    """Change a tensor by as much as rounding it does."""
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x * (1 + torch.finfo(x.dtype).eps / 2 * noise)


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return an array as float64, so that integers too are more or less far apart."""
    return readable(array).astype(np.float64)


class _RefusedError(Exception):
    """The module does not run an input."""


def _power_of_ten(error: float) -> float:
    return float(f"1e{math.ceil(math.log10(error))}") if error else 0.0


def _empty_shapes(plan: Plan) -> Iterator[tuple[str, Shapes]]:
    """Yield each size variable that may be 0, with shapes of the inputs where it is."""
    example = _example_sizes(plan)
    for name, (low, _) in _given_sizes(plan).items():
        if low == 0:
            yield name, _shapes(plan, {**example, name: 0})


def _other_shapes(plan: Plan) -> list[Shapes]:
    """Shapes of the inputs for sizes other than the samples'."""
    given = _given_sizes(plan)
    if not given:
        return []
    example = _example_sizes(plan)
    least = {name: max(low, 1) for name, (low, _) in given.items()}
    near = {
        name: example[name] + 1 if example[name] < high else example[name] - 1
        for name, (_, high) in given.items()
    }
    return [_shapes(plan, sizes) for sizes in (near, least)]


def _given_sizes(plan: Plan) -> dict[str, tuple[int, int]]:
    """The size variables that inputs give their values."""
    return {name: limits for name, limits in plan.sizes.items() if name not in plan.origins}


def _example_sizes(plan: Plan) -> dict[str, int]:
    return bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})


def _shapes(plan: Plan, sizes: Mapping[str, int]) -> Shapes:
    """Shapes of the inputs for these values of the size variables."""
    return [tuple(size_at(s, sizes) for s in plan.tensors[name].shape) for name in plan.inputs]
