"""Run the graph of a subgraph if its delegate refuses it or fails, and record the reason.

Each delegated subgraph has its own graph in the plan. ``SessionOptions.on_delegate_failure`` says
whether that graph may take the delegate's place. The reasons have PyC's words, with the backend's
name for PyC's ``cuda``.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import KernelError, TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.extend.delegates import Delegate
from taper_runtime.extend.servers import bind_server, told_error
from taper_runtime.plan.features import with_inner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_runtime.extend.servers import Compute, ServedNode
    from taper_runtime.ops.opdef import BlockFunction, TensorType
    from taper_runtime.plan.plan import Plan


class DelegateUse(NamedTuple):
    """State of one delegated subgraph: what computes it, and why.

    Attributes
    ----------
    node : str
        The subgraph, by its first output.
    backend : str
    reason : str
        Why the subgraph's own graph computed it; empty if it never did.
        ``BACKEND_runtime_not_built``: the session's options name no class.
        ``disabled_by_option``: they name None.
        ``BACKEND_forced_fallback`` and ``forced_error``: they say so.
        ``BACKEND_native_unsupported_fallback``: the delegate refused the subgraph, its weights or
        its sizes. ``BACKEND_native_failed_fallback``: it raised in a run. ``cpu_fallback_failed``:
        the graph raised too.
    is_used : bool
        Whether the next run asks the delegate, if it takes the sizes of that run.
    failures : int
        Runs in which the delegate failed.
    fallbacks : int
        Runs in which the graph computed the subgraph in a delegate's place. Where the options leave
        out the delegate, all runs do, and are not counted.
    error : str
        The last refusal or failure of the delegate: the exception's type and message, printable and
        at most :data:`taper_runtime.base.text.MAX_MESSAGE` characters long; empty if there is none.
    """

    node: str
    backend: str
    reason: str
    is_used: bool
    failures: int
    fallbacks: int
    error: str = ""


class Fallbacks:
    """Delegated subgraphs of one entry, and the code that computes each.

    Parameters
    ----------
    plan : Plan
    given : mapping of str to type of Delegate or None
        The options' delegates by backend.
    policy : str
        One of :data:`taper_runtime.base.option_values.ON_DELEGATE_FAILURE`.
    most_failures : int
        How often the delegate of a subgraph may fail before it is no longer called.

    Attributes
    ----------
    delegates : mapping of str to type of Delegate
        Those that may be asked, by backend; other subgraphs are run as graphs.
    """

    def __init__(
        self,
        plan: Plan,
        given: Mapping[str, type[Delegate] | None],
        policy: str,
        most_failures: int,
    ) -> None:
        nodes = with_inner(plan.nodes)
        self._nodes = [(n.output, n.attrs["backend"]) for n in nodes if n.op == "CALL_DELEGATE"]
        self._given, self._policy, self._most = given, policy, most_failures
        self._servers: dict[str, DelegateOrGraph] = {}
        self.delegates = {name: kind for name, kind in given.items() if kind is not None}
        if policy == "forced_error":
            self.delegates = {backend: _ForcedError for _, backend in self._nodes}
        elif policy == "forced_fallback":
            self.delegates = {}

    def serve(self, graph: Callable[[], BlockFunction], served: ServedNode) -> Delegate:
        """Return the delegate of a subgraph; if allowed, one that falls back to ``graph``."""
        kind = self.delegates[served.server]
        if self._policy != "fallback":
            return kind(served)
        made = DelegateOrGraph(served, kind, graph, self._most)
        self._servers[served.name] = made
        return made

    def uses(self) -> tuple[DelegateUse, ...]:
        """Tell what computes each subgraph."""
        return tuple(self._use(node, backend) for node, backend in self._nodes)

    def _use(self, node: str, backend: str) -> DelegateUse:
        if node in self._servers:
            return self._servers[node].use()
        reason = ""
        if self._policy == "forced_error":
            reason = "forced_error"
        elif self._policy == "forced_fallback":
            reason = f"{backend}_forced_fallback"
        elif backend not in self._given:
            reason = f"{backend}_runtime_not_built"
        elif backend not in self.delegates:
            reason = "disabled_by_option"
        return DelegateUse(node, backend, reason, not reason, 0, 0)


class _ForcedError(Delegate):
    """Delegate that fails in each run and has no fallback."""

    def run(self, inputs: tuple[Any, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Raise the error."""
        raise KernelError("forced_error: SessionOptions.on_delegate_failure")


class DelegateOrGraph(Delegate):
    """Delegate that runs its subgraph's own graph if the user's delegate refuses or fails.

    Parameters
    ----------
    node : ServedNode
    kind : type of Delegate
    graph : callable
        Returns the graph as a function of arrays.
    most_failures : int
        How often the delegate may fail before it is no longer called.
    """

    def __init__(
        self,
        node: ServedNode,
        kind: type[Delegate],
        graph: Callable[[], BlockFunction],
        most_failures: int,
    ) -> None:
        super().__init__(node)
        self._graph, self._most = graph, most_failures
        self._lock = threading.Lock()  # many threads run a session
        self._reason, self._error, self._failures, self._fallbacks = "", "", 0, 0
        self._is_prepared = not node.weights
        self._delegate: Delegate | None = None
        try:
            self._delegate = kind(node)
            self._delegate.node = node
        except Exception as error:  # of any kind: the delegate is other people's code
            self._refused(error)

    def use(self) -> DelegateUse:
        """Tell what computes the subgraph."""
        node = self.node
        counts = self._failures, self._fallbacks
        is_used = self._asked() is not None
        return DelegateUse(node.name, node.server, self._reason, is_used, *counts, self._error)

    def prepare_weights(self, weights: Mapping[int, np.ndarray]) -> None:
        """Let the delegate prepare weights; if it refuses the first ones, fall back.

        See :meth:`taper_runtime.Server.prepare_weights`.
        """
        delegate = self._asked()
        if delegate is None:
            return
        try:
            delegate.prepare_weights(weights)
        except Exception as error:  # of any kind, as above
            if self._is_prepared:
                raise  # new weights: the session keeps its own
            self._refused(error)
        self._is_prepared = True

    def commit_weights(self) -> None:
        """See :meth:`taper_runtime.Server.commit_weights`."""
        if self._delegate is not None:
            self._delegate.commit_weights()

    def close(self) -> None:
        """See :meth:`taper_runtime.Server.close`."""
        if self._delegate is not None:
            self._delegate.close()

    def bind(self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        """See :meth:`taper_runtime.Server.bind`; a delegate may refuse some sizes."""
        compute = None
        if (delegate := self._asked()) is not None:
            try:
                compute = bind_server(delegate, attrs, types)
            except KernelError as error:
                self._reason = f"{self.node.server}_native_unsupported_fallback"
                self._error = _told(error)
        return partial(self._compute, compute)

    def _asked(self) -> Delegate | None:
        """Return the delegate, unless it has failed too often."""
        return self._delegate if self._failures < self._most else None

    def _refused(self, error: Exception) -> None:
        self._delegate, self._error = None, _told(error)
        self._reason = f"{self.node.server}_native_unsupported_fallback"

    def _compute(
        self,
        compute: Compute | None,
        inputs: Sequence[np.ndarray | None],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Compute the subgraph for one set of sizes."""
        failed = None
        if compute is not None and self._asked() is not None:
            try:
                compute(inputs, outputs)
            except KernelError as error:
                failed = error
            else:
                return
        try:
            results = self._graph()([array for array in inputs if array is not None])
        except TaperError as error:
            self._reason = "cpu_fallback_failed"
            cause = f" after {_told(failed) if failed else self._error}".removesuffix(" after ")
            raise KernelError(f"cpu_fallback_failed: {error}{cause}") from error
        for output, result in zip(outputs, results, strict=True):
            output[...] = result
        with self._lock:
            self._fallbacks += 1
            if failed is not None:
                self._failures += 1
                self._error = _told(failed)
                self._reason = f"{self.node.server}_native_failed_fallback"


def _told(error: Exception) -> str:
    """Return the type and the message of what a delegate raised."""
    cause = error.__cause__  # of a KernelError: what the delegate itself raised
    if isinstance(error, KernelError) and isinstance(cause, Exception):
        error = cause
    return told_error(error)
