"""Compare the example programs with what numpy computes."""

import numpy as np
import pytest

from simulated import executor, simulator, step
from taper_openinfer import OpenInferError, Random, StepError

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def numbers(seed, *shape, bounds=(-1.0, 1.0)):
    return Random.generate_with_seed(seed, bounds, int(np.prod(shape))).reshape(shape)


def test_minimal():
    a = numbers(1, 1024)
    made = executor("minimal", {"B": 1024}, a=a)
    for seed in range(3):
        x = numbers(seed, 1024, bounds=(-10.0, 10.0))
        step(made, x=x)
        np.testing.assert_allclose(made.fetch("y"), 5 * (x + a), **CLOSE)


def test_kv_cache_decode():
    made = executor("kv_cache_decode", {"D": 16})
    expected = np.zeros((4, 16), np.float32)
    for t in range(4):
        expected[t] = numbers(t, 16)
        step(made, key=expected[t])
        np.testing.assert_array_equal(made.fetch("keys"), expected)
    with pytest.raises(StepError, match=r"cache.write key >> K\[step\]: K: index i: .* limit .* 4"):
        step(made, key=expected[0])
    assert made.fetch("step") == 4
    np.testing.assert_array_equal(made.fetch("K"), expected)


def test_cache_window_slice():
    made = executor("cache_window_slice", {"D": 3})
    rows = np.zeros((6, 3), np.float32)
    for t in range(6):
        rows[t] = t + 1
        step(made, x=rows[t])
        np.testing.assert_array_equal(made.fetch("window"), rows[t : min(t + 3, 6)])


def test_cache_auto_dim():
    made = executor("cache_auto_dim", {"D": 2, "H": 2})
    for t in range(1, 4):
        step(made, shift=1.0)
        shapes = {"l": (2 + 3 * t, 2 + 2 * t), "m": (2, 2 + 5 * t), "n": (2 + 5 * t, 2)}
        for name, shape in shapes.items():
            assert made.fetch(name).shape == made.fetch(name.upper()).shape == shape
    # What is in the corner has been added to in every step, what came last only once.
    assert made.fetch("L")[0, 0] == 3
    assert made.fetch("L")[-1, -1] == 1
    np.testing.assert_array_equal(made.fetch("M")[0], [3] * 7 + [2] * 5 + [1] * 5)


def test_cache_fixed_limit():
    made = executor("cache_fixed_limit", {"D": 2, "H": 2})
    with pytest.raises(StepError, match="M: index r: expected a count of at most 4") as caught:
        made.step()
    assert (caught.value.variable, caught.value.index, caught.value.limit) == ("M", "r", 4)
    assert caught.value.node == "cache.read M[rows,cols] >> m"


def test_cache_table():
    x = numbers(1, 5)
    made = step(executor("cache_table", {"D": 5}), x=x)
    np.testing.assert_array_equal(made.fetch("all"), [x, x, x])
    np.testing.assert_array_equal(made.fetch("first"), [x, x])
    np.testing.assert_array_equal(made.fetch("left"), [x, 0 * x, x])


def test_loop():
    weights = {
        f"attn__{h}__qkv__{layer}": numbers(3 * layer + h, 4, 12)
        for layer in range(2)
        for h in range(3)
    }
    made = executor("loop", {"D": 4, "layers": 2, "heads": 3}, **weights)
    x = numbers(9, 4, 12)
    step(made, x=x)
    expected = x + weights["attn__0__qkv__0"] + sum(weights.values())
    np.testing.assert_allclose(made.fetch("y"), expected, **CLOSE)


def test_residual_stack():
    weights = {f"layers__{layer}__weight": numbers(layer, 32, 32) for layer in range(3)}
    biases = {f"layers__{layer}__bias": numbers(9 + layer, 32) for layer in range(3)}
    made = executor("residual_stack", {"B": 4, "D": 32, "layers": 3}, **weights, **biases)
    x = h = numbers(5, 4, 32)
    step(made, x=x)
    for weight, bias in zip(weights.values(), biases.values(), strict=True):
        h = h + np.maximum(h @ weight + bias, 0)
    np.testing.assert_allclose(made.fetch("y"), h, **CLOSE)


def test_streaming_with_two_blocks():
    w, bias, x = numbers(1, 3, 3), numbers(2, 3), numbers(3, 2, 3)
    made = executor("streaming", {"B": 2, "D": 3}, w=w, bias=bias)
    for _ in range(2):
        step(made, x=x)
        np.testing.assert_allclose(made.fetch("x"), x + bias, **CLOSE)
        np.testing.assert_allclose(made.fetch("h"), np.clip(x @ w, 0, 6), **CLOSE)
        np.testing.assert_allclose(made.fetch("seen"), np.maximum(x, 0), **CLOSE)


@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_stability_guard(bad):
    bias, x = numbers(1, 3), numbers(2, 2, 3)
    if bad is not None:
        x[1, 2] = bad
    made = step(executor("stability_guard", {"B": 2, "D": 3}, bias=bias), x=x)
    expected = np.zeros((2, 3)) if bad is not None else x + bias
    np.testing.assert_array_equal(made.fetch("y"), expected)


def test_moe_routing():
    w = [numbers(expert, 3, 2) for expert in range(2)]
    b = [numbers(8 + expert, 2) for expert in range(2)]
    tensors = {
        f"experts__{e}__{name}": t[e] for e in range(2) for name, t in (("weight", w), ("bias", b))
    }
    made = executor("moe_routing", {"B": 4, "D": 3, "O": 2}, **tensors)
    x = numbers(4, 4, 3)
    for expert, route in ((0, True), (1, False)):
        step(made, x=x, route=route)
        np.testing.assert_allclose(made.fetch("y"), x @ w[expert] + b[expert], **CLOSE)


@pytest.mark.parametrize("name", ["minimal", "kv_cache_decode", "streaming", "residual_stack"])
def test_iterating_gives_what_a_step_gives(name):
    sizes = {"B": 2, "D": 4, "layers": 2}
    weights = {
        f"layers__{layer}__{n}": numbers(layer, *s)
        for layer in range(2)
        for n, s in (("weight", (4, 4)), ("bias", (4,)))
    }
    streaming = {"w": numbers(5, 4, 4), "bias": numbers(6, 4)}
    weights = {"residual_stack": weights, "streaming": streaming}.get(name, {})
    made = simulator(name, sizes, **weights)
    by_step, by_node = made.make_executor(), made.make_executor()
    given = {slot.name: numbers(7, *slot.shape) for slot in made.slots if slot.kind == "dynamic"}
    for _ in range(3):
        step(by_step, **given)
        for variable, value in given.items():
            by_node.insert_dynamic(variable, value)
        for _ in by_node.iterate():
            pass
        for variable in made.program.variables:
            try:
                expected = by_step.fetch(variable)
            except OpenInferError:
                continue
            np.testing.assert_allclose(by_node.fetch(variable), expected, **CLOSE)
