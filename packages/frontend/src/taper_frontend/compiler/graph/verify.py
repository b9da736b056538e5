"""Check that a graph is valid; tests do so after every pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.sizes import bounds, is_static
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def verify(graph: Graph) -> None:
    """Check every rule of a graph.

    Raises
    ------
    InternalError
        If a rule is broken; the message lists everything that breaks the first such rule.
    """
    # each rule relies on those before it
    for rule in (
        _tensor_problems,
        _index_problems,
        _origin_problems,
        _order_problems,
        _type_problems,
    ):
        if problems := list(rule(graph)):
            raise InternalError("invalid graph:\n  " + "\n  ".join(problems))


def _tensor_problems(graph: Graph) -> Iterable[str]:
    """Check that each tensor has one name, one role and one origin."""
    states = [state.name for state in graph.states]
    for name, spec in graph.tensors.items():
        origins = {
            "input": graph.inputs.count(name),
            "state": states.count(name),
            "constant": int(name in graph.constants),
            "intermediate": int(name in graph.producers),
        }
        if spec.name != name:
            yield f"tensor {name!r} has the name {spec.name!r}"
        if not name.strip():
            yield "a tensor has an empty name"
        if spec.role not in origins:
            yield f"tensor {name!r} has role {spec.role!r}, which graphs do not have"
        elif origins[spec.role] != 1 or sum(origins.values()) != 1:
            yield f"tensor {name!r} of role {spec.role!r}: expected one origin, got {origins}"
    made = [name for node in graph.nodes.values() for name in node.outputs]
    for name in [*graph.reads, *graph.constants, *made, *graph.writes]:
        if name not in graph.tensors:
            yield f"{name!r} is not among the tensors"
    for name, constant in graph.constants.items():
        if name in graph.tensors and constant.type != graph.tensors[name].type:
            yield f"constant {name!r} is {graph.tensors[name].type}, but its recipe {constant.type}"
    for state in graph.states:
        yield from _array_problems(graph, state.name, state.first)
        types = [graph.tensors[t].type for t in (state.name, state.next) if t in graph.tensors]
        if len(set(types)) > 1:
            yield f"state {state.name!r} is {types[0]}, but its next {state.next!r} {types[1]}"


def _array_problems(graph: Graph, name: str, array: np.ndarray) -> Iterable[str]:
    """Compare the array of a state with its type."""
    if name not in graph.tensors:
        return
    spec = graph.tensors[name]
    dtype, shape, _ = spec.storage
    first = tuple(size if is_static(size) else 1 for size in shape)
    if array.shape != first or array.dtype != DTYPES[dtype].storage:
        yield f"state {name!r} is {spec.type}, but its array {array.dtype} {array.shape}"
    if not array.flags.c_contiguous:
        yield f"state {name!r} is not C-contiguous"


def _index_problems(graph: Graph) -> Iterable[str]:
    """Compare the indices with what the nodes say."""
    readers: dict[str, set[str]] = {name: set() for name in graph.tensors}
    for output, node in graph.nodes.items():
        if node.output != output:
            yield f"node {node.output!r} is indexed as {output!r}"
        yield from _node_problems(node)
        for name in node.outputs:
            if graph.producers.get(name) is not node:
                yield f"{name!r} of node {output!r} is indexed as an output of another node"
        for name in node.reads:
            if name in readers:
                readers[name].add(output)
            else:
                yield f"node {output!r} reads {name!r}, which does not exist"
    for name, expected in readers.items():
        indexed = [node.output for node in graph.consumers(name)]
        if set(indexed) != expected or len(indexed) != len(expected):
            yield f"{name!r} is read by {sorted(expected)}, but its index has {sorted(indexed)}"


def _node_problems(node: Node) -> Iterable[str]:
    """Compare what a node says of itself with what follows from the rest of it."""
    given = [name for name in node.inputs if name != ABSENT]
    for what, said, follows in (
        ("reads", node.reads, given),
        ("output", node.output, node.outputs[0]),
        ("definition", node.definition.name, node.op),
    ):
        if said != follows:
            yield f"node {node.output!r}: {what}: expected {follows!r}, got {said!r}"


def _origin_problems(graph: Graph) -> Iterable[str]:
    """Check that each origin of a size is an integer that a node or an input gives."""
    for size, (name, element) in graph.origins.items():
        if size not in graph.sizes or size not in graph.examples:
            yield f"size {size!r} has an origin but no limits or no example"
        if name not in graph.producers and name not in graph.inputs:
            yield f"size {size!r} is an element of {name!r}, which no node computes"
        elif graph.tensors[name].dtype != "int64":
            yield f"size {size!r} is an element of {name!r}, which is {graph.tensors[name].type}"
        elif not 0 <= element < bounds(graph.tensors[name].type.size)[0]:
            yield f"size {size!r} is element {element} of {name!r}, which has fewer"


def _order_problems(graph: Graph) -> Iterable[str]:
    """Check that every node can come after its producers."""
    try:
        order = graph.order()
    except InternalError as error:
        yield str(error)
        return
    if {node.output for node in order} != graph.nodes.keys() or len(order) != len(graph.nodes):
        yield "the cached order does not have each node once"
    done: set[str] = set()
    for node in order:
        late = [t for t in graph.needs(node) if t in graph.producers and t not in done]
        if late:
            yield f"the cached order has node {node.output!r} before its inputs {late}"
        done.update(node.outputs)


def _type_problems(graph: Graph) -> Iterable[str]:
    """Check the outputs of each node against the types its op infers, and its blocks."""
    for output, node in graph.nodes.items():
        if node.op not in REGISTRY:
            yield f"node {output!r}: expected a registered op, got {node.op!r}"
            continue
        for index, block in enumerate(node.blocks):
            yield from _block_problems(graph, f"node {output!r}: block {index}", block)
        try:
            inferred = node.definition.infer_types(
                graph.input_types(node), node.attrs, [block.signature for block in node.blocks]
            )
        except OpError as error:
            yield f"node {output!r}: {error}"
            continue
        declared = graph.output_types(node)
        if [*inferred] != declared:
            got, want = (", ".join(map(str, types)) for types in (declared, inferred))
            yield f"node {output!r} is {got}, but {node.op} infers {want}"


def _block_problems(graph: Graph, place: str, block: Graph) -> Iterable[str]:
    """Check a graph inside a node, and that its sizes agree with the enclosing graph's."""
    if block.states:
        yield f"{place}: expected no states"
    if block.origins:
        yield f"{place}: expected no sizes that nodes compute"
    if block.sizes is not graph.sizes or block.examples is not graph.examples:
        yield f"{place}: expected the size variables of the enclosing graph, got others"
    try:
        verify(block)
    except InternalError as error:
        yield f"{place}: {error}"
