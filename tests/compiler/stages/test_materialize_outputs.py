"""Every output is made by a node."""

import numpy as np

from graph_checks import Builder, check_keeps, floats, op_counts
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs


def test_inputs_and_constants_are_copied():
    b = Builder()
    x, c = b.input("x", 3), b.constant(floats(3))
    graph = b.done(x, c, b.op("EXP", x))
    assert materialize_outputs(graph)
    graph.verify()
    assert graph.outputs == ["x.output", "c.output", "exp"]
    assert op_counts(graph) == {"COPY": 2, "EXP": 1}
    values = evaluate(graph, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(values["x.output"], np.ones(3))
    np.testing.assert_array_equal(values["c.output"], floats(3))
    check_keeps(materialize_outputs, graph)


def test_each_output_is_a_tensor_of_its_own():
    b = Builder()
    x = b.input("x", 3)
    y = b.op("EXP", x)
    graph = b.done(x, y, x, y)
    assert materialize_outputs(graph)
    graph.verify()
    assert graph.outputs == ["x.output", "exp", "x.output_1", "exp.output"]
    assert op_counts(graph) == {"COPY": 3, "EXP": 1}
    check_keeps(materialize_outputs, graph)


def test_outputs_of_nodes_stay():
    b = Builder()
    y = b.op("EXP", b.input("x", 4))
    check_keeps(materialize_outputs, b.done(y, b.reshape(y, 2, 2)))
