"""Define delegates: external code that computes subgraphs of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted
from taper_runtime.extend.servers import Server
from taper_runtime.plan.features import with_inner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.plan.plan import Plan


_NAMED = 5  # the most nodes in an error


class Delegate(Server):
    """Computes one subgraph; ``SessionOptions.delegates`` has the class by its backend's name.

    An object is made for each subgraph when a session is opened. The blob is not one of its inputs.

    Attributes
    ----------
    runs_machine_code : bool
        Whether the blob is run as code. If so, a session also needs
        ``SessionOptions.allow_native_code``.

    Parameters
    ----------
    node : ServedNode
    """

    kind: ClassVar[str] = "delegate"
    runs_machine_code: ClassVar[bool] = False


def check_delegates(
    plan: Plan,
    delegates: Mapping[str, type[Delegate] | None],
    *,
    allow_native_code: bool,
    may_be_absent: bool,
) -> None:
    """Check that a session with these options may run the delegates of a plan.

    Parameters
    ----------
    plan : Plan
    delegates : mapping of str to type of Delegate or None
    allow_native_code : bool
    may_be_absent : bool
        Whether a subgraph may have a backend that is not among ``delegates``.

    Raises
    ------
    InputError
        If a subgraph's backend is not among ``delegates`` and has to be, or runs its blob as
        machine code and ``allow_native_code`` is not set.
    """
    nodes = [*plan.nodes, *(node for entry in plan.entries.values() for node in entry.nodes)]
    for node in with_inner(nodes):
        if node.op != "CALL_DELEGATE":
            continue
        backend = node.attrs["backend"]
        if backend not in delegates and may_be_absent:
            continue
        if backend not in delegates:
            known = ", ".join(map(repr, delegates)) or "none"
            raise InputError(
                f"node {node.output!r}: expected delegate {backend!r} in SessionOptions.delegates, "
                f"got {known}; a delegate runs what the plan's file says, so it must be allowed"
            )
        kind = delegates[backend]
        if kind is not None and kind.runs_machine_code and not allow_native_code:
            raise InputError(
                f"node {node.output!r}: the delegate {backend!r} runs machine code from the plan's "
                "file; set SessionOptions.allow_native_code if you trust who made the file"
            )


def check_whole(plan: Plan, delegates: Mapping[str, type[Delegate] | None]) -> None:
    """Check that delegates compute the whole plan, as ``SessionOptions.executor`` may require.

    Raises
    ------
    InputError
        If not; the message names the first nodes that are not in a delegate.
    """
    others = [
        f"{node.output!r} ({node.op})"
        for node in filter(plan.is_executed, plan.nodes)
        if node.op != "CALL_DELEGATE" or delegates.get(node.attrs["backend"]) is None
    ]
    if others:
        named = ", ".join(others[:_NAMED]) + (", ..." if len(others) > _NAMED else "")
        raise InputError(
            'executor="delegate": expected a plan whose nodes are all computed by delegates, got '
            f"{counted(len(others), 'other node')}: {named}"
        )
