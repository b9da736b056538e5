"""List what torch itself leaves open where its result and ours differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.testing._internal.opinfo.core import SampleInput

#: Cause of a result that is not torch's but better.
NEARER = "torch's result is farther than ours from what torch computes in float64"

#: Cause of a right result whose order of equals is not torch's.
TIES = "torch's default order of equals is not that of its stable sort, which ours is"


#: Cause of a result that is as near to what it should be as its dtype lets sums be.
ROUNDED = "sums that cancel, in another order: within 4 units of what torch computes in float64"

_Tensors = Sequence[torch.Tensor]


def is_nearer(ours: _Tensors, theirs: _Tensors, exact: _Tensors) -> bool:
    """Whether all that differs from ``theirs`` is nearer to ``exact``, in relative L2 distance."""
    return all(
        torch.equal(a, b) or _distance(a, c) < _distance(b, c)
        for a, b, c in zip(ours, theirs, exact, strict=True)
    )


def is_rounded(ours: _Tensors, exact: _Tensors) -> bool:
    """Whether the distance to ``exact`` is at most 4 units of the dtype, relative to its norm."""
    return all(
        (a.is_floating_point() or a.is_complex())
        and _distance(a, c) <= 4 * torch.finfo(a.dtype).eps * float(torch.linalg.vector_norm(c))
        for a, c in zip(ours, exact, strict=True)
    )


def _distance(x: torch.Tensor, exact: torch.Tensor) -> float:
    if x.shape != exact.shape:  # the data decide it
        return torch.inf
    x, exact = _reals(x), _reals(exact)
    same = (x == exact) | (x.isnan() & exact.isnan())
    difference = torch.where(same, 0, x - exact)
    return float(torch.linalg.vector_norm(difference.nan_to_num(nan=torch.inf)))


def _reals(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()).double() if x.is_complex() else x.double()


def by_stable_sort(name: str, sample: SampleInput) -> list[torch.Tensor]:
    """Return what an op that orders elements gives where equals keep their order.

    Parameters
    ----------
    name : str
        Of the OpInfo. Empty is the list for an op that orders nothing, or asks for that order.
    """
    if name not in _ORDERS or sample.kwargs.get("stable"):
        return []
    return list(_ORDERS[name](sample.input, *sample.args, **sample.kwargs))


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Sequence[torch.Tensor]:
    return torch.sort(x, stable=True, dim=dim, descending=descending)


def _argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Sequence[torch.Tensor]:
    return _sort(x, dim, descending)[1:]


def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Sequence[torch.Tensor]:
    return [part.narrow(dim, 0, k) for part in _sort(x, dim, largest)]


def _kthvalue(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> Sequence[torch.Tensor]:
    parts = [part.narrow(dim, k - 1, 1) for part in _sort(x, dim)]
    return parts if keepdim else [part.squeeze(dim) for part in parts]


_ORDERS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
    "kthvalue": _kthvalue,
}
