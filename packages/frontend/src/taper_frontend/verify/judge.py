"""Decide whether a differing result is wrong, or as accurate as float32 allows."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import torch

from taper_frontend.verify.ties import Jitter, rests_on_ties
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.compare import difference, readable

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from taper_frontend.capture.captured import Change

#: The most runs with noise that show which elements depend on ties. Half of them swap a given pair.
_JITTERED = 16

#: Additional runs that show the error of float32. A single one may be accurate by chance.
_PERTURBED = 4

#: The reason for differences that another order of equal elements explains.
TIE = "a choice among scores that tie"

K = TypeVar("K", bound="Hashable")


class Runs(Protocol[K]):
    """The interface to runs of the module on one input, for some of its values, by key."""

    def rerun(self, change: Change | None = None) -> Mapping[K, np.ndarray]:
        """Run the module, with floats in parameters, buffers and inputs changed by ``change``."""

    def exact(self) -> Mapping[K, np.ndarray]:
        """Run the module in float64."""


class Verdict(NamedTuple, Generic[K]):
    """The verdict on results that differ.

    Attributes
    ----------
    wrong : list
        The keys of results that float32 does not explain.
    uncertain : dict
        The reasons for the others, by key.
    no_float64 : str
        The reason why the module did not run in float64, if that run was needed.
    """

    wrong: list[K]
    uncertain: dict[K, str]
    no_float64: str


def judge(
    got: Mapping[K, np.ndarray], want: Mapping[K, np.ndarray], runs: Runs[K], tolerance: float
) -> Verdict[K]:
    """Decide which of the differing results are wrong, beyond the accuracy of float32.

    Parameters
    ----------
    got, want : mapping to numpy.ndarray
        The results of the plan and of the module.
    runs : Runs
    tolerance : float
        Relative L2 error that is right.
    """
    wrong = [*want]
    jittered: list[Mapping[K, np.ndarray]] = []
    while wrong and len(jittered) < _JITTERED:
        with Jitter(len(jittered), tolerance):
            jittered.append(runs.rerun())
        wrong = [
            key
            for key in wrong
            if not rests_on_ties(got[key], want[key], [run[key] for run in jittered], tolerance)
        ]
    uncertain = {key: TIE for key in want if key not in wrong}
    if not wrong:
        return Verdict(wrong, uncertain, "")
    try:
        exact = runs.exact()
    except Exception as error:  # the module only works in float32, so the plain rule applies
        return Verdict(wrong, uncertain, first_line(error))
    noise = torch.Generator().manual_seed(0)
    others = [runs.rerun(partial(_in_the_last_bit, noise)) for _ in range(_PERTURBED)]
    still = []
    for key in wrong:
        why = _excuse(got[key], [run[key] for run in (want, *others)], exact[key], tolerance)
        if why:
            uncertain[key] = why
        else:
            still.append(key)
    return Verdict(still, uncertain, "")


def _excuse(
    result: np.ndarray, runs: Sequence[np.ndarray], exact: np.ndarray, tolerance: float
) -> str:
    """Return why a result is as accurate as the module in float32; empty if it is not.

    Parameters
    ----------
    result : numpy.ndarray
    runs : sequence of numpy.ndarray
        The module's results in float32: for the input itself, then with its last bits changed.
    exact : numpy.ndarray
        Its result in float64. Rounded to the dtype of ``runs`` it may be infinite.
    tolerance : float
        The largest relative error of elements that are finite in float64 and in none of ``runs``,
        whose error in float32 is unknown.
    """
    with np.errstate(over="ignore"):
        is_beyond = np.isinf(readable(exact).astype(readable(runs[0]).dtype))
    ours, truth, *theirs = (_numbers(array) for array in (result, exact, *runs))
    if any(array.shape != truth.shape for array in (ours, *theirs)):
        return ""
    truth = np.where(is_beyond, np.copysign(np.inf, truth), truth)
    agreed = ~np.isfinite(ours) & ((ours == theirs[0]) | (np.isnan(ours) & np.isnan(theirs[0])))
    truth = np.where(agreed, ours, truth)
    is_finite = np.isfinite(truth)
    overflows = is_finite & ~np.any([np.isfinite(array) for array in theirs], 0)
    if difference(ours[overflows], truth[overflows]).relative > tolerance:
        return ""
    off = difference(ours[~overflows], truth[~overflows]).relative
    told = [is_finite & np.isfinite(array) for array in theirs]
    pairs = zip(theirs, told, strict=True)
    limit = max(difference(array[at], truth[at]).relative for array, at in pairs)
    if math.isinf(off) or off > max(2 * limit, tolerance if overflows.any() else 0):
        return ""
    if overflows.any():
        return (
            f"{np.count_nonzero(overflows)} of {truth.size} elements equal those of the module in "
            "float64, which are infinities or NaNs in float32"
        )
    return f"an error of {off:.0e} beside float64, where the module in float32 has {limit:.0e}"


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def _in_the_last_bit(generator: torch.Generator, x: torch.Tensor) -> torch.Tensor:
    """Change a tensor by about as much as rounding does."""
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x * (1 + torch.finfo(x.dtype).eps / 2 * noise)


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return an array as float64, so that differences of integers are defined, too."""
    return readable(array).astype(np.float64)
