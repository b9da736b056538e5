"""Distinguish errors from choices among scores that are equal within rounding.

For a top-k, an argmax, a sort, a comparison, a rounding or an angle, a difference of one bit can
change an index or add a whole turn. In float32 both results are right. So the module is run again
with noise of the size of rounding errors only on the inputs of such ops. Elements that change are
uncertain.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from taper_runtime.plan.compare import TOLERANCE, difference, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ops that choose among their elements. Equal ones, including zeros, may be in any order.
_CHOICES = frozenset(
    {
        *("topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode"),
        *("argmax", "argmin", "max", "min", "cummax", "cummin", "nms"),
        *("max_pool2d_with_indices", "adaptive_max_pool2d", "searchsorted", "bucketize"),
    }
)
#: Those of these ops for which NaN is smaller than all numbers; for the others it is larger.
_LEAST = frozenset({"argmin", "min", "cummin"})

#: Infinities and NaNs are replaced by numbers of at least this size to order them.
_INFINITE, _NAN = 1e300, 1e301

#: Ops whose result jumps by a whole turn across the negative axis.
_TURNS = frozenset({"angle", "atan2"})

_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
_ROUNDINGS = frozenset({"floor", "ceil", "round", "trunc", "_to_copy"})

#: Ops that round their first argument to multiples of a scale.
_QUANTIZERS = frozenset(
    {
        *("quantize_per_tensor", "quantize_per_channel", "quantize_per_channel_group"),
        *("quantize_per_token", "quantize_affine"),
    }
)


class Jitter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds noise of the size of rounding errors to the inputs of ops with discrete results.

    Parameters
    ----------
    seed : int
        The seed of the noise.
    tolerance : float
        The relative error that is right for the scores. The noise is a tenth of it.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int, tolerance: float = TOLERANCE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size = tolerance / 10
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an op, with noise on its tensors if it chooses."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*tree_map(self._inside, args), **kwargs)
        name = func.overloadpacket.__name__
        if name in _CHOICES:
            results = self._choose(func, args, kwargs)
            return self._shuffle(results, args, kwargs) if name == "topk" else results
        if name in _TURNS:
            args = tree_map_only(torch.Tensor, self._apart, args)
        if name in _COMPARISONS:
            args = tree_map_only(torch.Tensor, self._scaled, args)
        elif name in _ROUNDINGS and not _stays_float(kwargs):
            args = tree_map_only(torch.Tensor, self._off_whole, args)
        elif name in _QUANTIZERS:
            args = self._scaled(args[0]), *args[1:]
        return func(*args, **kwargs)

    def _inside(self, arg: Any) -> Any:
        """Wrap the body of a control-flow op, so that its ops get noise, too."""
        if not isinstance(arg, torch.nn.Module):
            return arg

        def body(*operands: Any) -> Any:
            with self:
                return arg(*operands)

        return body

    def _choose(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Break ties among floats within rounding errors, and among equal integers and others."""
        dtype = next((x.dtype for x in args if isinstance(x, torch.Tensor)), None)
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.is_floating_point() and _has_equals(first):
            least = func.overloadpacket.__name__ in _LEAST
            results = func(self._place(first, -1 if least else 1), *args[1:], **kwargs)
            return tree_map_only(torch.Tensor, partial(_replaced, dtype=first.dtype), results)
        results = func(*tree_map_only(torch.Tensor, self._apart, args), **kwargs)
        if dtype is None or dtype.is_floating_point:
            return results
        return tree_map_only(
            torch.Tensor,
            lambda x: x.round().to(dtype) if x.is_floating_point() else x,
            results,
        )

    def _shuffle(self, results: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Reorder the results of a topk that promises no order."""
        given: list[Any] = [*args, *(-1, True, True)[len(args) - 2 :]]
        _, count, dim, _, is_sorted = given
        if kwargs.get("sorted", is_sorted):
            return results
        order = torch.randperm(count, generator=self._generator)
        return tree_map(lambda x: x.index_select(kwargs.get("dim", dim), order), results)

    def _apart(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.bool:
            return x
        if x.is_complex():
            return torch.view_as_complex(self._apart(torch.view_as_real(x)))
        if not x.is_floating_point():
            wide = x.double()
            return wide + 0.2 * (2 * self._noise(wide, uniform=True) - 1)
        size = x.abs()
        typical = size[(size > 0) & size.isfinite()]
        floor = typical.median() if typical.numel() else 1.0
        return x + self._size * size.clamp(min=floor).nan_to_num(posinf=0) * self._noise(x)

    def _place(self, x: torch.Tensor, sign: int) -> torch.Tensor:
        """Replace infinities and NaNs, which are equal to each other, by numbers in some order."""
        apart = 1 + 0.1 * self._noise(x.double(), uniform=True)
        wide = self._apart(x).double()
        wide = torch.where(x.isinf(), x.double().sign() * _INFINITE * apart, wide)
        return torch.where(x.isnan(), sign * _NAN * apart, wide)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return relative noise, which leaves zeros unchanged: padding is not a near tie."""
        return x * (1 + self._size * self._noise(x)) if x.is_floating_point() else x

    def _off_whole(self, x: torch.Tensor) -> torch.Tensor:
        """Return noise that moves numbers off integers, except those that are exactly integers."""
        return torch.where(x == x.round(), x, self._scaled(x)) if x.is_floating_point() else x

    def _noise(self, x: torch.Tensor, *, uniform: bool = False) -> torch.Tensor:
        draw = torch.rand if uniform else torch.randn
        return draw(x.shape, generator=self._generator, dtype=torch.float64).to(x.dtype)


def _has_equals(x: torch.Tensor) -> bool:
    """Return whether there are infinities or NaNs, which noise cannot distinguish."""
    return not bool(x.isfinite().all())


def _replaced(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an op's result on the output of :meth:`Jitter._place`, with the original values."""
    if not x.is_floating_point():
        return x
    known = x.masked_fill(x >= _INFINITE, torch.inf).masked_fill(x <= -_INFINITE, -torch.inf)
    return known.masked_fill(x.abs() >= _NAN, torch.nan).to(dtype)


def _stays_float(kwargs: Any) -> bool:
    """Return whether a conversion is one to floats."""
    dtype = kwargs.get("dtype")
    return dtype is not None and dtype.is_floating_point


def rests_on_ties(
    got: np.ndarray, want: np.ndarray, jittered: Sequence[np.ndarray], tolerance: float
) -> bool:
    """Return whether a result differs from the module's only where that is uncertain.

    Elements that no run with noise changes must agree as usual. For the rest, an integer must occur
    somewhere in a run, because tied elements may change places, or be between the runs' values at
    its position. Floats, after sorting, may differ at most twice as much as those of the runs,
    because a tie only changes the order.

    Parameters
    ----------
    got, want : numpy.ndarray
        The results of the plan and of the module.
    jittered : sequence of numpy.ndarray
        The results of the module with a :class:`Jitter`.
    tolerance : float
        The largest acceptable relative L2 error.
    """
    if got.shape != want.shape:
        return False
    got, want, *runs = (readable(array) for array in (got, want, *jittered))
    runs = [run for run in runs if run.shape == want.shape]
    if want.dtype.kind != "f":
        moved = np.any([run != want for run in runs], axis=0) & np.ones(want.shape, bool)
        if not moved.any() or not np.array_equal(got[~moved], want[~moved]):
            return False
        seen = np.stack([want, *runs])[:, moved]
        choice = got[moved]
        between = (choice >= seen.min(axis=0)) & (choice <= seen.max(axis=0))
        return bool((between | np.isin(choice, seen)).all())
    finite = want[np.isfinite(want)].astype(np.float64)
    scale = tolerance * np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    with np.errstate(invalid="ignore", over="ignore"):  # infinities at the same positions
        moved = np.any([~(np.abs(run - want) <= scale) for run in runs], axis=0)
    moved = moved & np.isfinite(want)
    if not moved.any() or difference(np.where(moved, want, got), want).relative > tolerance:
        return False
    spread = max(difference(np.sort(run[moved]), np.sort(want[moved])).relative for run in runs)
    allowed = max(tolerance, 2 * spread)
    return difference(np.sort(got[moved]), np.sort(want[moved])).relative <= allowed
