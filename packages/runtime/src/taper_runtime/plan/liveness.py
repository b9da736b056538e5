"""Find the steps of an execution order between which tensors and their memory are needed.

Planner, executor, plan checker and reports mean the same by it: a tensor is live from the step that
writes it to the last step that reads it, both included, and memory as long as any tensor in it.
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
            """The tensors that it reads."""

        @property
        def outputs(self) -> Sequence[str]:
            """The tensors that it writes."""


#: The last read of a tensor that no step reads.
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

    ``len(steps)`` stands for the caller, who reads ``outputs`` after the run, and :data:`NEVER` for
    what a step writes and no step reads. Other tensors that no step reads are not there.
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
    """Return how long the memory of each root is needed, in the order in which they are born.

    Parameters
    ----------
    steps : sequence of NodeLike
        In execution order. Views may be among them or not: their readers read the same root.
    roots : mapping of str to str
        The root of each tensor that counts; other tensors are passed over.
    inputs : iterable of str
        Tensors that are there before the first step: their roots are born at step -1.
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


def live_bytes(blocks: Iterable[LiveRange], count: int) -> list[int]:
    """Return the bytes that are needed at each of the ``count`` steps."""
    change = [0] * (count + 1)
    for birth, death, nbytes in blocks:
        change[birth] += nbytes
        change[death + 1] -= nbytes
    return list(accumulate(change[:count]))
