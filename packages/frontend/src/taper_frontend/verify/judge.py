"""Telling an error from what float32 leaves open, for results that differ."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from taper_frontend.verify.compare import difference, readable
from taper_frontend.verify.ties import Jitter, rests_on_ties

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from taper_frontend.captured import Change

#: Runs with noise, at most, that tell what rests on ties. Half of them turn a pair over.
_JITTERED = 16

#: Runs beside the given one that tell how far float32 is off. One may be close by chance.
_PERTURBED = 4

#: Why results differ that another order of equals explains.
TIE = "a choice among scores that tie"

K = TypeVar("K", bound="Hashable")


class Runs(Protocol[K]):
    """The module on one input, for some of the values that it computes, by any keys."""

    def rerun(self, change: Change | None = None) -> Mapping[K, np.ndarray]:
        """Run the module, with ``change`` of the floats among parameters, buffers and inputs."""

    def exact(self) -> Mapping[K, np.ndarray]:
        """Run the module in float64."""


class Verdict(NamedTuple, Generic[K]):
    """What became of results that differ.

    Attributes
    ----------
    wrong : list
        The keys of those that float32 does not explain.
    uncertain : dict
        Why the others differ, by their keys.
    no_float64 : str
        Why the module did not run in float64, where that could have told more.
    """

    wrong: list[K]
    uncertain: dict[K, str]
    no_float64: str


def judge(
    got: Mapping[K, np.ndarray], want: Mapping[K, np.ndarray], runs: Runs[K], tolerance: float
) -> Verdict[K]:
    """Return which of the results that differ are wrong, beyond what float32 leaves open.

    Parameters
    ----------
    got, want : mapping to numpy.ndarray
        Those results, of the plan and of the module.
    runs : Runs
    tolerance : float
        Relative L2 error that is right.
    """
    wrong = [*want]
    jittered: list[Mapping[K, np.ndarray]] = []
    while wrong and len(jittered) < _JITTERED:
        with Jitter(len(jittered)):
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
    except Exception as error:  # the module has a place for float32 only: the plain rule holds
        return Verdict(wrong, uncertain, first_line(error))
    noise = torch.Generator().manual_seed(0)
    others = [runs.rerun(partial(_in_the_last_bit, noise)) for _ in range(_PERTURBED)]
    still = []
    for key in wrong:
        truth = _numbers(exact[key])
        ours = difference(_numbers(got[key]), truth).relative
        torchs = max(difference(_numbers(run[key]), truth).relative for run in (want, *others))
        if math.isinf(ours) or ours > 2 * torchs:
            still.append(key)
        else:
            uncertain[key] = (
                f"{ours:.0e} from the module in float64, which in float32 is {torchs:.0e} away"
            )
    return Verdict(still, uncertain, "")


def first_line(error: Exception) -> str:
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
