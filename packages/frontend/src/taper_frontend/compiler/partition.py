"""Move subgraphs of a graph to a delegate: each becomes a node with its compiled form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.c_delegate import compile_subgraph
from taper_frontend.compiler.graph.node import Node
from taper_frontend.compiler.outline import outline
from taper_frontend.errors import CannotDelegate, ExportError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import unknown
from taper_runtime.extend.c_delegate import CDelegate

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.extend.delegates import Delegate

#: A function that returns subgraphs of a graph, each as its nodes or their first outputs, in any
#: order.
Subgraphs = Callable[["Graph"], Iterable[Iterable["str | Node"]]]

#: A function that compiles a subgraph to bytes, or raises :class:`CannotDelegate` with the reason.
Compile = Callable[["Graph"], bytes]


class Backend(NamedTuple):
    """The functions that compile a subgraph to bytes and run it; None runs the subgraph."""

    compile: Compile
    delegate: type[Delegate] | None


_BACKENDS: dict[str, Backend] = {"c": Backend(compile_subgraph, CDelegate)}


def register_backend(name: str, compile: Compile, delegate: type[Delegate] | None = None) -> None:
    """Register a backend that compiles subgraphs, for ``export(delegate=...)``.

    Parameters
    ----------
    name : str
        The delegate's name in ``SessionOptions.delegates``.
    compile : callable
        ``(Graph) -> bytes``. The argument is the subgraph, whose inputs are all tensors
        that the subgraph reads, including weights. It must not be changed.
    delegate : type of Delegate, optional
        The delegate with which an export verifies the plan; without it subgraphs run as graphs.

    Raises
    ------
    ValueError
        If the name is already registered.
    """
    if name in _BACKENDS:
        raise ValueError(f"backend {name!r} is registered already")
    _BACKENDS[name] = Backend(compile, delegate)


def unregister_backend(name: str) -> None:
    """Unregister a backend."""
    del _BACKENDS[name]


def verifying_delegates() -> dict[str, type[Delegate] | None]:
    """Return, by backend, the delegates of a session that verifies a plan."""
    return {name: backend.delegate for name, backend in _BACKENDS.items()}


def find_backend(name: str) -> Backend:
    """Return the backend of this name.

    Raises
    ------
    ExportError
        If there is no such backend; the message lists those that exist.
    """
    if name not in _BACKENDS:
        raise ExportError(unknown("delegate", name, sorted(_BACKENDS)))
    return _BACKENDS[name]


def _name(node: str | Node) -> str:
    """Return the first output of a node, which may be given by it."""
    return node.output if isinstance(node, Node) else node


def _listed(found: object, what: str) -> Iterable[Any]:
    """Return what the user's function returned, which must be a collection and no text."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ExportError(f"partition: expected a list of {what}, got {found!r}")
    return found


class Partition:
    """A pass that moves subgraphs of the graph to a delegate.

    Parameters
    ----------
    subgraphs : callable
    backend : str

    Attributes
    ----------
    left : list of str
        For each subgraph that stayed on the CPU, the nodes and the backend's reason.
    """

    __name__ = "partition"

    def __init__(self, subgraphs: Subgraphs, backend: str) -> None:
        self._subgraphs = subgraphs
        self._backend = backend
        self._compile = find_backend(backend).compile
        self.left: list[str] = []

    def __call__(self, graph: Graph) -> bool:
        """Run the pass on ``graph``.

        Raises
        ------
        ExportError
            If a subgraph has no nodes, an unknown one, or is not convex; or the backend does not
            return bytes.
        """
        changed = [self._delegate(graph, subgraph) for subgraph in self._checked(graph)]
        return any(changed)

    def _checked(self, graph: Graph) -> list[frozenset[str]]:
        """Return the subgraphs after checking that all nodes exist and subgraphs are disjoint."""
        subgraphs = [
            frozenset(map(_name, _listed(subgraph, "nodes or their first outputs in a subgraph")))
            for subgraph in _listed(self._subgraphs(graph), "subgraphs")
        ]
        seen: set[str] = set()
        for subgraph in subgraphs:
            unknown = subgraph - graph.nodes.keys()
            if not subgraph or unknown:
                got = min(map(repr, unknown), default="none")
                raise ExportError(
                    f"partition: expected nodes of the graph or their first outputs, got {got}"
                )
            if twice := seen & subgraph:
                raise ExportError(
                    f"partition: expected each node in one subgraph, got {min(twice)!r} in two"
                )
            seen |= subgraph
        return subgraphs

    def _delegate(self, graph: Graph, subgraph: frozenset[str]) -> bool:
        """Replace a subgraph by a node if the backend accepts it."""

        def blob(block: Graph) -> list[str]:
            made = self._compile(block)
            if not isinstance(made, bytes):
                raise ExportError(
                    f"delegate {self._backend!r}: expected bytes, got {type(made).__name__}"
                )
            return [graph.add_constant(f"delegate.{self._backend}", np.frombuffer(made, np.uint8))]

        try:
            outline(graph, subgraph, "CALL_DELEGATE", {"backend": self._backend}, leading=blob)
        except CannotDelegate as reason:
            nodes = ", ".join(sorted(subgraph)[:3]) + (", ..." if len(subgraph) > 3 else "")
            self.left.append(f"{nodes}: {reason}")
            return False
        return True
