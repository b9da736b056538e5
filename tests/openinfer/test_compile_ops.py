"""OpenInfer's ops in plans beside numpy's evaluators: every op, of every element type of a plan."""

import numpy as np
import pytest

pytest.importorskip("taper_frontend")

import openinfer_reference as reference
from openinfer_samples import ELEMENTWISE, REDUCTIONS, operands, random_values, stored, variants
from simulated import as_the_simulator, model
from taper_openinfer import Graph, ProgramError, TensorSpec
from taper_openinfer.compiler import compile_program
from taper_openinfer.dtypes import taper_name
from taper_openinfer.language.graph import Name, Op
from taper_openinfer.ops import OPS, combinations, evaluate, output_type
from taper_runtime import InferenceSession

#: What no op of a plan computes; the element types are those of the inputs.
REFUSED = {
    ("popcount", dtype): "no op of a plan computes it"
    for dtype in ("i8", "i16", "i32", "i64", "u8")
}

#: Shapes of the operands of a product.
PRODUCTS = [((2, 3, 4), (4, 5)), ((4,), (4,)), ((2, 1, 3, 4), (3, 4, 2)), ((3, 4), (4,))]


def calls(op, carried=False):
    """Yield element types of the inputs, arrays and the settings of calls with them.

    Those of element types that plans have, or ``carried``: those with one that they lack.
    """
    rng = np.random.default_rng(3)
    for dtypes, out, chosen in combinations(op):
        if carried != any(taper_name(dtype) is None for dtype in (*dtypes, out)):
            continue
        if op == "matmul":
            for shapes in PRODUCTS:
                arrays = [random(rng, dtypes[0], shape) for shape in shapes]
                yield dtypes, arrays, [chosen]
        elif op in REDUCTIONS:
            key = "axis" if OPS[op].shape == "axis" else "axes"
            places = [0, -1] if key == "axis" else [(1,), (0, -1), ()]
            more = [{}, {"select_first": False}] if key == "axis" else [{}]
            settings = [
                {key: place, "keepdims": keep, **extra, **chosen}
                for place in places
                for keep in (False, True)
                for extra in more
            ]
            array = random(rng, dtypes[0], (3, 4, 5))
            yield dtypes, [array], settings
            if array.dtype.kind == "f" and op[:3] in ("max", "min", "arg"):
                array = array.copy()
                array[:, 1, 2] = array[0, 0, 0] = array[0, :, 4] = np.nan
                yield dtypes, [array], settings
        else:
            found = variants(op, dtypes[0])
            yield dtypes, operands(rng, dtypes), [{**given, **chosen} for given in found]


def random(rng, dtype, shape):
    values = random_values(rng, dtype, int(np.prod(shape)))
    return stored(values, dtype).reshape(shape)


def run(op, dtypes, arrays, settings):
    """Compile a program of one call for each of the settings, and run it."""
    graph = Graph()
    names = [f"x{i}" for i in range(len(arrays))]
    for name, dtype, array in zip(names, dtypes, arrays, strict=True):
        graph.add_var(name, "dynamic", dtype, array.shape)
    graph.add_block("entry")
    types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
    for i, given in enumerate(settings):
        graph.add_var(f"y{i}", "volatile", *output_type(op, types, given))
        graph.add_node("entry", Op(op, names, given, f"y{i}"))
    session = InferenceSession(compile_program(graph, model()), as_the_simulator())
    return session.run(None, dict(zip(names, arrays, strict=True)))


def is_cast_of_no_use(op, dtypes, given):
    """Whether a call asks for the lowest bits of a float, which a plan refuses."""
    to_integers = op == "cast" and given["to"] not in reference.FLOATS
    return to_integers and dtypes[0] in reference.FLOATS and not given["saturate"]


@pytest.mark.parametrize("op", OPS)
def test_every_type(op):
    for dtypes, arrays, settings in calls(op):
        given = [each for each in settings if not is_cast_of_no_use(op, dtypes, each)]
        if reason := REFUSED.get((op, dtypes[0])):
            with pytest.raises(ProgramError, match=reason):
                run(op, dtypes, arrays, given)
            continue
        for each, got in zip(given, run(op, dtypes, arrays, given), strict=True):
            types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
            out = output_type(op, types, each)
            want = evaluate(op, arrays, dtypes, each, out[0])
            check(got, want, out[0], f"{op} {dtypes} {each}")


def check(got, want, dtype, what):
    assert got.shape == want.shape, what
    if dtype not in reference.FLOATS:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    atol, rtol = reference.TOLERANCES[dtype]
    numbers = [np.float64(reference.to_python(array, dtype)) for array in (got, want)]
    np.testing.assert_allclose(*numbers, rtol=rtol, atol=atol, err_msg=what)


def run_constants(op, dtypes, arrays, settings):
    """Compile a program of calls with constants, and run it: results as float64, or as bools."""
    graph = Graph()
    names = [f"x{i}" for i in range(len(arrays))]
    for name, dtype, array in zip(names, dtypes, arrays, strict=True):
        graph.add_var(name, "constant", dtype, array.shape)
    graph.add_block("entry")
    types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
    for i, given in enumerate(settings):
        dtype, shape = output_type(op, types, given)
        is_direct = dtype in ("bool", "f64")
        graph.add_var(f"y{i}", "volatile", "bool" if dtype == "bool" else "f64", shape)
        graph.add_node("entry", Op(op, names, given, f"y{i}" if is_direct else f"t{i}"))
        if not is_direct:
            graph.add_node("entry", Op("cast", [f"t{i}"], {"to": Name("f64")}, f"y{i}"))
    tensors = {
        name: TensorSpec(array, dtype)
        for name, array, dtype in zip(names, arrays, dtypes, strict=True)
    }
    session = InferenceSession(compile_program(graph, model(**tensors)))
    return session.run(None, {})


def refusal_of_carried(op, dtypes, out, settings):
    """Return why a plan lacks a call of element types that are carried; None where it does not."""
    if op == "popcount":
        return "no op of a plan computes it"
    if out == "f8":
        return "no op of a plan has results of f8"
    if out == "u64" and op != "cast" and op not in NEVER_LARGER:
        return "no op of a plan has results of u64"
    if out == "u64" and dtypes[0] in reference.FLOATS:
        return "converts floats to u64"
    return None


NEVER_LARGER = [
    "min",
    "max",
    "filter",
    "max_axis",
    "min_axis",
    "and",
    "shr",
    "div",
    "floor_div",
    "rem",
]


@pytest.mark.parametrize("op", OPS)
def test_constants_of_types_that_plans_lack(op):
    """u16, u32, u64, f8 and packed integers: unpacked once, computed in wider types, wrapped."""
    for dtypes, arrays, settings in calls(op, carried=True):
        if "bitset" in dtypes:  # no op tells what such a tensor holds
            continue
        if "u64" in dtypes:
            arrays = [
                array % array.dtype.type(1 << 53) if dtype == "u64" else array
                for array, dtype in zip(arrays, dtypes, strict=True)
            ]
        given = [each for each in settings if not is_cast_of_no_use(op, dtypes, each)]
        types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
        outs = [output_type(op, types, each) for each in given]
        if not given:
            continue
        if reason := refusal_of_carried(op, dtypes, outs[0][0], given):
            with pytest.raises(ProgramError, match=reason):
                run_constants(op, dtypes, arrays, given)
            continue
        results = run_constants(op, dtypes, arrays, given)
        for each, out, got in zip(given, outs, results, strict=True):
            want = np.asarray(evaluate(op, arrays, dtypes, each, out[0]))
            if out[0] not in ("bool", "f64"):
                want = np.asarray(evaluate("cast", [want], [out[0]], {"to": "f64"}, "f64"))
            atol, rtol = reference.TOLERANCES.get(out[0], (0, 0))
            np.testing.assert_allclose(got, want, rtol, atol, err_msg=f"{op} {dtypes} {each}")


def test_bits_that_a_cast_drops_are_refused():
    arrays = [np.zeros(3, np.float32)]
    with pytest.raises(
        ProgramError, match="op cast: without saturate, no op of a plan converts floats beyond"
    ):
        run("cast", ("f32",), arrays, [{"to": "i32", "saturate": False}])


def test_ops_of_taper():
    graph = Graph()
    graph.add_var("x", "dynamic", "f32", [3, 4])
    graph.add_block("entry")
    graph.add_var("y", "volatile", "f32", [3, 4])
    graph.add_var("r", "volatile", "f32", [3, 4])
    graph.add_node("entry", Op("taper.SOFTMAX", ["x"], {"axis": 1}, "y"))
    graph.add_node("entry", Op("taper.QR", ["x"], {"mode": "complete", "output": 1}, "r"))
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    session = InferenceSession(compile_program(graph, model()))
    y, r = session.run(None, {"x": x})
    exp = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, exp / exp.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(r, np.linalg.qr(x, "complete")[1], rtol=1e-4, atol=1e-5)


def test_elementwise_ops_are_fused():
    graph = Graph()
    graph.add_var("x", "dynamic", "f32", [64])
    graph.add_var("y", "volatile", "f32", [64])
    graph.add_block("entry")
    graph.add_node("entry", Op("div", ["x", "x"], {"div_by_zero_mask": 1.0}, "y"))
    graph.add_node("entry", Op("clamp", ["y"], {"min": -2.0, "max": 0.5}, "y"))
    plan = compile_program(graph, model())
    assert [node.op for node in plan.nodes] == ["MAP"]
    assert len(ELEMENTWISE) > 30  # the samples are those of all ops
