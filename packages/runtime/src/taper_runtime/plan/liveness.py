"""Find the steps between which tensors and their memory are needed.

Planner, executor, plan checker and reports share this definition: a tensor is live from the step
that writes it to the last step that reads it, both included. Memory is live as long as any tensor
in it.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from taper_runtime.base.loading import watched
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Protocol

    class NodeLike(Protocol):
        """The interface of nodes of a graph and of a plan, for computing lifetimes."""

        @property
        def reads(self) -> Sequence[str]:
            """Return the tensors that the node reads."""

        @property
        def outputs(self) -> Sequence[str]:
            """Return the tensors that the node writes."""


#: The last read of a tensor that is never read.
NEVER = -1


class Lifetime(NamedTuple):
    """The first and the last step that need a tensor or its memory, both included."""

    birth: int
    death: int


class LiveRange(NamedTuple):
    """A number of bytes that are needed from step ``birth`` to step ``death``, both included."""

    birth: int
    death: int
    nbytes: int


def last_reads(steps: Sequence[NodeLike], outputs: Iterable[str]) -> dict[str, int]:
    """Return the last step that reads each tensor.

    For ``outputs``, which the caller reads after the run, this is ``len(steps)``. For tensors that
    a step writes and none reads, it is :data:`NEVER`. All other tensors that no step reads are left
    out.
    """
    last: dict[str, int] = {}
    for index, step in enumerate(watched(steps)):
        last.update(dict.fromkeys(step.reads, index))
        last.update(dict.fromkeys(step.outputs, NEVER))
    last.update(dict.fromkeys(outputs, len(steps)))
    return last


def lifetimes(
    steps: Sequence[NodeLike],
    roots: Mapping[str, str],
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
) -> dict[str, Lifetime]:
    """Return the lifetime of each root's memory, in the order of births.

    Parameters
    ----------
    steps : sequence of NodeLike
        The steps in execution order. They may include views or not: readers of a view read its
        root.
    roots : mapping of str to str
        The root of each tensor; tensors without one are ignored.
    inputs : iterable of str
        Tensors that exist before the first step: their roots are born at step -1.
    outputs : iterable of str
        Tensors that are read after the last step: their roots die at step ``len(steps)``.
    """
    birth = {roots[name]: -1 for name in inputs if name in roots}
    death = dict(birth)
    for index, step in enumerate(watched(steps)):
        for name in (*step.outputs, *step.reads):
            root = roots.get(name)
            if root is not None:
                birth.setdefault(root, index)
                death[root] = index
    death.update((roots[name], len(steps)) for name in outputs if name in roots)
    return {root: Lifetime(birth[root], death[root]) for root in birth}


def live_bytes(ranges: Iterable[LiveRange], count: int) -> list[int]:
    """Return the bytes that are needed at each of the ``count`` steps."""
    change = [0] * (count + 1)
    for birth, death, nbytes in ranges:
        change[birth] += nbytes
        change[death + 1] -= nbytes
    return list(accumulate(change[:count]))
