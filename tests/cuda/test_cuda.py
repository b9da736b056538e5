"""Compute on a GPU by the example delegate "cuda"; ``nox -s cuda`` runs these."""

import ctypes
import gc
import threading

import numpy as np
import pytest

import cuda_delegate
import taper_runtime
from cuda_delegate import CudaDelegate, CudaError, driver
from cuda_delegate.driver import CapturedGraph, Memory, open_device
from cuda_models import EPILOGUES, chain_graph, delegated, options, product_graph, replaceable
from graph_checks import Builder, floats, random_inputs
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.partition import register_backend, unregister_backend
from taper_runtime.base.sizes import variable
from weight_swaps import seen_during_swaps


@pytest.fixture(scope="module", autouse=True)
def backend():
    register_backend("cuda", cuda_delegate.compile_subgraph, CudaDelegate)
    print(open_device().name)  # without a device nothing here passes
    yield
    unregister_backend("cuda")


class Plain(CudaDelegate):
    """Captures nothing."""

    replays = False


def opened(graph, delegate=CudaDelegate, policy="error"):
    """A session of a new class, so that its counts are those of the session alone."""
    plan, partition = delegated(graph)
    assert not partition.left
    return session_of(plan, delegate, policy)


def session_of(plan, delegate=CudaDelegate, policy="error"):
    kind = type("Counted", (delegate,), {})
    session = taper_runtime.InferenceSession(plan, options(kind, policy))
    session.counts = lambda: only(kind.counts())
    return session


def only(counts):
    (one,) = counts
    return one


def on_cpu(graph, feed):
    plan, _ = delegated(graph)
    return taper_runtime.InferenceSession(plan, options(None)).run(None, feed)


def assert_close(got, wanted):
    """Within 1e-5 of the largest number; TF32 would be at some 1e-3."""
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


SHAPES = [(1, 1, 1), (1, 7, 5), (3, 8, 4), (33, 65, 17), (257, 129, 511)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(epilogue, shape):
    feed = random_inputs(product_graph(*shape, epilogue))
    for delegate in (CudaDelegate, Plain):
        session = opened(product_graph(*shape, epilogue), delegate)
        for _ in range(3):
            got = session.run(None, feed)
            assert_close(got, on_cpu(product_graph(*shape, epilogue), feed))
    counts = session.counts()
    assert (counts.captures, counts.replays, counts.plain_runs) == (0, 0, 3)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 4096, 4096), (2048, 1024, 1536)], ids=str)
def test_large_products(shape, transposed):
    def make():
        return product_graph(*shape, "row_relu", transpose_b=transposed, alpha=0.5)

    feed = random_inputs(make())
    got = opened(make()).run(None, feed)
    assert_close(got, on_cpu(make(), feed))
    exact = evaluate_in_float64(make(), feed)
    assert_close(got, [exact])


def evaluate_in_float64(graph, feed):
    """relu(alpha * x @ w + bias)"""
    weights = [constant.value().astype(np.float64) for constant in graph.constants.values()]
    product, *_ = graph.order()
    w = weights[0].T if product.attrs["transpose_b"] else weights[0]
    return np.maximum(product.attrs["alpha"] * (feed["x"].astype(np.float64) @ w) + weights[1], 0)


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_chains(rows):
    feed = random_inputs(chain_graph(rows))
    session = opened(chain_graph(rows))
    assert session.kernel_kinds()["native"] == ()
    for seed in range(4):
        feed = random_inputs(chain_graph(rows), seed)
        assert_close(session.run(None, feed), on_cpu(chain_graph(rows), feed))
    assert session.counts()[1:] == (1, 3, 0, 6)  # three weights, three biases


def test_rows_of_a_batch_are_rows():
    b = Builder()
    x = b.input("x", 2, 3, 4)
    graph = b.done(b.op("ADD", b.op("MATMUL", x, b.weight(4, 5)), b.input("z", 2, 3, 5)))
    feed = random_inputs(graph)
    wanted = evaluate(graph, feed)
    assert_close(opened(graph).run(None, feed), wanted.values())


def test_special_values():
    graph = product_graph(2, 3, 4, "relu")
    x = np.array([[np.nan, 1, 1], [np.inf, 1, -1]], np.float32)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_allclose(opened(graph).run(None, {"x": x})[0], wanted, rtol=1e-5)


def test_a_thousand_runs_are_one_capture_and_999_replays():
    session = opened(chain_graph())
    feeds = [random_inputs(chain_graph(), seed) for seed in range(10)]
    wanted = [on_cpu(chain_graph(), feed) for feed in feeds]
    for number in range(1000):
        feed = {name: array.copy() for name, array in feeds[number % 10].items()}  # new addresses
        assert_close(session.run(None, feed), wanted[number % 10])
    assert session.counts()[1:] == (1, 999, 0, 6)


def weighted(delegate=CudaDelegate):
    plan, _ = delegated(product_graph(8, 6, 7, "row"))
    return session_of(replaceable(plan, "w"), delegate)


@pytest.mark.parametrize("delegate", [CudaDelegate, Plain])
def test_new_weights_are_noticed(delegate):
    session = weighted(delegate)
    x = floats(8, 6)
    bias = session.plan.constants["w_1"]
    for seed in range(5):
        w = floats(6, 7, seed=seed)
        session.weights.update("w", w)  # at another address: captured anew
        for _ in range(3):
            assert_close(session.run(None, {"x": x}), [x @ w + bias])
    counts = session.counts()
    if delegate is CudaDelegate:
        assert counts[1:4] == (5, 10, 0)
    assert counts.weight_copies == 12  # two arrays, when opened and at each update


def test_runs_while_weights_are_swapped_have_one_set():
    session = weighted()
    x = floats(8, 6)
    sets = [{"w": floats(6, 7, seed=seed)} for seed in (1, 2)]
    session.weights.update_many(sets[0])
    expected = set()
    for each in sets:
        session.weights.update_many(each)
        expected.add(session.run(None, {"x": x})[0].tobytes())

    def run():
        return session.run(None, {"x": x})[0].tobytes()

    assert seen_during_swaps(session, sets, run, threads=4, swaps=50) <= expected


def test_threads_share_a_session():
    session, plain = opened(chain_graph()), opened(chain_graph(), Plain)
    feeds = [random_inputs(chain_graph(), seed) for seed in range(6)]
    wanted = [on_cpu(chain_graph(), feed) for feed in feeds]
    errors = []

    def serve(number):
        try:
            for _ in range(50):
                for each in (session, plain):
                    assert_close(each.run(None, feeds[number]), wanted[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert session.counts().captures + session.counts().replays == 300


def test_two_sessions_have_their_own_weights_and_counts():
    one, two = opened(product_graph(4, 3, 5)), opened(product_graph(4, 3, 5, "row"))
    feed = {"x": floats(4, 3)}
    for _ in range(2):
        assert_close(one.run(None, feed), on_cpu(product_graph(4, 3, 5), feed))
        assert_close(two.run(None, feed), on_cpu(product_graph(4, 3, 5, "row"), feed))
    two.run(None, feed)
    assert (one.counts().replays, two.counts().replays) == (1, 2)


def builder_of_rows(least):
    """A builder of a graph in which the number of rows varies."""
    b = Builder()
    b.graph.examples["rows"], b.graph.sizes["rows"] = 4, (least, 64)
    return b, variable("rows", least, 64)


def test_sizes_that_vary_are_captured_once_each():
    b, rows = builder_of_rows(1)
    product = b.op("MATMUL", b.input("x", rows, 3), b.weight(3, 5))
    graph = b.done(b.op("RELU", b.op("ADD", product, b.input("z", rows, 5))))
    w = floats(3, 5, seed=1) * np.float32(3**-0.5)
    session = opened(graph)
    for _ in range(3):
        for count in (4, 1, 64):
            feed = {"x": floats(count, 3), "z": floats(count, 5, seed=2)}
            assert_close(session.run(None, feed), [np.maximum(feed["x"] @ w + feed["z"], 0)])
    assert session.counts()[1:4] == (3, 6, 0)


def free_bytes(device):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with device.entered():
        function = device.driver._library.cuMemGetInfo_v2
        assert function(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_session_frees_its_memory(is_closed):
    device = open_device()
    gc.collect()
    before = free_bytes(device)
    session = opened(product_graph(64, 8192, 8192))  # weights of 256 MiB
    session.run(None, {"x": floats(64, 8192)})
    assert free_bytes(device) < before - (200 << 20)
    if is_closed:
        session.close()
    else:
        del session
        gc.collect()
    assert free_bytes(device) > before - (16 << 20)


def test_errors_name_the_call_and_the_device_goes_on():
    device = open_device()
    words = r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\): "
    with device.entered(), pytest.raises(CudaError, match=words):
        Memory(device, 1 << 45)
    with device.entered():
        memory = Memory(device, 16)
        with pytest.raises(CudaError, match=r"cublasSgemm_v2: CUBLAS_STATUS_INVALID_VALUE \(7\)"):
            device.multiply(memory, memory, memory, (2, -1, 2), alpha=1.0, transpose_b=False)
        # waiting is not allowed in a capture
        with pytest.raises(CudaError, match=r"cuStreamSynchronize: CUDA_ERROR_STREAM_CAPTURE_"):
            CapturedGraph(device, device.synchronize)
    feed = {"x": floats(4, 3)}
    session = opened(product_graph(4, 3, 5))
    for _ in range(2):
        assert_close(session.run(None, feed), on_cpu(product_graph(4, 3, 5), feed))


def test_a_run_that_fails_falls_back(monkeypatch):
    session = opened(product_graph(4, 3, 5), policy="fallback")
    feed = {"x": floats(4, 3)}
    wanted = on_cpu(product_graph(4, 3, 5), feed)
    multiply = driver.Device.multiply

    def broken(device, output, a, b, sizes, **how):
        multiply(device, output, a, b, (sizes[0], -1, sizes[2]), **how)

    monkeypatch.setattr(driver.Device, "multiply", broken)
    assert_close(session.run(None, feed), wanted)
    (use,) = session.stats().delegates
    assert use.reason == "cuda_native_failed_fallback"
    assert use.error.startswith("CudaError: cublasSgemm_v2: CUBLAS_STATUS_INVALID_VALUE")
    monkeypatch.undo()
    assert_close(session.run(None, feed), wanted)
    assert session.counts().captures == 1


def test_a_capture_that_fails_is_an_error(monkeypatch):
    session = opened(product_graph(4, 3, 5))
    launched = []
    copy = driver.Device.copy_to_host

    def waiting(device, address, memory):
        launched.append(address)
        if len(launched) == 2:  # while it is captured
            device.synchronize()
        copy(device, address, memory)

    monkeypatch.setattr(driver.Device, "copy_to_host", waiting)
    feed = {"x": floats(4, 3)}
    with pytest.raises(taper_runtime.KernelError, match="STREAM_CAPTURE"):
        session.run(None, feed)
    assert_close(session.run(None, feed), on_cpu(product_graph(4, 3, 5), feed))


def test_a_size_of_zero_is_refused():
    b, rows = builder_of_rows(0)
    plan, _ = delegated(b.done(b.op("MATMUL", b.input("x", rows, 3), b.weight(3, 5))))
    with pytest.raises(taper_runtime.KernelError, match="expected sizes of at least 1, got"):
        session_of(plan).run(None, {"x": floats(0, 3)})
    session = session_of(plan, policy="fallback")
    assert session.run(None, {"x": floats(0, 3)})[0].shape == (0, 5)
    assert session.stats().delegates[0].reason == "cuda_native_unsupported_fallback"


def test_other_nodes_stay_on_the_cpu():
    b = Builder()
    first = b.op("MATMUL", b.input("x", 4, 3), b.weight(3, 5))
    graph = b.done(b.op("RELU", b.op("MATMUL", b.op("TANH", first), b.weight(5, 2))))
    feed = {"x": floats(4, 3)}
    wanted = evaluate(graph, feed)
    plan, _ = delegated(graph)
    kind = type("Counted", (CudaDelegate,), {})
    session = taper_runtime.InferenceSession(plan, options(kind))
    for _ in range(2):
        assert_close(session.run(None, feed), wanted.values())
    assert [each.replays for each in kind.counts()] == [1, 1]
