"""Rules: what a match is replaced by, where, in which order; rules that are wrong."""

import numpy as np
import pytest

from graph_checks import (
    Builder,
    assert_same_values,
    check_fires,
    check_keeps,
    op_counts,
    random_inputs,
)
from marks import thinned
from random_graphs import random_graph
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.rules.engine import Rule, RuleSet, rewrite
from taper_frontend.compiler.rules.pattern import (
    attr,
    constant,
    like,
    matches,
    number,
    op,
    tensor,
)
from taper_frontend.compiler.stages import PIPELINE, Group
from taper_runtime.base.errors import InternalError

X, Y = tensor(), tensor()


def all_rules():
    passes = [p for step in PIPELINE for p in (step.passes if isinstance(step, Group) else [step])]
    sets = dict.fromkeys(pass_ for pass_ in passes if isinstance(pass_, RuleSet))
    return [rule for rules in sets for rule in rules.rules]


def one(name, pattern, replacement, where=None):
    return RuleSet("one", Rule(name, pattern, replacement, where))


class TestReplacements:
    def test_node(self):
        b = Builder()
        graph = b.done(b.op("POW", b.input("x", 3), 2.0))
        check_fires(one("square", op("POW", X, 2), op("SQUARE", X)), graph)
        assert op_counts(graph) == {"SQUARE": 1}

    def test_nodes(self):
        b = Builder()
        graph = b.done(b.op("POW", b.input("x", 3), 3.0))
        check_fires(one("cube", op("POW", X, 3), op("MUL", X, op("SQUARE", X))), graph)
        assert op_counts(graph) == {"MUL": 1, "SQUARE": 1}

    def test_number(self):
        b = Builder()
        graph = b.done(b.op("ADD", b.input("x", 3), "x"))
        check_fires(one("double", op("ADD", X, X), op("MUL", 2.0, X)), graph)
        (node,) = graph.nodes.values()
        assert (node.op, node.attrs) == ("MUL", {"scalar": 2.0, "scalar_index": 0})

    def test_bound_number(self):
        b = Builder()
        graph = b.done(b.op("SUB", b.input("x", 3), b.op("NEG", b.op("MUL", "x", 3.0))))
        n = number()
        rule = one("join", op("SUB", X, op("NEG", op("MUL", X, n))), op("ADD", X, op("MUL", X, n)))
        check_fires(rule, graph)
        assert op_counts(graph) == {"ADD": 1, "MUL": 1}

    def test_bound_node_stays(self):
        b = Builder()
        exp = op("EXP", X)
        graph = b.done(b.op("ADD", b.op("EXP", b.input("x", 3)), "exp"))
        check_fires(one("double", op("ADD", exp, exp), op("MUL", exp, 2.0)), graph)
        assert op_counts(graph) == {"EXP": 1, "MUL": 1}

    def test_piece_takes_the_place_of_the_node(self):
        b = Builder()
        graph = b.done(b.op("EXP", b.op("NEG", b.op("NEG", b.input("x", 3)))))
        check_fires(one("negations", op("NEG", op("NEG", X)), X), graph)
        assert op_counts(graph) == {"EXP": 1}

    def test_piece_of_another_type_does_not(self):
        b = Builder()
        x = b.input("x", 3, dtype="int32")
        graph = b.done(b.op("ABS", b.op("CAST", x, dtype="float32")))
        check_keeps(one("cast", op("CAST", X), X), graph)

    def test_attrs(self):
        b = Builder()
        x = b.input("x", 2, 3)
        graph = b.done(b.op("SUM", b.op("NEG", x), axes=(1,), keepdim=True))
        axes = attr()
        rule = one(
            "negative sum",
            op("SUM", op("NEG", X), axes=axes, keepdim=True),
            op("NEG", op("SUM", X, axes=axes, keepdim=lambda m: m.output.shape == (2, 1))),
        )
        check_fires(rule, graph)
        assert [node.op for node in graph.order()] == ["SUM", "NEG"]

    def test_like(self):
        b = Builder()
        graph = b.done(b.op("AMAX", b.op("NEG", b.op("NEG", b.input("x", 2, 3))), axes=(1,)))
        peak = op("AMAX", op("NEG", op("NEG", X)))
        check_fires(one("peak", peak, like(peak, X)), graph)
        assert op_counts(graph) == {"AMAX": 1}

    def test_function(self):
        b = Builder()
        graph = b.done(b.op("MUL", b.input("x", 3), 5.0), b.op("MUL", "x", 6.0))
        n = number()

        def add(match):
            return op("ADD", X, op("MUL", X, match[n] - 1)) if match[n] == 5 else None

        check_fires(one("add", op("MUL", X, n), add), graph)
        assert op_counts(graph) == {"ADD": 1, "MUL": 2}

    def test_function_that_changes_the_graph_itself(self):
        b = Builder()
        graph = b.done(b.op("EXP", b.op("COPY", b.input("x", 3))))

        def drop(match):
            return match.graph.bypass(match.node, "x")

        check_fires(one("copy", op("COPY"), drop), graph)
        assert op_counts(graph) == {"EXP": 1}

    def test_source_is_the_nodes(self):
        b = Builder()
        x = b.input("x", 3)
        graph = b.done(
            graph_output := b.graph.add_node(
                "POW", [x], {"scalar": 3.0, "scalar_index": 1}, source="m.py:1"
            )
        )
        one("cube", op("POW", X, 3), op("MUL", X, op("SQUARE", X)))(graph)
        assert {node.source.line for node in graph.nodes.values()} == {"m.py:1"}
        assert graph.outputs == [graph_output]


class TestWhere:
    def test_condition(self):
        b = Builder()
        graph = b.done(b.op("NEG", b.input("x", 3)), b.op("NEG", b.input("y", 4)))
        rule = Rule("neg", op("NEG", X), op("MUL", X, -1.0), lambda m: m.type(X).shape == (4,))
        check_fires(RuleSet("one", rule), graph)
        assert op_counts(graph) == {"MUL": 1, "NEG": 1}

    def test_other_ways_to_match_are_tried(self):
        b = Builder()
        graph = b.done(b.op("ADD", b.input("x", 3), b.input("y", 1)))
        rule = Rule("add", op("ADD", X, Y), op("MAXIMUM", X, Y), lambda m: m.type(X).shape == (1,))
        assert RuleSet("one", rule)(graph)
        assert graph.nodes[graph.outputs[0]].inputs == ["y", "x"]


class TestSets:
    def test_first_rule_that_applies(self):
        b = Builder()
        graph = b.done(b.op("EXP", b.input("x", 3)))
        RuleSet(
            "two", Rule("a", op("EXP", X), op("ABS", X)), Rule("b", op("EXP", X), op("SIN", X))
        )(graph)
        assert op_counts(graph) == {"ABS": 1}

    def test_rules_are_tried_by_the_op_of_the_root(self):
        square, anything = Rule("square", op("POW", X, 2), op("SQUARE", X)), Rule("any", X, X)
        rules = RuleSet("rules", square, anything)
        assert rules.at("POW") == (square, anything)
        assert rules.at("MUL") == (anything,)
        assert rules.__name__ == "rules"

    def test_firings_are_told(self):
        heard = []

        class Hearing(Listener):
            def fired(self, rule, node):
                heard.append((rule, node))

        b = Builder()
        graph = b.done(b.op("NEG", b.op("NEG", b.op("POW", b.input("x", 3), 2.0))))
        graph.listener = Hearing()
        rules = RuleSet(
            "rules",
            Rule("negations", op("NEG", op("NEG", X)), X),
            Rule("square", op("POW", X, 2), op("SQUARE", X)),
        )
        assert rules(graph)
        assert heard == [("square", "pow"), ("negations", "neg_1")]


class TestWrong:
    def graph(self):
        b = Builder()
        return b.done(b.op("EXP", b.input("x", 2, 3)))

    @pytest.mark.parametrize(
        "wrong", [Y, op("NEG", Y), op("NEG", number()), constant(1), op(("NEG", "ABS"), X)]
    )
    def test_replacement_that_the_pattern_does_not_bind(self, wrong):
        with pytest.raises(ValueError, match="rule 'unbound': expected"):
            Rule("unbound", op("EXP", X), wrong)

    @pytest.mark.parametrize(
        ("replacement", "message"),
        [
            (op("SUM", X, axes=(1,)), r"expected .*\(2, 3\).*, got SUM of .*\(2,\)"),
            (op("NEG", op("SUM", X, axes=(5,))), "SUM"),
            (op("NO_SUCH_OP", X), "NO_SUCH_OP"),
            (op("EXP", X, nonsense=1), "EXP: expected attrs of .*, got 'nonsense'"),
            (lambda match: op("NEG", "nowhere"), "nowhere"),
            (lambda match: Y, "replacement"),
        ],
    )
    def test_rule_that_breaks_the_graph_is_named(self, replacement, message):
        graph = self.graph()
        before = str(graph)
        with pytest.raises(
            InternalError, match=rf"rule 'wrong' at node 'exp' \(EXP\): .*{message}"
        ):
            one("wrong", op("EXP", X), replacement)(graph)
        graph.verify()
        assert str(graph) == before

    def test_step_that_breaks_the_graph_is_named(self):
        def _narrow(graph, node):
            graph.replace_node(node, "SUM", node.inputs, {"axes": (1,)})
            return True

        with pytest.raises(InternalError, match=r"rule 'narrow' at node 'exp' \(EXP\): .*expected"):
            rewrite(self.graph(), _narrow)


def test_rewrite_skips_nodes_that_a_rule_has_removed():
    b = Builder()
    graph = b.done(b.op("NEG", b.op("EXP", b.input("x", 3))))
    seen = []

    def from_the_end(graph, node):
        seen.append(node.op)
        if node.op != "EXP":
            return False
        graph.replace_node(graph.nodes["neg"], "SIN", ["x"])  # EXP goes with it
        return True

    assert rewrite(graph, from_the_end)
    assert seen == ["EXP", "SIN"]


def test_rewrite_that_never_settles_is_refused():
    def swap(graph, node):
        graph.replace_node(node, "ADD", node.inputs[::-1])
        return True

    b = Builder()
    graph = b.done(b.op("ADD", b.input("x", 3), b.input("y", 3)))
    with pytest.raises(InternalError, match=r"'swap' at node .* \(ADD\): expected at most"):
        rewrite(graph, swap)


def test_rewrite_stays_at_a_node_until_no_rule_applies():
    b = Builder()
    graph = b.done(b.op("NEG", b.op("EXP", b.op("TANH", b.input("x", 3)))))
    last = graph.outputs[0]

    def skip_producer(graph, node):
        producer = graph.producers.get(node.inputs[0])
        if node.output != last or producer is None:
            return False
        graph.replace_node(node, "NEG", producer.inputs)
        return True

    assert rewrite(graph, skip_producer)
    assert op_counts(graph) == {"NEG": 1}


@pytest.mark.parametrize("seed", thinned(3, range(12)))
def test_random_graphs_through_rules_in_any_order(seed):
    """One rule at one node at a time, whichever applies there."""
    rng = np.random.default_rng(seed)
    graph = random_graph(300 + seed)
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    names, rules = list(graph.outputs), all_rules()
    for rule in (rules[index] for index in rng.integers(len(rules), size=6 * len(rules))):
        at = [n for n in graph.order() if rule.roots is None or n.op in rule.roots]
        rng.shuffle(at)
        any(rule(graph, node) for node in at)
        graph.verify()
    assert graph.outputs == names
    assert_same_values(evaluate(graph, inputs), expected)


@pytest.mark.parametrize("seed", range(10))
def test_what_may_not_match_does_not(seed):
    """Most rules are ruled out without matching; none that would apply."""
    graph = random_graph(seed)
    for rule in all_rules():
        for node in graph.order():
            if next(matches(graph, node, rule.pattern), None) is not None:
                assert rule.roots is None or node.op in rule.roots, rule.name
                assert rule.pattern.may_match(graph, node.output), rule.name
