"""Test the graph: building, changing, indices, order, names, checker, printing, evaluation."""

import numpy as np
import pytest

from graph_checks import Builder, assert_same_values, floats, random_inputs
from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.graph.constants import literal
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.stages.canonical.materialize_outputs import materialize_outputs
from taper_runtime.base.errors import InputError, InternalError, OpError
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.plan import TensorSpec


def chain():
    """x -> EXP a -> NEG b, c -> ADD(b, c) d (output)."""
    g = Graph()
    x = g.add_input("x", "float32", (2, 3))
    a = g.add_node("EXP", [x], name="a", source="model.py:1")
    b = g.add_node("NEG", [a], name="b")
    c = g.add_node("NEG", [a], name="c")
    d = g.add_node("ADD", [b, c], name="d")
    g.set_outputs([d])
    return g


class TestBuilding:
    def test_types_are_inferred(self):
        g = Graph()
        a = g.add_input("a", "float32", (4, 3))
        y = g.add_node("MATMUL", [a, g.add_constant("w", floats(3, 5))])
        assert g.tensors[y].type == TensorType("float32", (4, 5))
        assert g.tensors[y].role == "intermediate"
        assert g.tensors["w"].role == "constant"

    def test_names_are_unique_and_readable(self):
        g = Graph()
        x = g.add_input("x", "float32", (2,))
        names = [g.add_node("EXP", [x]) for _ in range(3)]
        assert names == ["exp", "exp_1", "exp_2"]
        assert g.add_node("EXP", [x], name="exp_1") == "exp_1_1"
        assert g.add_constant("x", np.zeros(2, np.float32)) == "x_1"

    def test_unknown_op_is_refused(self):
        g = Graph()
        with pytest.raises(OpError, match="NO_SUCH_OP"):
            g.add_node("NO_SUCH_OP", [])

    def test_wrong_types_are_refused(self):
        g = Graph()
        x, y = g.add_input("x", "float32", (2,)), g.add_input("y", "int64", (2,))
        with pytest.raises(OpError):
            g.add_node("ADD", [x, y])
        assert not g.nodes
        assert set(g.tensors) == {"x", "y"}

    def test_unknown_input_is_refused(self):
        with pytest.raises(InternalError, match="'ghost'"):
            Graph().add_node("EXP", ["ghost"])

    def test_unknown_output_is_refused(self):
        g = chain()
        with pytest.raises(InternalError, match="'ghost'"):
            g.set_outputs(["a", "ghost"])
        assert g.outputs == ["d"]

    def test_constants_are_contiguous_and_not_copied(self):
        g = Graph()
        array = floats(3, 4)
        assert g.value(g.add_constant("a", array)) is array
        transposed = g.value(g.add_constant("b", array.T))
        assert transposed.flags.c_contiguous
        np.testing.assert_array_equal(transposed, array.T)
        assert g.value(g.add_constant("zero_d", np.float32(3))).shape == ()

    def test_bfloat16_is_stored_as_its_bits(self):
        g = Graph()
        name = g.add_constant("b", np.zeros(3, np.uint16), "bfloat16")
        assert g.tensors[name].dtype == "bfloat16"
        with pytest.raises(OpError, match="complex64"):
            g.add_constant("c", np.zeros(3, np.complex64))

    def test_attrs_that_are_lists_are_frozen(self):
        g = Graph()
        x = g.add_input("x", "float32", (2, 3))
        shape = [3, 2]
        y = g.add_node("RESHAPE", [x], {"shape": shape})
        shape.append(7)
        assert g.nodes[y].attrs == {"shape": (3, 2)}


class TestStates:
    """A state is read as an input is and given as an output is, and is neither."""

    @staticmethod
    def counter():
        g = Graph()
        x = g.add_input("x", "float32", (2,))
        state = g.add_state("count", np.zeros(2, np.float32))
        g.set_outputs([g.add_node("ADD", [x, state], name="y")])
        return g

    def test_a_state_keeps_its_value_until_it_is_given_another(self):
        g = self.counter()
        g.verify()
        assert (g.inputs, g.reads) == (["x"], ["x", "count"])
        assert (g.outputs, g.writes) == (["y"], ["y", "count"])
        g.set_next("count", "y")
        g.verify()
        assert g.writes == ["y", "y"]

    def test_a_plan_names_states_whatever_else_is_named(self):
        """An output that is the next value of a state as well, and names that are wanted twice."""
        g = self.counter()
        g.set_next("count", "y")
        materialize_outputs(g)
        g.rename({"count": "n", "x": "count"})
        g.name_outputs(["n"])
        g.verify()
        plan = make_plan(g)
        assert plan.inputs == ("count",)
        assert plan.outputs == ("n",)
        ((state, after),) = plan.states.items()
        assert (plan.tensors[state].role, plan.tensors[after].role) == ("state", "output")
        np.testing.assert_array_equal(plan.first_value(state), np.zeros(2))

    def test_the_next_value_is_not_removed_or_read_over(self):
        g = self.counter()
        g.set_next("count", g.add_node("NEG", ["y"], name="z"))
        g.set_outputs(["y"])
        assert g.is_used("z")
        assert g.sole_consumer("z") is None
        assert g.prune(["z", "count"]) == 0
        g.bypass(g.nodes["z"], "x")  # the name stays
        g.verify()
        assert g.writes == ["y", "z"]
        g.replace_uses("z", "x")
        assert g.writes == ["y", "x"]

    def test_evaluation_takes_and_gives_states(self):
        g = self.counter()
        g.set_next("count", g.add_node("NEG", ["y"], name="z"))
        ones = np.ones(2, np.float32)
        got = evaluate(g, {"x": ones, "count": 2 * ones})
        np.testing.assert_array_equal(got["y"], 3 * ones)
        np.testing.assert_array_equal(got["z"], -3 * ones)

    def test_text(self):
        g = self.counter()
        g.set_next("count", "y")
        text = str(g)
        assert "  state count: float32[2]\n" in text
        assert "  next count = y\n" in text

    def test_another_type_is_refused(self):
        g = self.counter()
        total = g.add_node("SUM", ["y"], {"axes": (0,)})
        with pytest.raises(InternalError, match="'count'"):
            g.set_next("count", total)
        g.states[0].first = np.zeros(3, np.float32)
        with pytest.raises(InternalError, match="state 'count'"):
            g.verify()
        with pytest.raises(OpError, match=r"state 's': expected an array of .*, got complex64"):
            g.add_state("s", np.zeros(2, np.complex64))


class TestIndices:
    def test_producers_and_consumers(self):
        g = chain()
        assert "x" not in g.producers
        assert g.producers.get("b").op == "NEG"
        assert [n.output for n in g.consumers("a")] == ["b", "c"]
        assert g.consumers("d") == []

    def test_a_node_that_reads_twice_is_one_consumer(self):
        b = Builder()
        x = b.input("x", 3)
        y = b.op("MUL", x, x)
        assert [n.output for n in b.graph.consumers(x)] == [y]
        b.graph.rewire_input(b.graph.nodes[y], 0, b.constant(floats(3)))
        assert [n.output for n in b.graph.consumers(x)] == [y]
        b.done(y).verify()

    def test_sole_consumer(self):
        g = chain()
        assert g.sole_consumer("b").output == "d"
        assert g.sole_consumer("a") is None  # two
        assert g.sole_consumer("d") is None  # an output
        g.set_outputs(["d", "b"])
        assert g.sole_consumer("b") is None

    def test_rewire_input(self):
        g = chain()
        g.rewire_input(g.nodes["d"], 1, "b")
        g.verify()
        assert g.consumers("c") == []
        assert not g.is_used("c")

    def test_rewire_to_another_type_is_refused(self):
        g = chain()
        other = g.add_input("y", "float32", (5,))
        with pytest.raises(OpError):
            g.rewire_input(g.nodes["d"], 1, other)
        scalar = g.add_input("z", "float32", ())
        with pytest.raises(InternalError):
            g.rewire_input(g.nodes["a"], 0, scalar)
        g.verify()

    def test_replace_uses_reaches_outputs(self):
        g = chain()
        new = g.add_node("ABS", ["a"], name="new")
        g.replace_uses("d", new)
        assert g.outputs == ["new"]
        g.remove_node(g.nodes["d"])
        g.verify()

    def test_remove_node_refuses_what_is_used(self):
        g = chain()
        with pytest.raises(InternalError, match="'a'"):
            g.remove_node(g.nodes["a"])
        with pytest.raises(InternalError, match="'d'"):
            g.remove_node(g.nodes["d"])

    def test_remove_tensor_refuses_what_is_used_or_produced(self):
        g = chain()
        dead = g.add_node("EXP", ["x"], name="dead")
        for name in ("x", dead):
            with pytest.raises(InternalError):
                g.remove_tensor(name)

    def test_prune_removes_what_only_the_dead_needed(self):
        g = chain()
        w = g.add_constant("w", floats(2, 3))
        dead = g.add_node("MUL", [g.add_node("SIN", ["a"]), w])
        assert g.prune([dead]) == 3
        assert set(g.tensors) == {"x", "a", "b", "c", "d"}
        assert g.prune(["a", "x"]) == 0


class TestReplaceNode:
    def test_name_readers_and_outputs_stay(self):
        g = chain()
        g.replace_node(g.nodes["b"], "SIN", ["x"])
        g.verify()
        assert g.producers.get("b").op == "SIN"
        assert [n.output for n in g.consumers("x")] == ["a", "b"]
        assert g.nodes["d"].inputs == ["b", "c"]

    def test_fused_node_keeps_its_producer_entry(self):
        # a fused node added before the old ones are removed must not lose its index entry
        g = chain()
        inputs = random_inputs(g)
        expected = evaluate(g, inputs)
        g.replace_node(
            g.nodes["d"], "MAP", ["x"], {"code": ["EXP", "NEG", "ADD"], "args": [0, 1, 2, 2]}
        )
        g.verify()
        assert g.producers.get("d").op == "MAP"
        assert list(g.nodes) == ["d"]  # what only the old definition needed is gone
        assert_same_values(evaluate(g, inputs), expected)

    def test_another_type_is_refused(self):
        g = chain()
        with pytest.raises(InternalError, match="'b'"):
            g.replace_node(g.nodes["b"], "RESHAPE", ["a"], {"shape": (3, 2)})
        g.verify()
        assert g.producers.get("b").op == "NEG"

    def test_by_constant(self):
        g = chain()
        value = literal(floats(2, 3))
        g.replace_by_constant(g.nodes["b"], value)
        g.verify()
        assert g.constants["b"] is value
        assert g.tensors["b"].role == "constant"

    def test_output_by_constant_stays_a_node(self):
        g = chain()
        g.replace_by_constant(g.nodes["d"], literal(floats(2, 3)))
        g.verify()
        assert g.outputs == ["d"]
        assert g.producers.get("d").op == "COPY"


class TestBypass:
    def test_inner_node(self):
        g = chain()
        assert g.bypass(g.nodes["b"], "a")
        g.verify()
        assert "b" not in g.tensors
        assert g.nodes["d"].inputs == ["a", "c"]

    def test_output_hands_on_its_name(self):
        g = chain()
        assert g.bypass(g.nodes["d"], "b")
        g.verify()
        assert g.outputs == ["d"]
        assert g.producers.get("d").op == "NEG"
        assert set(g.nodes) == {"a", "d"}

    def test_output_renames_for_all_readers(self):
        g = chain()
        g.set_outputs(["b"])  # b = NEG(a) and a has another reader
        assert g.bypass(g.nodes["b"], "a")
        g.verify()
        assert g.outputs == ["b"]
        assert g.producers.get("b").op == "EXP"
        assert g.nodes["c"].inputs == ["b"]

    @pytest.mark.parametrize("kept", ["x", "w", "b"])
    def test_output_of_what_keeps_its_name_is_a_copy(self, kept):
        g = chain()
        g.add_constant("w", floats(2, 3))
        g.set_outputs(["d", "b"])
        assert g.bypass(g.nodes["d"], kept)
        g.verify()
        assert g.outputs == ["d", "b"]
        assert g.nodes["d"].op == "COPY"
        assert g.nodes["d"].inputs == [kept]
        assert not g.bypass(g.nodes["d"], kept)  # settled

    def test_another_type_is_refused(self):
        g = chain()
        y = g.add_input("y", "float32", (3, 2))
        with pytest.raises(InternalError, match="'b'"):
            g.bypass(g.nodes["b"], y)


class TestOrder:
    def test_order_is_stable(self):
        g = chain()
        assert [n.output for n in g.order()] == ["a", "b", "c", "d"]
        early = g.add_node("COS", ["x"], name="early")
        g.rewire_input(g.nodes["b"], 0, early)
        assert [n.output for n in g.order()] == ["a", "early", "b", "c", "d"]

    def test_order_is_cached_until_a_change(self):
        g = chain()
        first = g.order()
        first.clear()  # the caller's copy
        assert len(g.order()) == 4
        g.add_node("EXP", ["d"])
        assert len(g.order()) == 5

    def test_a_deep_graph_does_not_recurse(self):
        g = Graph()
        x = g.add_input("x", "float32", (1,))
        names = [x]
        for _ in range(5000):
            names.append(g.add_node("NEG", [names[-1]]))
        # rewired so that the first added comes last
        g.set_outputs([names[-1]])
        assert len(g.order()) == 5000

    def test_a_cycle_is_found(self):
        g = chain()
        g.rewire_input(g.nodes["a"], 0, "d")
        with pytest.raises(InternalError, match="cycle"):
            g.order()
        with pytest.raises(InternalError, match="cycle"):
            g.verify()


class TestVerify:
    """Every rule can be broken, past the methods that keep it, and is then reported."""

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda g: g.nodes["b"].inputs.append("ghost"), "'ghost'"),
            (lambda g: g.nodes["b"].inputs.__setitem__(0, "x"), "reads: expected .'x'"),
            (lambda g: g.nodes["b"].reads.__setitem__(0, "x"), "but its index has"),
            (lambda g: setattr(g.nodes["b"], "op", "ABS"), "definition: expected 'ABS'"),
            (lambda g: g.nodes["b"].attrs.update(nonsense=1), "nonsense"),
            (lambda g: setattr(g.nodes["b"], "op", "NO_SUCH_OP"), "NO_SUCH_OP"),
            (lambda g: setattr(g.nodes["b"], "outputs", ["elsewhere"]), "'elsewhere'"),
            (lambda g: g.outputs.append("ghost"), "'ghost'"),
            (lambda g: g.inputs.append("x"), "one origin"),
            (lambda g: g.inputs.clear(), "one origin"),
            (lambda g: g.constants.update(a=literal(floats(2, 3))), "one origin"),
            (lambda g: g.tensors.pop("b"), "'b'"),
            (
                lambda g: g.tensors.update(y=TensorSpec("y", "float32", (1,), "intermediate")),
                "one origin",
            ),
            (
                lambda g: g.tensors.update(b=TensorSpec("b", "float32", (7,), "intermediate")),
                "infers",
            ),
            (lambda g: g.tensors.update(b=TensorSpec("b", "float32", (2, 3), "state")), "state"),
            (lambda g: g.tensors.update(b=TensorSpec("q", "float32", (2, 3), "input")), "'q'"),
        ],
    )
    def test_broken_rule_is_reported(self, damage, message):
        g = chain()
        g.verify()
        g.order()
        damage(g)
        with pytest.raises(InternalError, match=message):
            g.verify()

    def test_constant_of_another_shape(self):
        g = chain()
        w = g.add_constant("w", floats(3, 4))
        g.constants[w] = literal(floats(4, 3))
        with pytest.raises(InternalError, match="'w'"):
            g.verify()

    def test_all_problems_are_listed(self):
        g = chain()
        g.outputs.append("ghost")
        g.tensors["b"] = TensorSpec("b", "float32", (2, 3), "state")
        with pytest.raises(InternalError, match=r"(?s)state.*ghost|ghost.*state"):
            g.verify()


def test_print():
    g = chain()
    g.add_constant("w", floats(2, 3))
    assert str(g).splitlines() == [
        "graph(x: float32[2,3]):",
        "  1 constant, 24 bytes",
        "  a = EXP(x) -> float32[2,3]  # model.py:1",
        "  b = NEG(a) -> float32[2,3]",
        "  c = NEG(a) -> float32[2,3]",
        "  d = ADD(b, c) -> float32[2,3]",
        "  return d",
    ]


def test_print_cuts_long_attrs():
    b = Builder()
    x = b.input("x", *[1] * 20)
    g = b.done(b.op("PERMUTE", x, axes=tuple(range(20))))
    assert "axes=[0, 1, 2, 3, 4, 5, 6, 7, ... 20 in all]" in str(g)


class TestEvaluate:
    def test_against_numpy(self):
        g = chain()
        x = floats(2, 3)
        np.testing.assert_allclose(evaluate(g, {"x": x})["d"], -2 * np.exp(x), rtol=1e-6)

    def test_wrong_inputs_are_refused(self):
        g = chain()
        with pytest.raises(InputError, match="'x'"):
            evaluate(g, {})
        with pytest.raises(InputError, match="float64"):
            evaluate(g, {"x": np.zeros((2, 3))})
        with pytest.raises(InputError, match="3, 2"):
            evaluate(g, {"x": np.zeros((3, 2), np.float32)})

    def test_special_values_raise_no_warning(self):
        g = chain()
        out = evaluate(g, {"x": np.full((2, 3), 1e10, np.float32)})["d"]
        assert np.isneginf(out).all()
