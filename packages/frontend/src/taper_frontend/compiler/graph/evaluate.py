"""Run a graph in numpy, by the evaluators of its ops: what a graph means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError, InternalError
from taper_runtime.formats import decode, encode
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.ops.opdef import TensorType


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
        If an op's evaluator does not give the type the op infers.
    """
    if inputs.keys() != set(graph.reads):
        raise InputError(f"expected inputs {graph.reads}, got {sorted(inputs)}")
    values = {name: constant.value() for name, constant in graph.constants.items()}
    for name in graph.reads:
        _check_type(f"input {name!r}", inputs[name], graph.tensors[name].type, InputError)
        values[name] = inputs[name]
    for node in graph.order():
        types = [graph.tensors[name].type for name in node.inputs]
        arrays = [values[name] for name in node.inputs]
        values[node.output] = evaluate_op(node.op, arrays, types, node.attrs)
    return {name: values[name] for name in graph.writes}


def constant_value(graph: Graph, tensor: str) -> np.ndarray | None:
    """Return the value of ``tensor`` if no input decides it, whether it is folded or not.

    None also where it is computed from a parameter that is not to be looked at.
    """
    if graph.is_constant(tensor):
        return graph.value(tensor)
    node = graph.producer(tensor)
    if node is None or not graph.is_static(node):
        return None
    arrays = []
    for name in node.inputs:
        value = constant_value(graph, name)
        if value is None:
            return None
        arrays.append(value)
    return evaluate_op(node.op, arrays, [graph.tensors[t].type for t in node.inputs], node.attrs)


def evaluate_op(
    op: str, arrays: Sequence[np.ndarray], types: Sequence[TensorType], attrs: Mapping[str, Any]
) -> np.ndarray:
    """Compute one op on arrays that store tensors of the given types.

    The result stores a tensor of the type the op infers.

    Raises
    ------
    InternalError
        If the evaluator gives another type than the op infers.
    """
    definition = REGISTRY[op]
    expected = definition.infer_type(types, attrs)
    values = [decode(array, type_) for array, type_ in zip(arrays, types, strict=True)]
    with np.errstate(all="ignore"):  # inf and nan are values like others
        result = np.asarray(definition.evaluate(values, definition.complete(attrs)))
    _check_type(f"the evaluator of {op}", result, expected, InternalError)
    return encode(result, expected)


def _check_type(what: str, array: np.ndarray, expected: TensorType, error: type[Exception]) -> None:
    storage = DTYPES[expected.dtype].storage
    if array.shape != expected.shape or array.dtype != storage:
        raise error(
            f"{what}: expected {expected.dtype} {list(expected.shape)}, "
            f"got {array.dtype} {list(array.shape)}"
        )
