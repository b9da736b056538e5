"""Take chains of nodes out of a graph, so that ways to split them can be measured."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.block_operands import copy_node
from taper_frontend.compiler.graph.fingerprint import structure_digest
from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.file.measurements import NodeKey, type_text
from taper_runtime.machine.cost import cache_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_frontend.compiler.graph.node import Node

#: The bytes for which a pass makes parts of nodes; or a function that returns them, given what the
#: pass makes ("row tiles" or "micro-batches") and a function that returns the chain as a graph.
Room = int | Callable[[str, Callable[[], Graph]], int]


def room_of(room: Room | None, about: str, chain: Callable[[], Graph]) -> int:
    """Return the bytes that a part of a chain may take; by default a core's own cache."""
    if room is None:
        return cache_bytes()
    return room if isinstance(room, int) else room(about, chain)


def chain_alone(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return a graph with these static nodes alone; the tensors that they read are its inputs.

    Parameters
    ----------
    graph : Graph
    nodes : sequence of Node
        In order. Only the last one is read by others.
    """
    alone = Graph()
    names: dict[str, str] = {}
    made = {name for node in nodes for name in node.outputs}
    for name in dict.fromkeys(name for node in nodes for name in node.reads if name not in made):
        if graph.is_constant(name):
            names[name] = alone.add_constant(name, graph.constants[name])
        else:
            names[name] = alone.add_input(
                name, graph.tensors[name].dtype, graph.tensors[name].shape
            )
    for node in nodes:
        names.update(zip(node.outputs, copy_node(alone, node, names), strict=True))
    alone.set_outputs([names[nodes[-1].output]])
    return alone


def chain_key(about: str, chain: Graph) -> NodeKey:
    """Return the key under which a chain's times are stored; it has no names and no values.

    Parameters
    ----------
    about : str
        What is made of the chain; see :data:`Room`.
    chain : Graph
    """
    inputs = tuple(type_text(chain.tensors[name].type) for name in chain.reads)
    outputs = tuple(type_text(chain.tensors[name].type) for name in chain.writes)
    digest = sha256()
    for line in _lines(chain):
        digest.update(f"{line!r}\n".encode())
    return NodeKey(about, inputs, outputs, f'{{"nodes":"{digest.hexdigest()}"}}')


def _lines(chain: Graph) -> Iterator[tuple[object, ...]]:
    """Yield plain data that describes each node, in an order in which producers come first."""
    places = {name: place for place, name in enumerate(chain.reads)}
    roots = [chain.producers[n].output for n in chain.writes if n in chain.producers]
    for node in chain.depth_first(roots):
        reads: list[object] = []
        for name in node.inputs:
            if name == ABSENT or name in places:
                reads.append(places.get(name))
            else:
                reads.append(type_text(chain.tensors[name].type))  # a constant
        outputs = [type_text(chain.tensors[name].type) for name in node.outputs]
        yield *node.operation, reads, outputs, *map(structure_digest, node.blocks)
        for name in node.outputs:
            places[name] = len(places)
