"""Constants: recipes, when they are evaluated, what is kept, what may be looked at."""

import tracemalloc

import numpy as np
import pytest

from graph_checks import Builder, check_fires, floats, only
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import (
    Constant,
    Derived,
    Parameter,
    derived,
    filled,
    literal,
    steps,
)
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.stages import PIPELINE, run_pipeline
from taper_frontend.compiler.stages.canonical.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from taper_frontend.compiler.stages.canonical.fold_constants import fold_constants
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs
from taper_frontend.compiler.stages.weights.fold_scales import fold_scales
from taper_frontend.errors import ExportError
from taper_runtime.base.errors import OpError
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.recipes import recipe_text

#: Of a convolution of one tap.
WINDOW = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}


class Source:
    """A parameter that counts how often it is read."""

    def __init__(self, array: np.ndarray, name: str = "w") -> None:
        self.reads = 0
        self.array = array
        type_ = TensorType(array.dtype.name, array.shape)
        self.parameter = Parameter(type_, (name,), self._read)

    def _read(self) -> np.ndarray:
        self.reads += 1
        return self.array


def test_nothing_is_read_before_the_value_is_asked_for():
    source = Source(floats(3, 4))
    doubled = derived("MUL", [source.parameter], {"scalar": 2.0, "scalar_index": 1})
    turned = derived("TRANSPOSE", [doubled], {"axis0": 0, "axis1": 1})
    assert turned.type == TensorType("float32", (4, 3))
    assert source.reads == 0
    np.testing.assert_array_equal(turned.value(), 2 * source.array.T)
    assert turned.value().flags.c_contiguous


def test_a_recipe_of_another_type_is_refused():
    with pytest.raises(OpError, match="ADD"):
        derived("ADD", [literal(floats(2)), literal(floats(3))])


def test_a_shared_step_is_computed_once():
    """Each sum doubles the paths to the first, not the work."""
    constant: Constant = literal(np.ones(4, np.float32))
    for _ in range(60):
        constant = derived("ADD", [constant, constant])
    assert len(list(steps(constant))) == 61
    np.testing.assert_array_equal(constant.value(), np.full(4, 2.0**60, np.float32))
    assert len(constant.identity) == 32


def test_a_step_is_dropped_when_nothing_more_needs_it():
    source = Source(floats(1 << 18))  # 1 MiB: not kept
    chain: Constant = source.parameter
    for _ in range(20):
        chain = derived("NEG", [chain])
    tracemalloc.start()
    value = chain.value()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(value, source.array)
    assert peak < 3 * value.nbytes
    assert chain.value() is not value


def test_small_values_are_computed_once():
    source = Source(floats(4))
    constant = derived("NEG", [source.parameter])
    assert constant.value() is constant.value()
    assert source.reads == 1


def test_what_cannot_be_computed_is_named_with_its_line():
    singular = derived("INVERSE", [literal(np.zeros((2, 2), np.float32))], source="model.py:3")
    with pytest.raises(ExportError, match=r"INVERSE.* at model\.py:3"):
        singular.value()


def test_large_parameters_are_not_looked_at():
    graph = Graph()
    small, large = Source(np.zeros(4, np.float32)), Source(np.zeros((1100, 1000), np.float32))
    assert graph.value(graph.add_constant("small", small.parameter)) is small.array
    name = graph.add_constant("large", large.parameter)
    assert graph.value(name) is None
    turned = derived("TRANSPOSE", [large.parameter], {"axis0": 0, "axis1": 1})
    assert graph.value(graph.add_constant("turned", turned)) is None
    assert graph.value(graph.add_constant("literal", filled(0, (1100, 1000)))) is not None
    assert graph.value(graph.add_input("x", "float32", (4,))) is None
    assert large.reads == 0


def test_folding_computes_nothing():
    b = Builder()
    source = Source(floats(4))
    w = b.graph.add_constant("w", source.parameter)
    x = b.input("x", 4)
    graph = b.done(b.op("ADD", x, b.op("NEG", b.op("EXP", w))))
    assert fold_constants(graph)
    assert source.reads == 0
    recipe = graph.constants[only(graph, "ADD").inputs[1]]
    ops = [step.op for step in steps(recipe) if isinstance(step, Derived)]
    assert ops == ["EXP", "NEG"]


def test_large_constants_are_one_if_they_are_computed_alike():
    source = Source(floats(600, 600))
    recipes = [derived("EXP", [source.parameter]) for _ in range(2)]
    recipes.append(derived("NEG", [source.parameter]))
    b = Builder()
    x = b.input("x", 600, 600)
    names = [b.graph.add_constant(f"c{i}", recipe) for i, recipe in enumerate(recipes)]
    graph = b.done(*(b.op("ADD", x, name) for name in names))
    check_fires(eliminate_common_subexpressions, graph)
    assert list(graph.constants) == ["c0", "c2"]
    assert recipes[0].identity != recipes[2].identity


def test_a_pipeline_does_not_read_large_weights():
    """Scales, merged products: all that is made of weights waits for the plan."""
    b = Builder()
    x = b.input("x", 2, 3, 2000)
    sources = [Source(floats(800, 2000), f"w{i}") for i in range(3)]
    weights = [b.graph.add_constant(f"w{i}", s.parameter) for i, s in enumerate(sources)]
    q, k, v = (b.op("MATMUL", x, b.transpose(weight, 0, 1)) for weight in weights)
    scaled = b.op("MUL", q, b.constant(floats(800)))
    heads = [b.reshape(y, 2, 1, 3, 800) for y in (scaled, k, v)]
    graph = b.done(b.op("ATTENTION", *heads, scale=1.0))
    run_pipeline(graph, [*PIPELINE, materialize_outputs], verify=True)
    assert [source.reads for source in sources] == [0, 0, 0]
    plan = make_plan(graph)
    assert [source.reads for source in sources] == [1, 1, 1]
    assert sum(node.op == "MATMUL" for node in plan.nodes) <= 2


def test_a_plan_tells_what_became_of_each_parameter():
    b = Builder()
    x = b.input("x", 2, 5, 5, 3)
    kernel, gain = Source(floats(1, 1, 3, 8), "conv.weight"), Source(floats(8), "bn.weight")
    w = b.graph.add_constant("conv.weight", kernel.parameter)
    conv = b.op("CONV", x, w, **WINDOW)
    scaled = b.op("MUL", conv, b.graph.add_constant("bn.weight", gain.parameter))
    graph = b.done(b.op("ADD", scaled, b.constant(floats(8), "shift")))
    assert fold_scales(graph)
    plan = make_plan(graph)
    assert plan.made_from("conv.weight") == plan.made_from("bn.weight") == ("conv.weight.scaled",)
    assert list(plan.recipes) == ["conv.weight.scaled"]  # nothing to tell of a literal
    assert recipe_text(plan.recipes["conv.weight.scaled"]) == "MUL(conv.weight, bn.weight)"


def test_parameters_of_equal_value_are_one_constant_with_both_names():
    b = Builder()
    x = b.input("x", 4)
    names = [
        b.graph.add_constant(name, Source(np.zeros(4, np.float32), name).parameter)
        for name in ("a.bias", "b.bias")
    ]
    graph = b.done(*(b.op(op, x, name) for op, name in zip(("ADD", "SUB"), names, strict=True)))
    assert eliminate_common_subexpressions(graph)
    plan = make_plan(graph)
    assert plan.made_from("a.bias") == plan.made_from("b.bias") == ("a.bias",)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("TRANSPOSE", {"axis0": 0, "axis1": 2}),
        ("PERMUTE", {"axes": (1, 2, 0)}),
        ("RESHAPE", {"shape": (60, 2)}),
        ("SLICE", {"axis": 1, "start": 1, "stop": 3}),
        ("SLICE", {"axis": 2, "start": 2, "stop": 6, "step": 3}),
        ("EXPAND", {"shape": (2, 4, 5, 6)}),
    ],
)
@pytest.mark.parametrize("moved", [False, True])
def test_views_are_what_their_evaluators_say(op, attrs, moved):
    """On contiguous values, and on those that a view before has moved."""
    source = literal(floats(4, 5, 6))
    if moved:
        source = derived("PERMUTE", [literal(floats(5, 4, 6))], {"axes": (1, 0, 2)})
    want = REGISTRY[op].evaluate([source.value()], REGISTRY[op].complete(attrs))
    got = derived(op, [source], attrs)
    np.testing.assert_array_equal(got.value(), want)
    assert got.value().flags.c_contiguous
    # and as a step on the way to another
    np.testing.assert_array_equal(derived("NEG", [got]).value(), -want)


def test_a_large_weight_is_copied_once():
    constant: Constant = Source(floats(700, 1000)).parameter
    for shape in ((7, 100, 1000), (700000,), (700, 1000)):
        constant = derived("RESHAPE", [constant], {"shape": shape})
    constant = derived("TRANSPOSE", [constant], {"axis0": 0, "axis1": 1})
    tracemalloc.start()
    value = constant.value()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value.shape == (1000, 700)
    assert peak < 1.2 * value.nbytes


def test_a_large_weight_is_packed_in_one_copy():
    turned = derived("TRANSPOSE", [Source(floats(704, 1000)).parameter], {"axis0": 0, "axis1": 1})
    packed = derived("PACK", [turned], {"format": "panels.1"})
    tracemalloc.start()
    stored = packed.value()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stored.shape == (44, 1000, 16)
    assert peak < 1.2 * stored.nbytes


def test_a_plan_cannot_be_changed():
    """Neither its weights, nor what it says of them."""
    b = Builder()
    graph = b.done(b.op("ADD", b.input("x", 4), b.constant(floats(4))))
    plan = make_plan(graph)
    for mapping in (plan.tensors, plan.placements, plan.constants, plan.metadata):
        with pytest.raises(TypeError, match="a plan cannot be changed"):
            mapping["x"] = None
    for array in plan.constants.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
