"""Run the plan beside the module, on the example's inputs and on random ones."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.capture.captured import NotRunError
from taper_frontend.compiler.partition import verifying_delegates
from taper_frontend.errors import ExportError
from taper_frontend.verify.draw import draw
from taper_frontend.verify.inside import Inside
from taper_frontend.verify.judge import first_line, judge
from taper_frontend.verify.reference import SEED
from taper_runtime.base.errors import TaperError
from taper_runtime.base.random_state import new_state
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import is_static
from taper_runtime.extend.kernels import is_computed, user_providers
from taper_runtime.extend.providers import CPU, computing
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.compare import (
    Difference,
    describe,
    difference,
    power_of_ten,
    readable,
    tolerance,
)
from taper_runtime.plan.features import undefined_calls
from taper_runtime.plan.rows import batch_of_states
from taper_runtime.plan.specialize import with_ranges
from taper_runtime.plan.trees import leaves
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import RunOptions, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taper_frontend.capture.captured import Change
    from taper_frontend.verify.inside import InspectedPlan, Wrong
    from taper_frontend.verify.reference import Reference, Tensors
    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.state import State

#: The number of random inputs tried in addition to the example.
TRIALS = 2

Arrays = list[np.ndarray]
Shapes = list[tuple[int, ...]]


class VerificationError(ExportError):
    """The plan's results differ from the module's."""


def verify_plan(
    plan: Plan,
    reference: Reference,
    views: Callable[[], Sequence[InspectedPlan]],
    depth: str = "example",
) -> Plan:
    """Run plan and module side by side on the example inputs and on random ones.

    Random inputs are similar to the example's (:func:`taper_frontend.verify.draw.draw`). If sizes
    vary, the last trials have other sizes: the example's neighbours, and the smallest from 1 on.
    State continues from trial to trial on both sides. Only the example must run: if the module
    refuses other inputs, that says nothing about the plan. Then sizes that may be 0 are tried with
    0, one at a time, because torch.export does not consider empty dims.

    An output whose error exceeds :data:`taper_runtime.plan.compare.TOLERANCE` is accepted in two
    cases: if the two differ by a choice among scores that are equal within rounding
    (:mod:`taper_frontend.verify.ties`), or if the plan's error against the module in float64 is at
    most twice that of the module in float32 (the largest of a few runs whose parameters and inputs
    differ in the last bit). If those runs overflow and float64 does not, the tolerance applies
    against float64.

    The values inside (:mod:`taper_frontend.verify.inside`) are compared with those of the captured
    program in the same way. If an output differs, this finds the first node that differs.

    Parameters
    ----------
    plan : Plan
        The plan, with samples.
    reference : Reference
        The module, which is restored at the end.
    views : callable
        Returns the plans whose values inside are compared, including this one.
    depth : str
        For which inputs the values inside are compared: ``"outputs"``, none; ``"example"``;
        ``"deep"``, random inputs, too.

    Returns
    -------
    Plan
        Its metadata has ``verified``: ``max_error`` (largest absolute difference) and
        ``relative_error`` (largest relative L2 difference of an output) over all trials, each the
        next power of ten, so that a file does not depend on torch's number of threads;
        ``trials``, how many ran; ``refused``, how many random ones the module did not
        run, and ``reason``, its first words on that; ``uncertain``, the outputs that differ as
        float32 allows, each with why; ``inside``, see :meth:`.Inside.report`. Sizes for which 0 is
        wrong or refused start at 1.

    Raises
    ------
    VerificationError
        If a relative error exceeds the tolerance (more where the plan holds 16-bit
        floats), or an integer or bool differs, or NaNs stand in other places. It names the first
        node that differs, where that is known.
    ExportError
        If the module cannot run its own example; for ``"deep"``, also if the captured program
        cannot.
    """
    with reference.unchanged():
        trials = _Trials(plan, reference, views, depth)
        trials.run_all()
        limits = trials.sizes_from_zero()
    plan = plan._replace(metadata={**plan.metadata, "verified": trials.report()})
    return plan if limits == plan.sizes else with_ranges(plan, limits)


def _providers(plan: Plan) -> list[str]:
    """Return the CPU's providers, then those of users' kernels if some calls need them.

    Raises
    ------
    ExportError
        If there is no kernel for such a call.
    """
    targets = undefined_calls(plan)
    if not targets:
        return [CPU]
    if missing := [target for target in targets if not is_computed(target)]:
        raise ExportError(
            f"verify: no kernel is registered for {', '.join(missing)}, which no handler lowers; "
            "call taper_runtime.register_kernel before the export, or pass verify=False"
        )
    return [CPU, *user_providers()]


class _Trials:
    """Runs of both sides, and their results."""

    def __init__(
        self,
        plan: Plan,
        reference: Reference,
        views: Callable[[], Sequence[InspectedPlan]],
        depth: str,
    ) -> None:
        """Open the plan and prepare the comparison of the values inside."""
        self.plan = plan
        self.reference = reference
        self.depth = depth
        options = SessionOptions()
        options.delegates, options.allow_native_code = verifying_delegates(), True
        options.bfloat16 = "bits"  # in the order of the module's results
        providers = _providers(plan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # users' kernels for other models
            self.session = InferenceSession(plan, options, providers)
        self.inside = Inside(views, reference, verifying_delegates(), computing(providers))
        self.given = [plan.samples[name] for name in plan.inputs]
        self.batch = batch_of_states(plan)
        self.states = [self.session.new_state()] if self.batch else []
        self.numbers = [] if plan.input_tree is None else list(leaves(plan.input_tree))
        self.tolerance = tolerance(plan.tensors.values())
        self.rng = np.random.default_rng(0)
        self.error = Difference(0.0, 0.0)
        self.ran = 0
        self.refusals: list[str] = []
        self.uncertain: dict[str, str] = {}
        self.unseen = ""  # the reason why the values inside could not be compared

    def run_all(self) -> None:
        """Run the example, and random inputs similar to it."""
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
        """Compare both sides on random inputs of these shapes; record why if none is accepted."""
        refusals = []
        for timid in (False, True):
            arrays = draw(self.given, shapes, self.rng, timid=timid)
            if not timid:
                self._draw_ints(arrays)
            if self.plan.sizes and not self.reference.admits(arrays, self._rows(arrays)):
                refusals.append(f"torch captured the module for sizes other than {shapes}")
                break
            try:
                return self._run(arrays)
            except _RefusedError as refused:
                refusals.append(str(refused))
        self.refusals.append(refusals[0])
        return None

    def _draw_ints(self, arrays: Arrays) -> None:
        """Draw varying ints: sizes within their ranges, others near the example."""
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
        """Return the plan's sizes: from 0 if module and plan agree there, else from 1."""
        limits = dict(self.plan.sizes)
        for name, shapes in _empty_shapes(self.plan):
            limits[name] = 1, limits[name][1]
            arrays = draw(self.given, shapes, self.rng)
            try:
                want = self._module(arrays)
                got = self._session(arrays)
            except (_RefusedError, ValueError):  # also numpy's error for the maximum of nothing
                continue
            pairs = zip(got, want, strict=True)
            if all(difference(*pair).relative <= self.tolerance for pair in pairs):
                limits[name] = self.plan.sizes[name]
        return limits

    def report(self) -> dict[str, Any]:
        """Return the entry of the plan's metadata."""
        verified: dict[str, Any] = {
            "max_error": power_of_ten(self.error.largest),
            "relative_error": power_of_ten(self.error.relative),
            "trials": self.ran,
        }
        if self.refusals:
            verified |= {"refused": len(self.refusals), "reason": self.refusals[0]}
        if self.uncertain:
            verified["uncertain"] = dict(self.uncertain)
        if self.depth != "outputs":
            verified["inside"] = {"reason": self.unseen} if self.unseen else self.inside.report()
        return verified

    def _rows(self, arrays: Arrays | None) -> int:
        """Return how many rows the states have beside inputs: 1 where all runs have one state."""
        if not self.batch:
            return 1
        given = zip(self.plan.inputs, arrays or self.given, strict=True)
        return bind_sizes(self.plan, {name: array.shape for name, array in given})[self.batch]

    def _module(self, arrays: Arrays | None) -> Arrays:
        try:
            return self.reference.run(arrays, self._rows(arrays))
        except Exception as error:  # anyone's code may raise anything
            raise _RefusedError(first_line(error)) from error

    def _session(self, arrays: Arrays) -> Arrays:
        options = RunOptions()
        options.seed = SEED
        feed = dict(zip(self.plan.inputs, arrays, strict=True))
        return self.session.run(None, feed, options, state=self._given_states(arrays) or None)

    def _given_states(self, arrays: Arrays | None) -> list[State]:
        """Return the states of the rows; rows that are new begin, others go on."""
        if not self.batch:
            return []
        rows = self._rows(arrays)
        self.states += [self.session.new_state() for _ in range(rows - len(self.states))]
        return self.states[:rows]

    def _run(self, arrays: Arrays | None) -> None:
        """Compare both sides on one input, None for the example."""
        before = self.reference.buffers(self._rows(arrays)) if self.plan.states else {}
        states = self._states(arrays)
        try:
            want = self._module(arrays)
        except _RefusedError:
            self.reference.set_buffers(before)  # it may have written to some of them
            raise
        inputs = [*(arrays or self.given), *states]
        is_deep = self.depth == "deep" or (self.depth == "example" and arrays is None)
        try:
            # before the session allocates memory for a run
            first = self._find_wrong(arrays, inputs, before) if is_deep else None
            got = self._session(arrays or self.given)
        except TaperError as error:
            raise VerificationError(
                f"the plan refuses {self._inputs(arrays)}, which the module accepts: {error}"
            ) from error
        self.ran += 1
        if len(got) != len(want):
            raise VerificationError(
                f"expected {len(got)} tensors from the module, as captured, got {len(want)}"
            )
        wrong = self._compare_outputs(got, want, arrays, before)
        if wrong and not is_deep:
            first = self._find_wrong(arrays, inputs, before)
        if wrong:
            place = "" if first is None else f" The first value inside that differs: {first}."
            raise VerificationError(f"{wrong}{place} export(..., verify=False) skips this check")
        if first is not None:
            raise VerificationError(
                f"a value inside the plan differs from the module's on {self._inputs(arrays)}: "
                f"{first}. export(..., verify='outputs') compares outputs alone"
            )

    def _find_wrong(self, arrays: Arrays | None, inputs: Arrays, before: Tensors) -> Wrong | None:
        """Return the first wrong value inside on one input."""
        try:
            return self.inside.find_wrong(arrays, inputs, before)
        except NotRunError as error:
            if self.depth == "deep":
                raise ExportError(
                    f"the values inside cannot be compared: {error}; "
                    "export(..., verify='outputs') compares outputs alone"
                ) from error
            self.unseen = str(error)
            return None

    def _compare_outputs(
        self, got: Arrays, want: Arrays, arrays: Arrays | None, before: Tensors
    ) -> str:
        """Compare the outputs; return what is wrong, empty if nothing is."""
        errors = [difference(*pair) for pair in zip(got, want, strict=True)]
        differ = [index for index, error in enumerate(errors) if error.relative > self.tolerance]
        verdict = judge(
            {index: got[index] for index in differ},
            {index: want[index] for index in differ},
            _OutputRuns(self.reference, arrays, before),
            self.tolerance,
        )
        names = self.plan.outputs
        self.uncertain |= {names[index]: why for index, why in verdict.uncertain.items()}
        if verdict.wrong:
            index = verdict.wrong[0]
            return (
                f"output {names[index]!r} differs from the module's on "
                f"{self._inputs(arrays)}: "
                f"{describe(got[index], want[index], self.tolerance)}."
                f"{_float64_note(verdict.no_float64)}"
            )
        certain = [
            error for error, name in zip(errors, names, strict=True) if name not in self.uncertain
        ]
        self.error = Difference(*(max(both) for both in zip(self.error, *certain, strict=True)))
        return ""

    def _states(self, arrays: Arrays | None) -> Arrays:
        """Return what the plan reads behind its inputs in the next run."""
        states = []
        given = self._given_states(arrays)
        for name in self.plan.states:
            if name == self.plan.generator:
                states.append(new_state(SEED))
                continue
            if given:
                axis = next(_varying(self.plan.tensors[name].shape))
                array = np.concatenate([state.get(name) for state in given], axis)
            else:
                array = self.session.get_state(name)
            states.append(readable(array) if self.plan.tensors[name].is_complex else array)
        return states

    def _inputs(self, arrays: Arrays | None) -> str:
        return "the example inputs" if arrays is None else f"random inputs {self._describe(arrays)}"

    def _describe(self, arrays: Arrays) -> str:
        dtypes = (self.plan.tensors[name].dtype for name in self.plan.inputs)
        pairs = zip(dtypes, arrays, strict=True)
        return ", ".join(f"{dtype}{list(array.shape)}" for dtype, array in pairs) or "()"


class _OutputRuns:
    """Runs of the module on one input; results by their indices."""

    def __init__(self, reference: Reference, arrays: Arrays | None, before: Tensors) -> None:
        self._run = partial(reference.rerun, arrays, before)
        self._exact = partial(reference.exact, arrays, before)

    def rerun(self, change: Change | None = None) -> dict[int, np.ndarray]:
        """See :meth:`.Runs.rerun`."""
        return dict(enumerate(self._run(change)))

    def exact(self) -> dict[int, np.ndarray]:
        """See :meth:`.Runs.exact`."""
        return dict(enumerate(self._exact()))


def _float64_note(reason: str) -> str:
    return (
        f" A run of the module in float64, which could tell more, failed: {reason}."
        if reason
        else ""
    )


class _RefusedError(Exception):
    """The module does not accept an input."""


def _varying(shape: Shape) -> Iterator[int]:
    """Yield the axes whose sizes vary."""
    return (axis for axis, size in enumerate(shape) if not is_static(size))


def _empty_shapes(plan: Plan) -> Iterator[tuple[str, Shapes]]:
    """Yield each size variable that may be 0, with the inputs' shapes for 0."""
    example = _example_sizes(plan)
    for name, (low, _) in _given_sizes(plan).items():
        if low == 0:
            sizes = {**example, name: 0}
            for other, (_, high) in _given_sizes(plan).items():
                sizes[other] = min(sizes[other], size_at(high, sizes))
            if min(sizes.values()) >= 0:  # else none of another's values goes with 0
                yield name, _shapes(plan, sizes)


def _other_shapes(plan: Plan) -> list[Shapes]:
    """Return shapes of the inputs for sizes other than the samples'."""
    given = _given_sizes(plan)
    if not given:
        return []
    example = _example_sizes(plan)
    least = {name: max(low, 1) for name, (low, _) in given.items()}
    near: dict[str, int] = {}
    for name, (_, high) in given.items():
        near[name] = example[name] + (1 if example[name] < size_at(high, near) else -1)
    return [_shapes(plan, sizes) for sizes in (near, least)]


def _given_sizes(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the size variables whose values come from inputs."""
    return {name: limits for name, limits in plan.sizes.items() if name not in plan.origins}


def _example_sizes(plan: Plan) -> dict[str, int]:
    return bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})


def _shapes(plan: Plan, sizes: Mapping[str, int]) -> Shapes:
    """Return the shapes of the inputs for these values of the size variables."""
    return [tuple(size_at(s, sizes) for s in plan.tensors[name].shape) for name in plan.inputs]
