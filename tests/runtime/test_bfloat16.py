"""bfloat16 at the ends of a session: float32 unless its bits or ml_dtypes' dtype are asked for."""

import json
import sys

import ml_dtypes
import numpy as np
import pytest

from cli_page import taper_command
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession, InputError, OrtValue, SessionOptions, round_to_bfloat16
from taper_runtime.plan.recipes import RecipeStep
from taper_runtime.plan.replaceable import WeightSpec

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: Every bfloat16 but the NaNs, whose bits may differ.
EVERY = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
EVERY = EVERY[~np.isnan(EVERY.astype(np.float32))]
LENGTH = len(EVERY)

DTYPES = {"float32": np.dtype("float32"), "bits": np.dtype("uint16"), "ml_dtypes": BFLOAT16}
TYPES = {"float32": "tensor(float)", "bits": "tensor(uint16)", "ml_dtypes": "tensor(bfloat16)"}


def spelled(x, way):
    """An array of ml_dtypes in one of the three ways."""
    return {"float32": x.astype(np.float32), "bits": x.view(np.uint16), "ml_dtypes": x}[way]


def kept_plan(length=LENGTH):
    """``y`` is what ``x`` was in the run before, ``z`` its weight; the state begins with ones."""
    graph = Graph()
    x = graph.add_input("x", "bfloat16", (length,))
    ones = np.full(length, 0x3F80, np.uint16)
    last = graph.add_state("last", ones, "bfloat16")
    weight = graph.add_constant("w", np.full(length, 0x4000, np.uint16), "bfloat16")
    graph.set_next("last", graph.add_node("COPY", [x]))
    graph.set_outputs([graph.add_node("COPY", [last]), graph.add_node("COPY", [weight])])
    compile_graph(graph, [])
    plan = make_plan(graph)
    name = next(iter(plan.constants.keys() - plan.states.keys()))
    return plan._replace(
        samples={"x": EVERY[:length].view(np.uint16)},
        input_tree=["tuple", [["tuple", [["tensor", "x"]]], ["dict", []]]],
        output_tree=["tuple", [["tensor", name] for name in plan.outputs]],
        weights={"w": WeightSpec("w", "parameter", "bfloat16", (length,))},
        derived={name: (RecipeStep("WEIGHT", (), {"name": "w"}),)},
    )


def opened(way, plan=None):
    options = SessionOptions()
    options.bfloat16 = way
    return InferenceSession(kept_plan() if plan is None else plan, options)


def assert_same(got, want, way):
    assert got.dtype == DTYPES[way]
    np.testing.assert_array_equal(got, spelled(want, way))
    if way == "float32":
        np.testing.assert_array_equal(np.signbit(got), np.signbit(spelled(want, way)))


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("way", DTYPES)
def test_each_way_in_and_out(way, given):
    session = opened(way)
    assert [item.type for item in session.get_inputs()] == [TYPES[way]]
    assert [item.type for item in session.get_outputs()] == [TYPES[way]] * 2
    x = spelled(EVERY, given)
    y, z = session.run(None, {"x": x})
    assert_same(y, np.ones_like(EVERY), way)
    assert_same(z, np.full_like(EVERY, 2), way)
    assert_same(session.run(None, {"x": x[::-1]})[0], EVERY, way)
    assert_same(session(x)[0], EVERY[::-1], way)
    assert_same(session.get_state("last"), EVERY, way)
    session.set_state("last", spelled(EVERY[::-1], given))
    assert_same(session.get_state("last"), EVERY[::-1], way)
    session.weights.update("w", x)
    assert_same(session.weights.get("w"), EVERY, way)
    assert_same(session.run(None, {"x": x})[1], EVERY, way)
    (sample,), _ = session.load_sample_inputs()
    assert_same(sample, EVERY, way)


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("way", DTYPES)
def test_outputs_are_written_into_arrays_of_each_way(way, given):
    session = opened(way)
    session.set_state("last", EVERY)
    out = np.empty(EVERY.shape, DTYPES[given])
    name = session.get_outputs()[0].name
    (y,) = session.run([name], {"x": EVERY}, out={name: out})
    assert y is out
    assert_same(out, EVERY, given)
    binding = session.io_binding()
    binding.bind_cpu_input("x", EVERY[::-1].copy())
    binding.bind_ortvalue_output(name, OrtValue(out))
    binding.bind_output(session.get_outputs()[1].name)
    session.run_with_iobinding(binding)
    session.run_with_iobinding(binding)
    first, second = binding.get_outputs()
    assert_same(first.numpy(), EVERY[::-1], given)
    assert first.data_type() == TYPES[given]
    assert_same(second.numpy(), np.full_like(EVERY, 2), way)
    with pytest.raises(InputError, match=rf"{name}.*: expected shape \({LENGTH},\), got \(3,\)"):
        session.run(None, {"x": EVERY}, out={name: np.empty(3, DTYPES[given])})
    out.flags.writeable = False
    with pytest.raises(InputError, match="writable"):
        session.run(None, {"x": EVERY}, out={name: out})


def test_argmax_of_an_output_is_that_of_its_values():
    scores = np.array([-4, 3, -1, 2], np.float32)
    session = opened("float32", kept_plan(4))
    session.set_state("last", scores)
    assert session.run(None, {"x": scores})[0].argmax() == 1
    assert spelled(scores.astype(BFLOAT16), "bits").argmax() == 0  # what bits would say


def test_values_that_bfloat16_has_not_are_refused():
    session = opened("float32", kept_plan(4))
    x = np.array([1, 0.1, 2, 0.3], np.float32)
    refused = r"expected values that bfloat16 can represent, got 0\.1 at \[1\], near 0\.10009"
    with pytest.raises(InputError, match=f"input 'x': {refused}.*; .*round_to_bfloat16"):
        session.run(None, {"x": x})
    with pytest.raises(InputError, match=f"state 'last': {refused}"):
        session.set_state("last", x)
    with pytest.raises(InputError, match=f"weight 'w': {refused}"):
        session.weights.update("w", x)
    rounded = round_to_bfloat16(x)
    session.set_state("last", rounded)
    np.testing.assert_array_equal(session.get_state("last"), x.astype(BFLOAT16).astype("f4"))
    with pytest.raises(
        InputError, match="expected dtype float32, bfloat16 of ml_dtypes, or uint16"
    ):
        session.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(InputError, match="expected a numpy array, got list"):
        session.run(None, {"x": [1.0]})


def test_not_numbers_stay_so():
    payload = np.array([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32)
    session = opened("float32", kept_plan(4))
    session.run(None, {"x": payload.view(np.float32)})
    last = session.get_state("last")
    np.testing.assert_array_equal(last, [np.nan, np.nan, np.inf, -np.inf])


def test_rounding_is_to_nearest_even():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, np.uint32)
    ties = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    for values in (bits.view(np.float32), ties.view(np.float32)):
        got = round_to_bfloat16(values)
        values = np.where(np.isnan(values), np.float32(np.nan), values)
        np.testing.assert_array_equal(got, values.astype(BFLOAT16).astype(np.float32))
    assert round_to_bfloat16(np.array(0.1, np.float32)).shape == ()
    with pytest.raises(InputError, match="expected an array of float32, got float64"):
        round_to_bfloat16(np.zeros(2))


def test_the_package_is_asked_for_when_the_session_is_opened(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(InputError, match="expected the package ml_dtypes"):
        opened("ml_dtypes")
    assert opened("float32").run(None, {"x": EVERY})[0].dtype == np.float32
    with pytest.raises(
        InputError, match="bfloat16: expected one of 'float32', 'bits', 'ml_dtypes'"
    ):
        opened("float")


def test_the_command_writes_and_reads_values(tmp_path, capsys):
    taper = taper_command(capsys)
    path, npz = tmp_path / "m.taper", tmp_path / "y.npz"
    kept_plan(4).save(path)
    x = np.array([1.5, -2, 0, 3], np.float32)
    np.save(tmp_path / "x.npy", x)
    code, out, _ = taper("run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", npz)
    assert code == 0
    assert "bfloat16[4]" in out
    with np.load(npz) as arrays:
        assert {array.dtype.name for array in arrays.values()} == {"float32"}
        np.savez(tmp_path / "again.npz", x=x)
    assert taper("run", path, "--args", tmp_path / "again.npz")[0] == 0
    np.save(tmp_path / "x.npy", x + np.float32(0.001))
    code, _, error = taper("run", path, "--input", f"x={tmp_path / 'x.npy'}")
    assert code == 1
    assert "--input x: expected values that bfloat16 can represent, got 1.501 at [0]" in error
    assert json.loads(taper("inspect", path, "--json")[1])["inputs"][0]["dtype"] == "bfloat16"
