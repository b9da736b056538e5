"""Run plans with the executor "checked", which names the kernel whose result is wrong."""

import numpy as np
import pytest

import taper_runtime
from control_plans import N, cumulative
from graph_checks import Builder, floats
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan

X = floats(50, 40, seed=3)


@pytest.fixture
def register():
    """Register a kernel "mine" that does not outlive the test, in place of the one before."""

    def register(op, function):
        taper_runtime.register_kernel(op, function, name="mine", replace=True)

    yield register
    taper_runtime.unregister_kernel("mine")


def checked(plan, executor="checked"):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    return taper_runtime.InferenceSession(plan, options)


def plan_of(op, **attrs):
    """``op(x @ w)``, written to y."""
    b = Builder()
    graph = b.done(b.op(op, b.op("MATMUL", b.input("x", *X.shape), b.weight(40, 60)), **attrs))
    compile_graph(graph, output_names=["y"])
    return make_plan(graph)


def softmax(inputs, outputs, attrs):
    (x,), (y,) = inputs, outputs
    e = np.exp(x - x.max(-1, keepdims=True))
    y[...] = e / e.sum(-1, keepdims=True)


def largest(inputs, outputs, attrs):
    outputs[0][...] = inputs[0].argmax(-1)


def changed(function, value, count=1):
    """Compute as another function, then change the first elements."""

    def compute(inputs, outputs, attrs):
        function(inputs, outputs, attrs)
        outputs[0].reshape(-1)[:count] = value

    return compute


def test_right_kernels_give_the_bits_of_the_interpreter(register):
    plan = plan_of("SOFTMAX", axis=1)
    register("SOFTMAX", softmax)
    want = checked(plan, "interpreted").run(None, {"x": X})[0]
    session = checked(plan)
    assert session.kernel_kinds()["user"]
    assert np.array_equal(session.run(None, {"x": X})[0], want)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_a_wrong_element_ends_the_run(register, value):
    plan = plan_of("SOFTMAX", axis=1)
    register("SOFTMAX", changed(softmax, value))
    told = r"\(SOFTMAX\): .*, computed by mine, differs from the op's definition: expected"
    with pytest.raises(taper_runtime.KernelError, match=told):
        checked(plan).run(None, {"x": X})


def test_one_integer_of_floats_may_round_otherwise_and_more_may_not(register):
    plan = plan_of("ARGMAX", axis=1)
    register("ARGMAX", changed(largest, 59, count=1))
    checked(plan).run(None, {"x": X})
    register("ARGMAX", changed(largest, 59, count=40))
    with pytest.raises(taper_runtime.KernelError, match=r"got \d\d different ones of 50"):
        checked(plan).run(None, {"x": X})


def test_nodes_in_blocks_are_compared(register):
    plan = cumulative()
    feed = {
        "h0": np.zeros(N, np.float32),
        "t0": np.zeros(N // 4, np.float32),
        "xs": floats(2, N, seed=5),
    }
    want = checked(plan, "interpreted").run(None, feed)
    for got, wanted in zip(checked(plan).run(None, feed), want, strict=True):
        assert np.array_equal(got, wanted)

    def cosine(inputs, outputs, attrs):
        np.cos(inputs[0], out=outputs[0])

    register("SIN", cosine)
    with pytest.raises(taper_runtime.KernelError, match=r"a \(SIN\): a, computed by mine"):
        checked(plan).run(None, feed)
