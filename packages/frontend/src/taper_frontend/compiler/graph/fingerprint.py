"""Compute fingerprints of graphs, which are the same for equal graphs in every process."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.constants import Derived, Parameter, steps
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.plan.plan import TensorSpec


def fingerprint(graph: Graph) -> str:
    """Return a SHA-256, in hexadecimal, of everything that decides the result of compilation.

    It covers inputs, states, nodes with their attrs and blocks, names, types, sizes with their
    ranges and examples, and constants with their recipes and the values of parameters. Source lines
    and the nodes' ATen ops are left out.

    All weights are read, one at a time, but nothing is computed.

    Raises
    ------
    ExportError
        If a parameter cannot be read.
    """
    return _digest(_graph_lines(graph, {}))


def structure_digest(graph: Graph) -> str:
    """Return the part of a fingerprint that is not about constants' values; no weight is read."""
    return _digest(_graph_lines(graph, None))


def constants_digest(graph: Graph) -> str:
    """Return the part of a fingerprint that is about constants: recipes and values.

    Raises
    ------
    ExportError
        If a parameter cannot be read.
    """
    return _digest(line for line in _graph_lines(graph, {}) if line[0] == "constant")


def _digest(lines: Iterable[tuple[object, ...]]) -> str:
    digest = sha256()
    for line in lines:
        digest.update(f"{line!r}\n".encode())
    return digest.hexdigest()


def _graph_lines(graph: Graph, values: dict[int, str] | None) -> Iterator[tuple[object, ...]]:
    """Yield plain data that describe a graph completely, and those of the graphs in its nodes.

    Texts and size expressions are distinguished, and so are numbers of different types. ``values``
    are the digests of known constants, by the objects' ids; None: leave out what constants hold.
    """
    for name, limits in graph.sizes.items():
        yield "size", name, limits, graph.examples[name], graph.origins.get(name)
    for name in graph.inputs:
        yield "input", *_type(graph.tensors[name])
    for state in graph.states:
        first = sha256(state.first.tobytes()).hexdigest()
        yield "state", *_type(graph.tensors[state.name]), first, state.next
    for name, constant in graph.constants.items():
        kind = _type(graph.tensors[name])
        yield "constant", *kind, "" if values is None else _value(constant, values)
    for node in graph.order():
        yield "node", *_node(graph, node)
        for block in node.blocks:
            yield ("block",)
            yield from _graph_lines(block, values)
            yield ("end",)
    yield "outputs", *graph.outputs


def _node(graph: Graph, node: Node) -> tuple[object, ...]:
    outputs = [_type(graph.tensors[name]) for name in node.outputs]
    return *node.operation, tuple(node.inputs), tuple(outputs)


def _type(spec: TensorSpec) -> tuple[object, ...]:
    return spec.name, spec.dtype, tuple(spec.shape), spec.format


def _value(constant: Constant, values: dict[int, str]) -> str:
    """Return a digest that is equal for constants made alike from equal leaves."""
    for step in steps(constant):
        if id(step) not in values:
            values[id(step)] = sha256(repr(_made(step, values)).encode()).hexdigest()
    return values[id(constant)]


def _made(step: Constant, values: dict[int, str]) -> tuple[object, ...]:
    """Return plain data that describe how one step of a constant is computed from earlier ones."""
    kind = step.dtype, tuple(step.shape), step.type.format
    if isinstance(step, Derived):
        attrs = sorted(REGISTRY[step.op].complete(step.attrs).items())
        inputs = [None if x is None else values[id(x)] for x in step.inputs]
        return "derived", kind, step.op, attrs, inputs, step.index
    if isinstance(step, Parameter):
        flags = step.kind, step.is_replaceable, step.is_complex
        return "parameter", kind, step.names, *flags, step.digest.hex()
    return "literal", kind, step.digest.hex()
