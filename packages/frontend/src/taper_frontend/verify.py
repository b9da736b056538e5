"""The last step of an export: the plan's results beside the module's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from taper_frontend.errors import ExportError
from taper_frontend.lowering.context import to_numpy
from taper_runtime.dtypes import DTYPES
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16
from taper_runtime.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def verify_plan(plan: Plan, program: ExportedProgram) -> dict[str, Any]:
    """Run plan and module side by side on the example inputs and on random ones.

    Random floats are standard normal; random integers are drawn between the least and the largest
    of the example's, so that indices stay in range.

    Returns
    -------
    dict
        ``max_error`` (largest absolute difference) and ``relative_error`` (largest relative L2
        difference of an output) over all trials, and ``trials``.

    Raises
    ------
    VerificationError
        If an output's relative error exceeds :data:`TOLERANCE` (more where the plan holds halves),
        or an integer or bool output differs, or NaNs stand in other places.
    """
    session = InferenceSession(plan)
    module = program.module()
    rng = np.random.default_rng(0)
    max_error = relative_error = 0.0
    dtypes = {spec.dtype for spec in plan.tensors.values()}
    tolerance = max([TOLERANCE, *(_COARSE[dtype] for dtype in dtypes & _COARSE.keys())])
    given = [plan.samples[name] for name in plan.inputs]
    for trial in range(1 + TRIALS):
        arrays = given if trial == 0 else [_randomize(array, rng) for array in given]
        got = session.run(None, dict(zip(plan.inputs, arrays, strict=True)))
        want = _run_module(module, program, arrays)
        for name, ours, theirs in zip(plan.outputs, got, want, strict=True):
            absolute, relative = _compare(ours, theirs)
            if relative > tolerance:
                inputs = "the example inputs" if trial == 0 else f"random inputs (trial {trial})"
                raise VerificationError(
                    f"output {name!r} differs from the module's on {inputs}: expected a relative "
                    f"error of at most {tolerance:g}, got {relative:.3g} (largest difference "
                    f"{absolute:.3g}). export(..., verify=False) skips this check"
                )
            max_error = max(max_error, absolute)
            relative_error = max(relative_error, relative)
    return {"max_error": max_error, "relative_error": relative_error, "trials": 1 + TRIALS}


def _randomize(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if array.size == 0:
        return array
    if array.dtype == DTYPES["bfloat16"].storage:
        return to_bfloat16(rng.standard_normal(array.shape).astype(np.float32))
    if array.dtype.kind == "f":
        return rng.standard_normal(array.shape).astype(array.dtype)
    if array.dtype == np.bool_:
        return rng.random(array.shape) < 0.5
    return rng.integers(array.min(), array.max(), array.shape, array.dtype, endpoint=True)


def _run_module(
    module: torch.nn.Module, program: ExportedProgram, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The module's tensor results, flattened, for these tensor inputs."""
    fresh = iter(arrays)
    leaves, spec = torch.utils._pytree.tree_flatten(program.example_inputs)
    leaves = [
        torch.from_numpy(next(fresh).copy()).view(leaf.dtype)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]
    args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
    with torch.no_grad():
        results = torch.utils._pytree.tree_leaves(module(*args, **kwargs))
    return [to_numpy(result) for result in results if isinstance(result, torch.Tensor)]


def _compare(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Largest absolute and relative L2 difference; infinite where they cannot be compared."""
    if ours.dtype == DTYPES["bfloat16"].storage:
        ours, theirs = from_bfloat16(ours), from_bfloat16(theirs)
    if ours.dtype.kind != "f":
        equal = np.array_equal(ours, theirs)
        return (0.0, 0.0) if equal else (np.inf, np.inf)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return np.inf, np.inf
    a, b = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    difference = np.abs(a - b)
    largest = float(difference.max(initial=0.0))
    norm = float(np.linalg.norm(b))
    distance = float(np.linalg.norm(difference))
    return largest, distance / norm if norm else distance
