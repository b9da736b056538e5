"""Checks of graphs for the tests of passes: random inputs, values, structure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.graph import Graph, evaluate
from taper_runtime.machine import limits
from taper_runtime.machine.limits import TYPICAL, Memory

if TYPE_CHECKING:
    from collections.abc import Callable


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """One array per input; integers are indices into anything of four elements or more."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        spec = graph.tensors[name]
        if spec.dtype == "bool":
            array = rng.random(spec.shape) < 0.5
        elif "int" in spec.dtype:
            array = rng.integers(0, 4, spec.shape)
        else:
            array = rng.standard_normal(spec.shape)
        arrays[name] = np.asarray(array).astype(spec.dtype)
    return arrays


def assert_same_values(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-5
) -> None:
    """Same names, and values that differ by no more than ``tolerance`` of the largest."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        finite = want[np.isfinite(want)]
        scale = max(1.0, float(np.abs(finite).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def check_fires(pass_: Callable[[Graph], bool], graph: Graph, seed: int = 0) -> Graph:
    """Run a pass that has to change ``graph``, and keep it valid and its values equal."""
    graph.verify()
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    assert pass_(graph), "the pass did not fire"
    graph.verify()
    assert_same_values(evaluate(graph, inputs), expected)
    return graph


def check_keeps(pass_: Callable[[Graph], bool], graph: Graph) -> Graph:
    """Run a pass that has to leave ``graph`` alone."""
    graph.verify()
    text = str(graph)
    assert not pass_(graph), "the pass fired"
    assert str(graph) == text
    return graph


def shrink_cache(monkeypatch: Any, nbytes: int) -> None:
    """Make passes cut tensors of some kilobytes: other caches are slow, and nodes cost nothing."""
    sizes = {"L2": nbytes, "L3": 1 << 25}
    slow = [Memory(name, size, 0.1, 0.1) for name, size in sizes.items()]
    memory = (*slow, TYPICAL.memory[-1])
    monkeypatch.setattr(limits, "TYPICAL", TYPICAL._replace(memory=memory, node_ns=0.0))


def op_counts(graph: Graph) -> dict[str, int]:
    return dict(Counter(node.op for node in graph.nodes.values()))


def only(graph: Graph, op: str) -> Any:
    """The one node of this op."""
    (node,) = (node for node in graph.nodes.values() if node.op == op)
    return node


class Builder:
    """A graph under construction: each method adds a node and returns its output."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        return self.graph.add_input(name, dtype, shape)

    def constant(self, array: np.ndarray | float, name: str = "c") -> str:
        if isinstance(array, float):
            array = np.float32(array)
        return self.graph.add_constant(name, np.asarray(array))

    def weight(self, *shape: int, seed: int = 1, name: str = "w") -> str:
        scale = np.float32(max(shape[0], 1) ** -0.5)  # products stay of the size of their inputs
        return self.constant(floats(*shape, seed=seed) * scale, name)

    def op(self, op: str, *operands: str | float, **attrs: Any) -> str:
        """Add a node; a number among ``operands`` becomes the scalar."""
        inputs: list[str] = []
        for index, operand in enumerate(operands):
            if isinstance(operand, str):
                inputs.append(operand)
            else:
                attrs |= {"scalar": operand, "scalar_index": index}
        return self.graph.add_node(op, inputs, attrs)

    def block(self) -> Builder:
        """A builder for a block of a node of this graph."""
        inner = type(self)()
        inner.graph = self.graph.new_block()
        return inner

    def flow(self, op: str, *inputs: str, blocks: list[Graph], **attrs: int) -> tuple[str, ...]:
        """Add a node of control flow."""
        return self.graph.add_multi_output(op, inputs, attrs, blocks=blocks)

    def done(self, *outputs: str) -> Graph:
        self.graph.set_outputs(outputs)
        return self.graph

    def transpose(self, x: str, axis0: int, axis1: int) -> str:
        return self.op("TRANSPOSE", x, axis0=axis0, axis1=axis1)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("RESHAPE", x, shape=shape)

    def softmax_by_hand(self, x: str, axis: int) -> str:
        peak = self.op("AMAX", x, axes=(axis,), keepdim=True)
        exp = self.op("EXP", self.op("SUB", x, peak))
        return self.op("DIV", exp, self.op("SUM", exp, axes=(axis,), keepdim=True))
