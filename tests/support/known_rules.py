"""Passes whose firings tests know: rules that stay as they are while the compiler's own change."""

from taper_frontend.compiler.graph.constants import derived
from taper_frontend.compiler.rules.engine import rewrite


def drop_casts(graph):
    """Remove CASTs to the type that their input has."""
    return rewrite(graph, drop_cast)


def drop_cast(graph, node):
    if node.op != "CAST" or graph.tensors[node.inputs[0]].dtype != node.attrs["dtype"]:
        return False
    return graph.bypass(node, node.inputs[0])


def cancel_negations(graph):
    """Let what reads NEG(NEG(x)) read x."""
    return rewrite(graph, negation_of_negation)


def negation_of_negation(graph, node):
    producer = graph.producers.get(node.inputs[0]) if node.op == "NEG" else None
    if producer is None or producer.op != "NEG":
        return False
    return graph.bypass(node, producer.inputs[0])


def fold_exps(graph):
    """Make constants of EXPs of constants."""
    return rewrite(graph, fold_exp)


def fold_exp(graph, node):
    if node.op != "EXP" or node.inputs[0] not in graph.constants:
        return False
    graph.replace_by_constant(node, derived("EXP", [graph.constants[node.inputs[0]]]))
    return True
