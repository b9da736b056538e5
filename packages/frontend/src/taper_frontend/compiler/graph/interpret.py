"""Run a graph in numpy with the evaluators of its ops, which defines its meaning."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.ops.evaluate import check_type, evaluate_op
from taper_runtime.ops.opdef import BlockFunction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the outputs of ``graph``.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of str to numpy.ndarray
        One array per input and state, of its dtype and shape.

    Returns
    -------
    dict of str to numpy.ndarray
        The outputs, and the states' next values, by name.

    Raises
    ------
    InputError
        If an input is missing, unknown, or of the wrong type.
    InternalError
        If an evaluator's result does not have the type that the op infers.
    """
    if inputs.keys() != set(graph.reads):
        raise InputError(f"expected inputs {graph.reads}, got {sorted(inputs)}")
    values = {name: constant.value() for name, constant in graph.constants.items()}
    for name in graph.reads:
        check_type(f"input {name!r}", inputs[name], graph.tensors[name].type, InputError)
        values[name] = inputs[name]
    for node in graph.order():
        results = evaluate_node(graph, node, [values.get(name) for name in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return {name: values[name] for name in graph.writes}


def evaluate_node(
    graph: Graph, node: Node, arrays: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, ...]:
    """Compute a node from arrays that store its inputs; None for an absent input."""
    types = graph.input_types(node)
    functions = [BlockFunction(b.signature, partial(_run_block, b)) for b in node.blocks]
    return evaluate_op(node.op, arrays, types, node.attrs, functions)


def _run_block(block: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    values = evaluate(block, dict(zip(block.inputs, arrays, strict=True)))
    return [values[name] for name in block.outputs]
