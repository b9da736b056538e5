"""Nodes of several outputs, with absent inputs, and with graphs inside."""

from __future__ import annotations

import numpy as np
import pytest

from graph_checks import Builder, assert_same_values, floats, random_inputs
from several_outputs import AFFINE, HALVES, REPEAT, registered
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.graph.constants import literal
from taper_frontend.compiler.planning.order import make_schedule
from taper_frontend.compiler.stages import STAGES, run_pipeline
from taper_frontend.compiler.stages.canonical.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from taper_frontend.compiler.stages.canonical.eliminate_dead_code import eliminate_dead_code
from taper_frontend.compiler.stages.canonical.fold_constants import fold_constants
from taper_frontend.compiler.trace.recorder import TraceRecorder
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.sizes import variable
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.region_check import check_region


@pytest.fixture(autouse=True)
def ops():
    with registered(HALVES, AFFINE, REPEAT):
        yield


def halves():
    """x -> HALVES -> above, below; below -> NEG y; above and y are outputs."""
    g = Graph()
    x = g.add_input("x", "float32", (2, 3))
    above, below = g.add_multi_output("HALVES", [x], name="above")
    y = g.add_node("NEG", [below], name="y")
    g.set_outputs([above, y])
    g.verify()
    return g


def body(scale=0.5):
    """(a, b) -> (b, a * scale + 1)."""
    g = Graph()
    a, b = g.add_input("a", "float32", (2, 3)), g.add_input("b", "float32", (2, 3))
    scaled = g.add_node("MUL", [a, g.add_constant("scale", np.float32(scale))])
    g.set_outputs([b, g.add_node("ADD", [scaled], {"scalar": 1.0, "scalar_index": 1})])
    return g


def repeating(block=None, times=3):
    g = Graph()
    x, y = g.add_input("x", "float32", (2, 3)), g.add_input("y", "float32", (2, 3))
    names = g.add_multi_output("REPEAT", [x, y], {"times": times}, blocks=[block or body()])
    g.set_outputs(names)
    g.verify()
    return g


class TestSeveralOutputs:
    def test_each_output_is_a_tensor_that_the_node_makes(self):
        g = halves()
        (node, _) = g.order()
        assert node.outputs == ["above", "above.1"]
        assert node.output == "above"
        assert g.producers.get("above") is g.producers.get("above.1") is node
        assert list(g.nodes) == ["above", "y"]
        assert g.output_types(node) == [TensorType("float32", (2, 3))] * 2
        assert [reader.output for reader in g.consumers("above.1")] == ["y"]

    def test_value_is_that_of_the_evaluator(self):
        x = floats(2, 3)
        result = evaluate(halves(), {"x": x})
        np.testing.assert_array_equal(result["above"], np.maximum(x, 0))
        np.testing.assert_array_equal(result["y"], -np.minimum(x, 0))

    def test_one_output_is_not_expected_of_several(self):
        g = halves()
        with pytest.raises(OpError, match="HALVES: expected one output, got 2"):
            g.add_node("HALVES", ["x"])
        with pytest.raises(OpError, match="expected one output, got 2"):
            HALVES.infer_type([TensorType("float32", (3,))], {})

    def test_node_lives_while_one_output_is_used(self):
        g = halves()
        g.set_outputs(["above"])
        assert eliminate_dead_code(g)
        g.verify()
        assert list(g.nodes) == ["above"]
        assert "above.1" in g.tensors
        assert not eliminate_dead_code(g)
        with pytest.raises(InternalError, match="'above' is used"):
            g.remove_node(g.nodes["above"])

    def test_node_goes_with_all_its_outputs(self):
        g = halves()
        kept = g.add_node("EXP", ["x"])
        g.set_outputs([kept])
        assert eliminate_dead_code(g)
        g.verify()
        assert set(g.tensors) == {"x", kept}

    def test_equal_nodes_become_one(self):
        b = Builder()
        x = b.input("x", 2, 3)
        (a, _), (_, d) = (b.graph.add_multi_output("HALVES", [x]) for _ in range(2))
        graph = b.done(b.op("ADD", a, d))
        before = evaluate(graph, {"x": floats(2, 3)})
        assert eliminate_common_subexpressions(graph)
        graph.verify()
        assert len(graph.nodes) == 2
        assert_same_values(before, evaluate(graph, {"x": floats(2, 3)}))

    @pytest.mark.parametrize(
        "outputs", [("a", "d"), ("c", "b"), ("c", "d"), ("a", "c"), ("c", "c")]
    )
    def test_names_of_outputs_stay(self, outputs):
        """Whichever of two equal nodes makes them."""
        g = Graph()
        x = g.add_input("x", "float32", (2, 3))
        first = g.add_multi_output("HALVES", [x], name="first")
        second = g.add_multi_output("HALVES", [x], name="second")
        g.rename(dict(zip([*first, *second], "abcd", strict=True)))
        g.set_outputs(outputs)
        before = evaluate(g, {"x": floats(2, 3)})
        eliminate_common_subexpressions(g)
        g.verify()
        assert sum(node.op == "HALVES" for node in g.nodes.values()) == 1
        assert_same_values(before, evaluate(g, {"x": floats(2, 3)}))

    def test_different_attrs_are_different_nodes(self):
        b = Builder()
        x = b.input("x", 2, 3)
        pairs = [b.graph.add_multi_output("HALVES", [x], {"bound": v}) for v in (0.0, 1.0)]
        graph = b.done(*(name for pair in pairs for name in pair))
        assert not eliminate_common_subexpressions(graph)

    def test_all_outputs_are_folded(self):
        b = Builder()
        above, below = b.graph.add_multi_output("HALVES", [b.constant(floats(2, 3))])
        y = b.op("MUL", b.input("x", 2, 3), b.op("SUB", above, below))
        graph = b.done(y, above)
        inputs = random_inputs(graph)
        before = evaluate(graph, inputs)
        assert fold_constants(graph)
        graph.verify()
        assert sorted(node.op for node in graph.nodes.values()) == ["COPY", "MUL"]
        assert_same_values(before, evaluate(graph, inputs))
        recipes = {name: c.identity for name, c in graph.constants.items()}
        assert len(set(recipes.values())) == len(recipes)

    def test_order_of_a_reader_of_the_second_output(self):
        g = halves()
        late = g.add_multi_output("HALVES", ["x"], {"bound": 1.0})[1]
        g.rewire_input(g.nodes["y"], 0, late)
        order = [node.output for node in g.order()]
        assert order.index("halves") < order.index("y")
        assert {node.output for node in make_schedule(g).order} == set(order)
        g.verify()

    def test_cycle_through_a_second_output_is_found(self):
        g = halves()
        g.rewire_input(g.nodes["above"], 0, "y")
        with pytest.raises(InternalError, match="cycle"):
            g.order()

    def test_definition_of_another_type_is_refused(self):
        g = halves()
        with pytest.raises(InternalError, match=r"expected a new definition of .*"):
            g.replace_node(g.nodes["above"], "EXP", ["x"])
        with pytest.raises(InternalError, match=r"expected a new definition of .*"):
            g.replace_node(g.nodes["y"], "HALVES", ["x"])
        g.verify()

    def test_wrong_index_is_found(self):
        g = halves()
        g.nodes["above"].outputs[1] = "y"
        with pytest.raises(
            InternalError, match=r"node 'y' is indexed|'y' of node 'above'|one origin"
        ):
            g.verify()

    def test_printed(self):
        text = str(halves())
        assert "above, above.1 = HALVES(x) -> float32[2,3], float32[2,3]" in text

    def test_states_and_copies_are_apart(self):
        g = halves()
        twin = g.copy()
        twin.rename({"above.1": "below"})
        twin.verify()
        g.verify()
        assert "above.1" in g.tensors

    def test_recording_has_a_part_for_each_output(self):
        g = halves()
        recorder = TraceRecorder(g)
        g.replace_node(g.nodes["above"], "HALVES", ["x"], {"bound": 1.0})
        data = recorder.data()
        first, second = (
            data["records"][data["lowered"]["tensors"][name]] for name in ("above", "above.1")
        )
        assert (first["op"], first["inputs"], "part" in first) == ("HALVES", ["x"], False)
        assert (second["part"], second["inputs"]) == (1, ["above"])
        (step,) = data["steps"]
        assert data["records"][step["after"]["above"]]["attrs"] == {"bound": 1.0}

    def test_passes_keep_the_values(self):
        b = Builder()
        x = b.input("x", 4, 6)
        moved = b.op("PERMUTE", x, axes=(1, 0))
        above, below = b.graph.add_multi_output("HALVES", [moved])
        y = b.op("TANH", b.op("ADD", b.op("PERMUTE", above, axes=(1, 0)), 1.0))
        z = b.op("MATMUL", below, b.weight(4, 3))
        graph = b.done(y, z)
        inputs = random_inputs(graph)
        before = evaluate(graph, inputs)
        run_pipeline(graph, STAGES, verify=True)
        assert_same_values(before, evaluate(graph, inputs))

    def test_region_of_such_an_op_is_refused(self):
        from taper_runtime.ops.region import elementwise

        x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
        check_region(HALVES, [x])

        with pytest.raises(OpError, match="several outputs"):
            check_region(HALVES._replace(region=elementwise), [x])


class TestAbsentInputs:
    def test_input_in_the_middle(self):
        g = Graph()
        x, bias = (g.add_input(name, "float32", (3,)) for name in ("x", "bias"))
        y = g.add_node("AFFINE", [x, None, bias])
        g.set_outputs([y])
        g.verify()
        assert g.nodes[y].reads == [x, bias]
        assert g.input_types(g.nodes[y])[1] is None
        assert "AFFINE(x, none, bias)" in str(g)
        arrays = {"x": floats(3), "bias": floats(3, seed=1)}
        np.testing.assert_array_equal(evaluate(g, arrays)[y], arrays["x"] + arrays["bias"])

    def test_last_input_is_there(self):
        g = Graph()
        x = g.add_input("x", "float32", (3,))
        y = g.add_node("AFFINE", [x, None])
        assert g.nodes[y].inputs == [x]
        with pytest.raises(OpError, match="input 1: expected a tensor, got none"):
            AFFINE.infer_types([TensorType("float32", (3,)), None], {})

    def test_required_input_is_there(self):
        g = Graph()
        x = g.add_input("x", "float32", (3,))
        with pytest.raises(OpError, match="AFFINE: input 0: expected a tensor, got none"):
            g.add_node("AFFINE", [None, x])

    def test_folded(self):
        b = Builder()
        c = b.constant(floats(3))
        bias = b.constant(floats(3, seed=1))
        y = b.op("MUL", b.input("x", 3), b.graph.add_node("AFFINE", [c, None, bias]))
        graph = b.done(y)
        inputs = random_inputs(graph)
        before = evaluate(graph, inputs)
        assert fold_constants(graph)
        assert_same_values(before, evaluate(graph, inputs))

    def test_passes_keep_the_values(self):
        b = Builder()
        x, bias = b.input("x", 2, 3, 4), b.input("bias", 2, 3, 4)
        moved = b.op("PERMUTE", x, axes=(0, 2, 1))
        y = b.graph.add_node("AFFINE", [b.op("PERMUTE", moved, axes=(0, 2, 1)), None, bias])
        z = b.reshape(
            b.graph.add_node("AFFINE", [b.reshape(y, 6, 4), None, b.reshape(x, 6, 4)]), 24
        )
        graph = b.done(z)
        inputs = random_inputs(graph)
        before = evaluate(graph, inputs)
        run_pipeline(graph, STAGES, verify=True)
        assert_same_values(before, evaluate(graph, inputs))


class TestBlocks:
    def test_block_is_run(self):
        x, y = floats(2, 3), floats(2, 3, seed=1)
        a, b = x, y
        for _ in range(3):
            a, b = b, a * np.float32(0.5) + 1
        result = evaluate(repeating(), {"x": x, "y": y})
        np.testing.assert_array_equal(list(result.values()), [a, b])

    def test_block_that_gives_other_types_is_refused(self):
        block = body()
        block.set_outputs(["a"])
        with pytest.raises(OpError, match="REPEAT: expected a block"):
            repeating(block)
        g = Graph()
        x = g.add_input("x", "float32", (3,))
        with pytest.raises(OpError, match="REPEAT: expected 1 blocks, got 0"):
            g.add_multi_output("REPEAT", [x], {"times": 1})

    def test_broken_block_is_found(self):
        g = repeating(block := body())
        block.nodes["add"].attrs["nonsense"] = 1
        with pytest.raises(
            InternalError,
            match=r"block 0: invalid graph:\s+node 'add': ADD: expected attrs of",
        ):
            g.verify()

    def test_states_inside_are_refused(self):
        g = repeating(block := body())
        block.add_state("s", floats(2))
        with pytest.raises(InternalError, match="block 0: expected no states"):
            g.verify()

    def test_sizes_are_those_of_the_graph_around(self):
        g = Graph({"n": (1, 9)})
        block = Graph(g.sizes)
        x = g.add_input("x", "float32", (2,))
        block.set_outputs([block.add_node("EXP", [block.add_input("a", "float32", (2,))])])
        names = g.add_multi_output("REPEAT", [x], {"times": 1}, blocks=[block])
        g.set_outputs(names)
        assert block.sizes is g.sizes
        twin = g.copy()
        assert twin.producers.get(names[0]).blocks[0].sizes is twin.sizes
        twin.verify()

    def test_copies_are_apart(self):
        g = repeating()
        twin = g.copy()
        (inside,) = next(iter(twin.nodes.values())).blocks
        inside.replace_node(inside.nodes["add"], "EXP", ["a"])
        g.verify()
        twin.verify()
        (outside,) = next(iter(g.nodes.values())).blocks
        assert outside.nodes["add"].op == "ADD"

    def test_equal_nodes_stay_apart(self):
        g = repeating()
        names = g.add_multi_output("REPEAT", ["x", "y"], {"times": 3}, blocks=[body(2.0)])
        g.set_outputs([*g.outputs, *names])
        assert not eliminate_common_subexpressions(g)

    def test_printed_further_in(self):
        assert "    graph(a: float32[2,3], b: float32[2,3]):" in str(repeating())

    def test_change_inside_is_recorded(self):
        g = repeating(block := body())
        recorder = TraceRecorder(g)
        block.replace_node(block.nodes["add"], "EXP", ["a"])
        block.listener.fired("some rule", "add")
        (step,) = recorder.data()["steps"]
        assert step["rule"] == "some rule"
        records = [recorder.data()["records"][step[when]["repeat"]] for when in ("before", "after")]
        assert [any("EXP" in line for line in r["blocks"][0]) for r in records] == [False, True]

    def test_compiling_reaches_blocks_inside_blocks(self):
        def twice(graph):
            """(a, b) -> (b, a * 1 @ w)."""
            a, b = (graph.add_input(name, "float32", (4, 20)) for name in "ab")
            ones = graph.add_node("MUL", [a], {"scalar": 1.0, "scalar_index": 1})
            w = graph.add_constant("w", floats(20, 20) * np.float32(0.2))
            graph.set_outputs([b, graph.add_node("MATMUL", [ones, w])])
            return graph

        inside = twice(Graph())
        block = twice(Graph())
        names = block.add_multi_output("REPEAT", block.outputs, {"times": 2}, blocks=[inside])
        block.set_outputs(names)
        g = Graph()
        x, y = g.add_input("x", "float32", (4, 20)), g.add_input("y", "float32", (4, 20))
        g.set_outputs(g.add_multi_output("REPEAT", [x, y], {"times": 3}, blocks=[block]))
        recorder = TraceRecorder(g)
        inputs = random_inputs(g)
        before = evaluate(g, inputs)
        records = compile_graph(g, verify=True)
        assert_same_values(before, evaluate(g, inputs))
        for each in (block, inside):
            assert {node.op for node in each.nodes.values()} <= {"MATMUL", "COPY", "REPEAT"}
            assert {constant.type.format for constant in each.constants.values()} == {"panels.1"}
        assert sum(record.name == "pack_weights" for record in records) == 3
        steps = recorder.data()["steps"]
        assert {step["node"] for step in steps} >= {g.order()[0].output}


def counting(limits=(0, 6)):
    """x -> SUM of x > 0 -> count; ARANGE(u0) -> y (output), u0 being the count."""
    g = Graph()
    x = g.add_input("x", "float32", (6,))
    above = g.add_node("GT", [x], {"scalar": 0.0, "scalar_index": 1})
    count = g.add_node("SUM", [g.add_node("CAST", [above], {"dtype": "int64"})], {"axes": (0,)})
    g.rename({count: "count"})
    g.add_computed_size("u0", limits, ("count", 0), 3)
    y = g.add_node("ARANGE", [], {"stop": variable("u0", *limits)})
    g.set_outputs([g.add_node("NEG", [y], name="y")])
    return g


class TestComputedSizes:
    def test_origin_is_used_and_comes_first(self):
        g = counting()
        g.verify()
        assert g.kept == ["y", "count"]
        assert g.is_used("count")
        assert not eliminate_dead_code(g)
        for order in (g.order(), make_schedule(g).order):
            names = [node.output for node in order]
            assert names.index("count") < names.index("arange")
        assert "size u0 = count[0]" in str(g)

    def test_size_that_nothing_mentions_is_dropped(self):
        g = counting()
        g.set_outputs([g.add_node("EXP", ["x"])])
        assert eliminate_dead_code(g)
        g.verify()
        assert (g.sizes, g.origins, g.examples) == ({}, {}, {})
        assert list(g.nodes) == ["exp"]

    def test_names_follow(self):
        g = counting()
        g.rename({"count": "n"})
        assert g.origins == {"u0": ("n", 0)}
        twin = g.add_node(g.nodes["n"].op, g.nodes["n"].inputs, g.nodes["n"].attrs, name="twin")
        g.bypass(g.nodes["n"], twin)
        g.verify()
        assert g.origins == {"u0": ("twin", 0)}
        g.set_outputs([*g.outputs, g.add_node("COPY", ["twin"], name="out")])
        g.bypass(g.nodes["out"], "twin")
        g.verify()
        assert g.origins == {"u0": ("out", 0)}
        assert g.outputs == ["y", "out"]

    def test_origin_stays_what_a_node_makes(self):
        """Though its value is known, or an input's."""
        g = counting()
        g.replace_by_constant(g.nodes["count"], literal(np.array(4)))
        g.verify()
        assert g.nodes["count"].op == "COPY"
        assert not fold_constants(g)
        n = g.add_input("n", "int64", ())
        assert g.bypass(g.nodes["count"], n)
        assert not g.bypass(g.nodes["count"], n)
        g.verify()
        assert g.nodes["count"].inputs == [n]

    def test_origin_is_a_number_that_a_node_makes(self):
        g = counting()
        v = g.add_node("EXP", ["x"])
        for origin in (("x", 0), ("count", 1), (v, 0)):
            with pytest.raises(InternalError, match="size 'u1': expected"):
                g.add_computed_size("u1", (0, 6), origin, 3)
        with pytest.raises(InternalError, match="size 'u0': expected a new size"):
            g.add_computed_size("u0", (0, 6), ("count", 0), 3)

    def test_wrong_origin_is_found(self):
        for origin in (("x", 0), ("y", 0), ("count", 1), ("ghost", 0)):
            g = counting()
            g.origins["u0"] = origin
            if origin[0] != "y":
                with pytest.raises(InternalError, match="size 'u0' is"):
                    g.verify()
        g = counting()
        g.origins["u1"] = ("count", 0)
        with pytest.raises(InternalError, match="size 'u1' has an origin but no limits"):
            g.verify()

    def test_size_cannot_depend_on_itself(self):
        g = counting()
        g.origins["u0"] = ("y", 0)
        with pytest.raises(InternalError, match=r"element 0 of 'y'|cycle"):
            g.verify()

    def test_compiling_keeps_the_origin(self):
        g = counting()
        compile_graph(g, verify=True)
        assert g.sizes == {"u0": (0, 6)}
        assert g.origins["u0"][0] in g.producers

    def test_copies_are_apart(self):
        g = counting()
        twin = g.copy()
        twin.rename({"count": "n"})
        assert g.origins == {"u0": ("count", 0)}
        g.verify()
        twin.verify()
