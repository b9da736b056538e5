"""The last step of an export: the plan's results beside the module's."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
import torch

from taper_frontend.errors import ExportError
from taper_frontend.lowering.context import to_numpy
from taper_runtime.dtypes import DTYPES
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.session import InferenceSession, RunOptions
from taper_runtime.sizes import evaluate, nonempty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

    from taper_runtime.plan.plan import Plan

#: Largest relative L2 error of a float output. Float32 sums in another order reach 1e-6 on one
#: layer and grow with depth; a wrong kernel or pass is off by orders of magnitude more.
TOLERANCE = 1e-4

#: The same where the plan holds numbers of fewer bits: a few of their units, for sums rounded at
#: other places.
_COARSE = {"float16": 1e-2, "bfloat16": 8e-2}

#: Random inputs tried beside the given ones.
TRIALS = 2


class VerificationError(ExportError):
    """The plan computes something else than the module."""


def verify_plan(plan: Plan, program: ExportedProgram) -> Plan:
    """Run plan and module side by side on the example inputs and on random ones.

    Random floats are standard normal; random integers are drawn between the least and the largest
    of the example's, so that indices stay in range. Where sizes vary, the last trials have others:
    the least from 1 on, and the example's neighbours. State goes on from trial to trial on both
    sides; what a trial draws itself is drawn with the same seed. Sizes that may be 0 are then tried
    with it, one at a time: torch.export does not look at empty dims, so that nobody knows before
    what a program does with them.

    Returns
    -------
    Plan
        Its metadata has ``verified``: ``max_error`` (largest absolute difference) and
        ``relative_error`` (largest relative L2 difference of an output) over all trials, and
        ``trials``, their number. Sizes for which 0 is wrong or refused start at 1.

    Raises
    ------
    VerificationError
        If an output's relative error exceeds :data:`TOLERANCE` (more where the plan holds halves),
        or an integer or bool output differs, or NaNs stand in other places.
    """
    module = program.module()
    # They are the user's own, which a module with state writes to.
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers() if plan.states]
    try:
        return _compare_runs(plan, module, program)
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)


def _compare_runs(plan: Plan, module: torch.nn.Module, program: ExportedProgram) -> Plan:
    session = InferenceSession(plan)
    options = RunOptions()
    rng = np.random.default_rng(0)
    max_error = relative_error = 0.0
    dtypes = {spec.dtype for spec in plan.tensors.values()}
    tolerance = max([TOLERANCE, *(_COARSE[dtype] for dtype in dtypes & _COARSE.keys())])
    given = [plan.samples[name] for name in plan.inputs]
    shapes = [[array.shape for array in given]] * (1 + TRIALS) + _other_shapes(plan)
    trials = 0
    for trial, sizes in enumerate(shapes):
        arrays = given
        if trial > 0:
            arrays = [_randomize(a, shape, rng) for a, shape in zip(given, sizes, strict=True)]
        try:
            want = _run_module(module, program, arrays, seed=trial)
        except Exception:
            if trial <= TRIALS:
                raise
            continue  # torch's own checks are stricter than the ranges it gives
        options.seed = trial
        got = session.run(None, dict(zip(plan.inputs, arrays, strict=True)), options)
        trials += 1
        for name, ours, theirs in zip(plan.outputs, got, want, strict=True):
            absolute, relative = _compare(ours, theirs)
            if relative > tolerance:
                inputs = f"random inputs of shapes {sizes}" if trial else "the example inputs"
                raise VerificationError(
                    f"output {name!r} differs from the module's on {inputs}: expected a relative "
                    f"error of at most {tolerance:g}, got {relative:.3g} (largest difference "
                    f"{absolute:.3g}). export(..., verify=False) skips this check"
                )
            max_error = max(max_error, absolute)
            relative_error = max(relative_error, relative)

    limits = dict(plan.sizes)
    for name, sizes in _empty_shapes(plan):
        arrays = [_randomize(a, shape, rng) for a, shape in zip(given, sizes, strict=True)]
        limits[name] = nonempty(*limits[name])
        try:
            want = _run_module(module, program, arrays, seed=0)
        except Exception:  # torch's, or of the module, which is anyone's code
            continue
        try:
            options.seed = 0
            got = session.run(None, dict(zip(plan.inputs, arrays, strict=True)), options)
        except ValueError:  # refused: by us, or by numpy, which has no maximum of nothing
            continue
        if all(
            ours.shape == theirs.shape and _compare(ours, theirs)[1] <= tolerance
            for ours, theirs in zip(got, want, strict=True)
        ):
            limits[name] = plan.sizes[name]
    verified = {"max_error": max_error, "relative_error": relative_error, "trials": trials}
    return plan._replace(sizes=limits, metadata={**plan.metadata, "verified": verified})


def _empty_shapes(plan: Plan) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Yield each size variable that may be 0, with shapes of the inputs where it is."""
    example = _example_sizes(plan)
    for name, (low, _) in plan.sizes.items():
        if low == 0:
            yield name, _shapes(plan, {**example, name: 0})


def _other_shapes(plan: Plan) -> list[list[tuple[int, ...]]]:
    """Shapes of the inputs for sizes other than the samples'."""
    if not plan.sizes:
        return []
    example = _example_sizes(plan)
    least = {name: nonempty(*limits)[0] for name, limits in plan.sizes.items()}
    near = {
        name: example[name] + 1 if example[name] < high else example[name] - 1
        for name, (_, high) in plan.sizes.items()
    }
    return [_shapes(plan, sizes) for sizes in (near, least)]


def _example_sizes(plan: Plan) -> dict[str, int]:
    return bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})


def _shapes(plan: Plan, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Shapes of the inputs for these values of the size variables."""
    return [tuple(evaluate(s, sizes) for s in plan.tensors[name].shape) for name in plan.inputs]


def _randomize(array: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random values like those of ``array``, in another shape."""
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    if array.dtype == DTYPES["bfloat16"].storage:
        return to_bfloat16(rng.standard_normal(shape).astype(np.float32))
    if array.dtype.kind == "f":
        return rng.standard_normal(shape).astype(array.dtype)
    if array.dtype == np.bool_:
        return rng.random(shape) < 0.5
    return rng.integers(array.min(), array.max(), shape, array.dtype, endpoint=True)


def _run_module(
    module: torch.nn.Module, program: ExportedProgram, arrays: Sequence[np.ndarray], seed: int
) -> list[np.ndarray]:
    """The module's tensor results, flattened, for these tensor inputs and this seed."""
    fresh = iter(arrays)
    leaves, spec = torch.utils._pytree.tree_flatten(program.example_inputs)
    leaves = [
        torch.from_numpy(next(fresh).copy()).view(leaf.dtype)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]
    args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
    # torch prints the line that fails beside raising its error
    with torch.no_grad(), redirect_stderr(StringIO()), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        results = torch.utils._pytree.tree_leaves(module(*args, **kwargs))
    return [to_numpy(result) for result in results if isinstance(result, torch.Tensor)]


def _compare(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Largest absolute and relative L2 difference; infinite where they cannot be compared."""
    if ours.dtype == DTYPES["bfloat16"].storage:
        ours, theirs = from_bfloat16(ours), from_bfloat16(theirs)
    if ours.dtype.kind != "f":
        equal = np.array_equal(ours, theirs)
        return (0.0, 0.0) if equal else (np.inf, np.inf)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return np.inf, np.inf
    a, b = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    difference = np.abs(a - b)
    largest = float(difference.max(initial=0.0))
    norm = float(np.linalg.norm(b))
    distance = float(np.linalg.norm(difference))
    return largest, distance / norm if norm else distance
