"""Move nodes of a graph into the block of one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.block_operands import copy_node
from taper_frontend.compiler.graph.node import SourceLine
from taper_frontend.errors import ExportError
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def outline(
    graph: Graph,
    names: Collection[str],
    op: str,
    attrs: Mapping[str, Any],
    *,
    leading: Callable[[Graph], Sequence[str]] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> list[str]:
    """Replace several nodes by one node whose block contains them.

    Parameters
    ----------
    graph : Graph
    names : collection of str
        The first outputs of the nodes.
    op : str
        The op of the node, which must run its only block once.
    attrs : mapping
    leading : callable, optional
        Called with the block before the graph is changed; returns inputs of the node that precede
        those of its block.
    inputs : sequence of str, optional
        The first inputs of the block; a tensor may occur twice. All other tensors that the nodes
        read from outside follow, except constants, which are copied into the block. By default
        everything that the nodes read from outside is an input, including constants.
    outputs : sequence of str, optional
        The outputs of the block, in order; they may be its inputs. By default the outputs of the
        graph, in its order, then the other tensors that nodes outside read.

    Returns
    -------
    list of str
        The names of ``outputs`` in the graph; tensors that the nodes made keep their names.

    Raises
    ------
    ExportError
        If an input depends on an output through nodes outside; or an input or output is packed; or
        a size is an element of a tensor inside.
    """
    subgraph = [node for node in graph.order() if node.output in names]
    made = _made(subgraph)
    _check_convex(graph, subgraph, made)
    read = dict.fromkeys(name for node in subgraph for name in node.reads if name not in made)
    if inputs is None:
        own, given = [], [*read]
    else:
        own = [name for name in read if graph.is_constant(name) and name not in inputs]
        given = [*inputs, *(name for name in read if name not in (*inputs, *own))]
    if outputs is None:
        seen = {name: None for name in made if _is_seen(graph, name, subgraph)}
        outputs = list(dict.fromkeys([*(n for n in graph.outputs if n in seen), *seen]))
    _check_edge(graph, [*given, *outputs], made)
    block = _block(graph, subgraph, given, own, outputs)
    first = [] if leading is None else leading(block)
    results = graph.add_multi_output(
        op,
        [*first, *given],
        attrs,
        blocks=[block],
        name=f"{outputs[0]}.{op.lower()}",
        source=SourceLine(subgraph[-1].source.line if subgraph else "").joined(
            n.source for n in subgraph
        ),
    )
    replaced = {old: new for old, new in zip(outputs, results, strict=True) if old in made}
    for old, new in replaced.items():
        graph.replace_uses(old, new)
    for node in reversed(subgraph):
        graph.remove_node(node)
    graph.prune(own)
    names_kept = {new: old for old, new in replaced.items()}
    graph.rename(names_kept)
    graph.listener.fired("outline", names_kept.get(results[0], results[0]))
    return [names_kept.get(name, name) for name in results]


def _block(
    graph: Graph,
    subgraph: Sequence[Node],
    given: Sequence[str],
    own: Sequence[str],
    outputs: Sequence[str],
) -> Graph:
    """Return a graph of the nodes, with its own inputs and constants."""
    block = graph.new_block()
    inside: dict[str, str] = {}
    for name in given:
        spec = graph.tensors[name]
        added = block.add_input(name, spec.dtype, spec.shape)
        inside.setdefault(name, added)
    for name in own:
        inside[name] = block.add_constant(name, graph.constants[name])
    for node in subgraph:
        inside.update(zip(node.outputs, copy_node(block, node, inside), strict=True))
    block.set_outputs([inside[name] for name in outputs])
    return block


def _made(subgraph: Sequence[Node]) -> dict[str, None]:
    """Return the outputs of the nodes, as an ordered set."""
    return dict.fromkeys(name for node in subgraph for name in node.outputs)


def _is_seen(graph: Graph, name: str, subgraph: Sequence[Node]) -> bool:
    """Return whether anything outside the subgraph uses this tensor of it."""
    return graph.is_output(name) or any(user not in subgraph for user in graph.consumers(name))


def _check_convex(graph: Graph, subgraph: Sequence[Node], made: Collection[str]) -> None:
    """Check that the nodes can run one after the other with no other nodes between them."""
    inside = {node.output for node in subgraph}
    after: set[str] = set()
    for node in graph.order():
        needs = graph.needs(node)
        behind = after.intersection(needs)
        if node.output in inside and behind:
            raise ExportError(
                f"subgraph of {subgraph[0].output!r}: expected no path that leaves the subgraph "
                f"and enters it again, got one through {min(behind)!r} to node {node.output!r}"
            )
        if node.output not in inside and (
            behind or any(name in made for name in graph.needs(node))
        ):
            after.update(node.outputs)


def _check_edge(graph: Graph, edge: Sequence[str], made: Collection[str]) -> None:
    for name in edge:
        if graph.tensors[name].format != PLAIN:
            raise ExportError(
                f"subgraph: expected plain tensors at its edge, got {name!r} in format "
                f"{graph.tensors[name].format}"
            )
    for size, (name, _) in graph.origins.items():
        if name in made:
            raise ExportError(
                f"subgraph: expected no sizes that depend on its results, got {size!r}, an element "
                f"of {name!r}"
            )
