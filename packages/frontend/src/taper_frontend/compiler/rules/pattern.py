"""Patterns over graphs: what a subgraph computes, written as a formula.

A pattern is built from a few pieces and matched against the tensor a node produces::

    x = tensor()
    silu = product(x, op("SIGMOID", x))

    if m := find(graph, node, silu):
        graph.replace_node(node, "SILU", [m[x]])

A piece is bound to what it matched, and a piece that stands twice in a formula must match the same
tensor twice: above both ``x`` are one tensor. ``m[piece]`` is what it was bound to.

A match is found only if nothing else needs the values inside it: every tensor between the root and
the leaves is read by the match alone and is no output of the graph (the sole-consumer rule).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import Node, Operand
from taper_runtime.sizes import UndecidedError

if TYPE_CHECKING:
    from taper_runtime.plan.plan import TensorSpec

#: Ops whose two operands may be swapped.
COMMUTATIVE = frozenset(
    {"ADD", "MUL", "MAXIMUM", "MINIMUM", "EQ", "NE"}
    | {f"{kind}_{name}" for kind in ("LOGICAL", "BITWISE") for name in ("AND", "OR", "XOR")}
)

_REL_TOL = 1e-6  # between a number in a formula and the number a user wrote, perhaps in float32


@dataclass(frozen=True, slots=True)
class Match:
    """What the pieces of a pattern were bound to, and the nodes the match is made of."""

    bound: Mapping[Pattern, Operand]
    nodes: frozenset[str]

    def __getitem__(self, piece: Pattern) -> Any:
        """Return the tensor name, or the number, that ``piece`` was bound to."""
        return self.bound[piece]

    def with_nodes(self, *outputs: str) -> Match:
        """Return the match with more nodes in it."""
        return Match(self.bound, self.nodes.union(outputs))


class Pattern:
    """A piece of a formula. Compared by identity: each piece is one value."""

    def match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        """Yield every way ``operand`` can be this piece, given what is ``found`` already."""
        if self in found.bound:
            if found.bound[self] == operand:
                yield found
            return
        for extended in self._match(graph, operand, found):
            yield Match({**extended.bound, self: operand}, extended.nodes)

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class _Tensor(Pattern):
    where: Callable[[TensorSpec], bool] | None

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        if isinstance(operand, str) and (not self.where or self.where(graph.tensors[operand])):
            yield found


@dataclass(frozen=True, eq=False)
class _Number(Pattern):
    value: float | None

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        if not isinstance(operand, str) and (
            self.value is None or math.isclose(operand, self.value, rel_tol=_REL_TOL)
        ):
            yield found


@dataclass(frozen=True, eq=False)
class _Either(Pattern):
    choices: tuple[Pattern, ...]

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        for choice in self.choices:
            yield from choice.match(graph, operand, found)


@dataclass(frozen=True, eq=False)
class _Op(Pattern):
    name: str
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Any]

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        node = graph.producer(operand) if isinstance(operand, str) else None
        if node is None or node.op != self.name:
            return
        if self.attrs:
            attrs = node.complete_attrs()
            if any(attrs[name] != value for name, value in self.attrs.items()):
                return
        found = found.with_nodes(node.output)
        operands = node.operands()
        if self.operands and len(self.operands) != len(operands):
            return
        yield from _match_all(graph, self.operands, operands, found)
        if node.op in COMMUTATIVE:
            yield from _match_all(graph, self.operands, operands[::-1], found)


@dataclass(frozen=True, eq=False)
class _Inverse(Pattern):
    """A factor that stands below the line of a product; matched like ``value``."""

    value: Pattern

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        yield from self.value.match(graph, operand, found)


@dataclass(frozen=True, eq=False)
class _Product(Pattern):
    coefficient: float
    factors: tuple[Pattern, ...]

    def _match(self, graph: Graph, operand: Operand, found: Match) -> Iterator[Match]:
        node = graph.producer(operand) if isinstance(operand, str) else None
        if node is None:
            return
        factors = _Factors()
        factors.multiply(graph, node)
        if len(factors.above) + len(factors.below) == len(self.factors) and math.isclose(
            factors.coefficient, self.coefficient, rel_tol=_REL_TOL
        ):
            found = found.with_nodes(*factors.nodes)
            yield from self._assign(graph, self.factors, factors.above, factors.below, found)

    def _assign(
        self,
        graph: Graph,
        patterns: tuple[Pattern, ...],
        above: list[str],
        below: list[str],
        found: Match,
    ) -> Iterator[Match]:
        """Try every way to give each pattern a factor of its own."""
        if not patterns:
            yield found
            return
        first, rest = patterns[0], patterns[1:]
        is_below = isinstance(first, _Inverse)
        candidates = below if is_below else above
        for i, factor in enumerate(candidates):
            others = candidates[:i] + candidates[i + 1 :]
            left = (above, others) if is_below else (others, below)
            for extended in first.match(graph, factor, found):
                yield from self._assign(graph, rest, *left, extended)


class _Factors:
    """A tree of multiplications, divisions and small powers, multiplied out.

    A value that has other readers is not opened: it is a factor as it stands.
    """

    def __init__(self) -> None:
        self.coefficient = 1.0
        self.above: list[str] = []
        self.below: list[str] = []
        self.nodes: list[str] = []

    def multiply(self, graph: Graph, node: Node, sign: int = 1) -> None:
        """Multiply by what ``node`` computes (sign 1) or divide by it (sign -1)."""
        self.nodes.append(node.output)
        operands = node.operands()
        match node.op:
            case "MUL":
                signs = [1, 1]
            case "DIV":
                signs = [1, -1]
            case "RECIPROCAL":
                signs = [-1]
            case "SQUARE":
                operands, signs = operands * 2, [1, 1]
            case "POW" if operands[1] in (2, 3):
                signs = [1] * int(operands[1])
                operands = operands[:1] * len(signs)
            case _:
                self.nodes.pop()
                (self.above if sign > 0 else self.below).append(node.output)
                return
        for operand, operand_sign in zip(operands, signs, strict=True):
            self._multiply_operand(graph, node, operand, sign * operand_sign)

    def _multiply_operand(self, graph: Graph, node: Node, operand: Operand, sign: int) -> None:
        if not isinstance(operand, str):
            if sign < 0:
                operand = 1 / operand if operand else math.nan  # nan equals no coefficient
            self.coefficient *= operand
            return
        producer = graph.producer(operand)
        if producer is not None and graph.sole_consumer(operand) is node:
            self.multiply(graph, producer, sign)
        else:
            (self.above if sign > 0 else self.below).append(operand)


def _match_all(
    graph: Graph, patterns: tuple[Pattern, ...], operands: list[Operand], found: Match
) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    for extended in patterns[0].match(graph, operands[0], found):
        yield from _match_all(graph, patterns[1:], operands[1:], extended)


def tensor(where: Callable[[TensorSpec], bool] | None = None) -> Pattern:
    """Match any tensor, or any whose spec satisfies ``where``."""
    return _Tensor(where)


def number(value: float | None = None) -> Pattern:
    """Match a number: any, or ``value`` as near as float32 can tell."""
    return _Number(value)


def either(*choices: Pattern) -> Pattern:
    """Match the first of several formulas that fits."""
    return _Either(choices)


def op(name: str, *operands: Pattern | float, **attrs: Any) -> Pattern:
    """Match a node of op ``name`` with these operands (any, if none are given) and attr values.

    The operands of a commutative op match in either order.
    """
    return _Op(name, tuple(_pattern(operand) for operand in operands), attrs)


def product(*factors: Pattern | float) -> Pattern:
    """Match a product in whatever order and grouping: of MUL, DIV, RECIPROCAL, SQUARE, POW 2 or 3.

    Numbers among the factors are multiplied up. List the most particular factors first.
    """
    coefficient = math.prod(f for f in factors if not isinstance(f, Pattern))
    return _Product(float(coefficient), tuple(f for f in factors if isinstance(f, Pattern)))


def inverse(value: Pattern) -> Pattern:
    """Match one over ``value``, as a factor of a product."""
    return _Inverse(value)


def _pattern(operand: Pattern | float) -> Pattern:
    return operand if isinstance(operand, Pattern) else _Number(operand)


def find(graph: Graph, node: Node, pattern: Pattern) -> Match | None:
    """Return the first match of ``pattern`` at ``node`` whose inner values nothing else needs."""
    for match in pattern.match(graph, node.output, Match({}, frozenset())):
        inner = match.nodes - {node.output}
        if not any(
            graph.is_output(name) or any(c.output not in match.nodes for c in graph.consumers(name))
            for name in inner
        ):
            return match
    return None


#: Rewrites the graph at one node if it can; says whether it did.
Rule = Callable[[Graph, Node], bool]


def rewrite(graph: Graph, *rules: Rule) -> bool:
    """Apply rules at each node until none applies to it any more, producers first.

    Every rule must lower something that the others do not raise, or this never ends.

    Returns
    -------
    bool
        Whether anything changed.
    """
    changed = False
    for node in graph.order():
        # a rewrite may have removed this node, or nodes further down the list
        while graph.producer(node.output) is node and any(
            _applies(rule, graph, node) for rule in rules
        ):
            changed = True
    return changed


def _applies(rule: Rule, graph: Graph, node: Node) -> bool:
    """Try a rule; one that asks what some sizes fulfil and others do not changes nothing."""
    name = node.output
    try:
        changed = rule(graph, node)
    except UndecidedError:
        return False
    if changed:
        graph.listener.fired(rule.__name__.lstrip("_"), name)
    return changed
