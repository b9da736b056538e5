"""Ask the example delegate "cuda" without a device: what it takes and refuses, how it fails."""

from functools import cache

import numpy as np
import pytest

import cuda_delegate
import taper_runtime
from cuda_delegate import driver
from cuda_delegate.steps import Epilogue, Product, read_program
from cuda_models import EPILOGUES, chain_graph, delegated, options, product_graph
from graph_checks import Builder, random_inputs
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.partition import Partition, register_backend, unregister_backend


@pytest.fixture(autouse=True)
def backend():
    register_backend("cuda", cuda_delegate.compile_subgraph)
    yield
    unregister_backend("cuda")


@pytest.fixture
def no_library(monkeypatch):
    names = {**driver._LIBRARIES, "driver": ("libno-such-driver.so.1",)}
    monkeypatch.setattr(driver, "_LIBRARIES", names)
    monkeypatch.setattr(driver, "_device", cache(driver.Device))


def program_of(graph):
    types = {name: graph.tensors[name].type for name in [*graph.inputs, *graph.constants]}
    return read_program(graph.order(), types, graph.outputs)


def computed(program, values):
    """What the steps compute, by numpy."""
    made = dict(values)
    for step in program.steps:
        if isinstance(step, Product):
            b = made[step.b].T if step.transpose_b else made[step.b]
            made[step.output] = np.float32(step.alpha) * (made[step.a] @ b)
            continue
        x = made[step.x]
        other = np.float32(step.number)
        if step.other is not None:
            rows, columns = step.steps
            shape = (x.shape[0] if rows else 1, x.shape[1] if columns else 1)
            other = made[step.other].reshape(shape)
        y = x + other
        made[step.output] = np.maximum(y, 0) if step.has_relu else y
    return [made[name] for name in program.outputs]


GRAPHS = {name: lambda name=name: product_graph(4, 3, 5, name) for name in EPILOGUES} | {
    "transposed": lambda: product_graph(4, 3, 5, "row", transpose_b=True, alpha=0.5),
    "chain": chain_graph,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_steps_compute_what_the_nodes_do(name):
    graph = GRAPHS[name]()
    values = random_inputs(graph)
    weights = {name: constant.value() for name, constant in graph.constants.items()}
    wanted = evaluate(graph, values)
    got = computed(program_of(graph), {**values, **weights})
    for array, output in zip(got, graph.outputs, strict=True):
        np.testing.assert_allclose(array, wanted[output], rtol=1e-5, atol=1e-6)


def test_a_sum_and_a_relu_are_one_step_in_the_product_s_memory():
    program = program_of(product_graph(4, 3, 5, "row_relu"))
    product, epilogue = program.steps
    assert epilogue.has_relu
    assert epilogue.output == epilogue.x == product.output
    product, relu, total = program_of(product_graph(4, 3, 5, "both")).steps
    assert relu.output != product.output == relu.x  # the sum reads the product too
    assert total.output == total.x == relu.output


def test_a_chain_is_one_subgraph():
    plan, partition = delegated(chain_graph())
    assert [node.op for node in plan.nodes if plan.is_executed(node)] == ["CALL_DELEGATE"]
    assert not partition.left
    kinds = [type(step) for step in program_of(chain_graph()).steps]
    assert kinds.count(Product) == 5
    assert kinds.count(Epilogue) == 4


def test_what_is_not_served_stays_on_the_cpu():
    b = Builder()
    x = b.input("x", 2, 3, 4)
    batched = b.op("MATMUL", x, b.input("y", 2, 4, 3))  # a matrix for each of the batch
    first = b.op("MATMUL", batched, b.weight(3, 5))
    last = b.op("RELU", b.op("MATMUL", b.op("TANH", first), b.weight(5, 5)))
    plan, partition = delegated(b.done(b.op("ADD", last, b.op("TANH", last))))
    assert not partition.left
    inside = [[n.op for n in node.blocks[0].nodes] for node in plan.nodes if node.blocks]
    assert inside == [["MATMUL"], ["MATMUL", "RELU"]]
    assert "MATMUL" in [node.op for node in plan.nodes]


REFUSED = {
    "TANH": ("expected ops among MATMUL, ADD, RELU, got TANH", lambda b, x: b.op("TANH", x)),
    "column": (
        r"ADD: expected a matrix, a row or a scalar to add, got \[4, 5\] \+ \[4, 1\]",
        lambda b, x: b.op("ADD", x, b.weight(4, 1)),
    ),
    "higher rank": (
        r"got \[4, 5\] \+ \[1, 4, 5\]",
        lambda b, x: b.op("ADD", b.op("RELU", x), b.weight(1, 4, 5)),
    ),
    "int64": (
        "RELU: expected plain float32, got .*int64",
        lambda b, x: b.op("RELU", b.constant(np.arange(3))),
    ),
    "batch": (
        r"MATMUL: expected one matrix on the right, got \[4, 5\] @ \[2, 5, 3\]",
        lambda b, x: b.op("MATMUL", x, b.weight(2, 5, 3)),
    ),
    "vector": (
        r"one matrix on the right, got \[4, 5\] @ \[5\]",
        lambda b, x: b.op("MATMUL", x, b.weight(5)),
    ),
    "sums of bytes": (
        "MATMUL: expected plain float32, got .*int8",
        lambda b, x: b.op(
            "MATMUL", *(b.constant(np.ones((3, 3), np.int8)) for _ in range(2)), accumulate="int32"
        ),
    ),
    "rounded activations": (
        "MATMUL: expected a product alone, got one with activation_group",
        lambda b, x: b.op("MATMUL", x, b.weight(5, 3), activation_group=5),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_node_that_is_refused_has_a_reason(reason):
    words, add = REFUSED[reason]
    b = Builder()
    x = b.op("MATMUL", b.input("x", 4, 3), b.weight(3, 5))
    graph = b.done(add(b, x))
    with pytest.raises(cuda_delegate.steps.UnsupportedError, match=words):
        program_of(graph)
    partition = Partition(lambda graph: [list(graph.nodes)], "cuda")
    partition(graph)
    assert len(partition.left) == 1
    assert "expected" in partition.left[0]


def test_a_subgraph_without_a_product_is_refused():
    b = Builder()
    graph = b.done(b.op("RELU", b.input("x", 3)))
    partition = Partition(lambda graph: [list(graph.nodes)], "cuda")
    assert not partition(graph)
    assert partition.left[0].endswith("expected a product, got RELU")
    assert cuda_delegate.cuda_subgraphs(graph) == []


def test_without_a_library_the_session_says_which(no_library):
    plan, _ = delegated(chain_graph())
    words = (
        "delegate 'cuda': __init__ raised CudaError: expected one of libno-such-driver.so.1, got"
    )
    with pytest.raises(taper_runtime.KernelError, match=words):
        taper_runtime.InferenceSession(plan, options(cuda_delegate.CudaDelegate))


def test_without_a_library_the_graph_takes_its_place(no_library):
    graph = chain_graph()
    feed = random_inputs(graph)
    wanted = evaluate(graph, feed)
    plan, _ = delegated(graph)
    session = taper_runtime.InferenceSession(plan, options(cuda_delegate.CudaDelegate, "fallback"))
    for array, name in zip(session.run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
    (use,) = session.stats().delegates
    assert use.reason == "cuda_native_unsupported_fallback"
    assert "libno-such-driver.so.1" in use.error
    assert not use.is_used
    assert cuda_delegate.CudaDelegate.counts() == []


def test_a_blob_of_others_is_refused():
    plan, _ = delegated(product_graph(4, 3, 5))
    (blob,) = (name for name, array in plan.constants.items() if array.dtype == np.uint8)
    other = plan._replace(constants={**plan.constants, blob: plan.constants[blob][::-1].copy()})
    with pytest.raises(taper_runtime.KernelError, match="ValueError: expected the blob"):
        taper_runtime.InferenceSession(other, options(cuda_delegate.CudaDelegate))


def test_other_nodes_than_the_export_took_are_refused():
    """A file says what it likes: the delegate reads its nodes as strictly as the export did."""
    plan, _ = delegated(product_graph(4, 3, 5, "relu"))
    (node,) = (node for node in plan.nodes if node.blocks)
    (block,) = node.blocks
    nodes = (*block.nodes[:-1], block.nodes[-1]._replace(op="TANH"))
    other = plan._replace(
        nodes=tuple(
            each._replace(blocks=(block._replace(nodes=nodes),)) if each is node else each
            for each in plan.nodes
        )
    )
    with pytest.raises(taper_runtime.KernelError, match="UnsupportedError: expected ops among"):
        taper_runtime.InferenceSession(other, options(cuda_delegate.CudaDelegate))
