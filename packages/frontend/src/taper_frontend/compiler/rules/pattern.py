"""Define the language of rules: a pattern describes a subgraph by a formula.

A pattern is built from a few pieces and matched against the tensor that a node produces::

    x = tensor()
    silu = product(x, op("SIGMOID", x))

    for match in matches(graph, node, silu):
        print(match[x])

A piece is bound to what it matched. A piece that occurs twice in a formula must match the same
tensor twice: above, both ``x`` are one tensor. ``match[piece]`` is what the piece was bound to.

A match is found only if nothing else needs the values inside it: every tensor between the root and
the leaves is read only by the match and is not an output of the graph (the sole-consumer rule).
:func:`shared` removes this restriction for a part of the formula.

The same pieces build the replacement of a match (:mod:`.engine`): ``op("SILU", x)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node, Operand
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import TensorSpec

# relative tolerance between a number in a formula and a user's number, perhaps in float32
_REL_TOL = 1e-6


@dataclass(frozen=True, slots=True)
class Match:
    """The tensors, attrs and numbers that the pieces of a pattern matched.

    Attributes
    ----------
    graph : Graph
    node : Node
        The root: the node at which the pattern was matched.
    bound : mapping of Pattern to tensor name, number or attr value
    inner : frozenset of str
        The outputs of the nodes in the match, including the root, without shared ones.
    """

    graph: Graph
    node: Node
    bound: Mapping[Pattern, Any]
    inner: frozenset[str]

    def __getitem__(self, piece: Pattern) -> Any:
        """Return the tensor name, the number or the attr value to which ``piece`` was bound."""
        return self.bound[piece]

    def type(self, piece: Pattern) -> TensorType:
        """Return the type of the tensor to which ``piece`` was bound."""
        return self.graph.tensors[self.bound[piece]].type

    @property
    def output(self) -> TensorType:
        """Return the type of the root's output."""
        return self.graph.tensors[self.node.output].type

    def producer(self, piece: Pattern) -> Node:
        """Return the node to which ``piece``, an :func:`op`, was bound."""
        return self.graph.nodes[self.bound[piece]]

    def bind(self, piece: Pattern, value: Any) -> Match:
        """Return the match with one more piece bound."""
        return Match(self.graph, self.node, {**self.bound, piece: value}, self.inner)

    def with_inner(self, outputs: Iterable[str]) -> Match:
        """Return the match with more nodes in it."""
        return Match(self.graph, self.node, self.bound, self.inner.union(outputs))


class Pattern:
    """A part of a pattern. Compared by identity: each part denotes one value."""

    def match(self, operand: Any, found: Match) -> Iterator[Match]:
        """Yield every way in which ``operand`` can be this piece, given the match so far."""
        if self in found.bound:
            if found.bound[self] == operand:
                yield found
            return
        for extended in self._match(operand, found):
            yield extended.bind(self, operand)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        raise NotImplementedError

    def may_match(self, graph: Graph, operand: Any) -> bool:
        """Return False only if ``operand`` cannot be this piece, as a fast check."""
        return True

    def roots(self) -> frozenset[str] | None:
        """Return the ops whose nodes this piece can match; None for any."""
        return None

    def parts(self) -> tuple[Pattern, ...]:
        """Return the pieces of which this one is made."""
        return ()


@dataclass(frozen=True, eq=False)
class _Tensor(Pattern):
    dtype: str | None
    where: Callable[[TensorSpec], bool] | None

    def may_match(self, graph: Graph, operand: Any) -> bool:
        return isinstance(operand, str) and self.dtype in (None, graph.tensors[operand].dtype)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        if self.may_match(found.graph, operand) and (
            self.where is None or self.where(found.graph.tensors[operand])
        ):
            yield found


@dataclass(frozen=True, eq=False)
class _Constant(Pattern):
    value: float | None

    def may_match(self, graph: Graph, operand: Any) -> bool:
        return operand in graph.constants

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        if not isinstance(operand, str) or not found.graph.is_constant(operand):
            return
        if self.value is not None:
            array = found.graph.value(operand)
            if array is None or not (array == self.value).all():
                return
        yield found


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A number: the result of :func:`number`, or a number in a formula."""

    value: float | None

    def may_match(self, graph: Graph, operand: Any) -> bool:
        """Compare the numbers."""
        if isinstance(operand, str):
            return False
        return self.value is None or _equal(operand, self.value)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        if self.may_match(found.graph, operand):
            yield found


@dataclass(frozen=True, eq=False)
class _Attr(Pattern):
    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        yield found


@dataclass(frozen=True, eq=False)
class _Either(Pattern):
    choices: tuple[Pattern, ...]

    def may_match(self, graph: Graph, operand: Any) -> bool:
        return any(choice.may_match(graph, operand) for choice in self.choices)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        for choice in self.choices:
            yield from choice.match(operand, found)

    def roots(self) -> frozenset[str] | None:
        ops: frozenset[str] = frozenset()
        for choice in self.choices:
            of_choice = choice.roots()
            if of_choice is None:
                return None
            ops |= of_choice
        return ops

    def parts(self) -> tuple[Pattern, ...]:
        return self.choices


@dataclass(frozen=True, eq=False)
class _Shared(Pattern):
    part: Pattern

    def may_match(self, graph: Graph, operand: Any) -> bool:
        return self.part.may_match(graph, operand)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        for extended in self.part.match(operand, found):
            yield Match(found.graph, found.node, extended.bound, found.inner)

    def roots(self) -> frozenset[str] | None:
        return self.part.roots()

    def parts(self) -> tuple[Pattern, ...]:
        return (self.part,)


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """A node: the result of :func:`op`. In a replacement, the node to make."""

    names: frozenset[str]
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Any]

    def may_match(self, graph: Graph, operand: Any) -> bool:
        """Compare the ops of the node, and of the nodes it reads."""
        node = graph.producers.get(operand) if isinstance(operand, str) else None
        if node is None or node.op not in self.names:
            return False
        if not self.operands:
            return True
        operands = node.operands()
        if len(operands) != len(self.operands):
            return False
        return self._may_read(graph, operands) or (
            node.definition.commutes and self._may_read(graph, operands[::-1])
        )

    def _may_read(self, graph: Graph, operands: list[Operand]) -> bool:
        pairs = zip(self.operands, operands, strict=True)
        return all(piece.may_match(graph, operand) for piece, operand in pairs)

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        """Match attrs and operands; operands of a commutative op also in reverse order."""
        node = found.graph.producers.get(operand) if isinstance(operand, str) else None
        if node is None or node.op not in self.names:
            return
        found = found.with_inner((node.output,))
        if not self.attrs and not self.operands:
            yield found
            return
        for with_attrs in self._match_attrs(node, found) if self.attrs else (found,):
            if not self.operands:
                yield with_attrs
                continue
            operands = node.operands()
            if len(self.operands) != len(operands):
                return
            yield from _match_all(self.operands, operands, with_attrs)
            if node.definition.commutes:
                yield from _match_all(self.operands, operands[::-1], with_attrs)

    def _match_attrs(self, node: Node, found: Match) -> Iterator[Match]:
        attrs = node.complete_attrs()
        pieces = []
        for name, value in self.attrs.items():
            if isinstance(value, Pattern):
                pieces.append((value, attrs[name]))
            elif attrs[name] != value:
                return
        yield from _match_all([piece for piece, _ in pieces], [value for _, value in pieces], found)

    def roots(self) -> frozenset[str]:
        """Return the ops."""
        return self.names

    def parts(self) -> tuple[Pattern, ...]:
        """Return the operands and the pieces among the attrs."""
        pieces = [value for value in self.attrs.values() if isinstance(value, Pattern)]
        return (*self.operands, *pieces)


@dataclass(frozen=True, eq=False)
class Like(Pattern):
    """A node to make: the result of :func:`like`."""

    model: Pattern
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Any]

    def parts(self) -> tuple[Pattern, ...]:
        """Return the model, the operands and the pieces among the attrs."""
        pieces = [value for value in self.attrs.values() if isinstance(value, Pattern)]
        return (self.model, *self.operands, *pieces)


@dataclass(frozen=True, eq=False)
class TensorName(Pattern):
    """A tensor of the graph in a replacement that a function returns."""

    name: str


@dataclass(frozen=True, eq=False)
class _Inverse(Pattern):
    """A factor in the denominator of a product; matched like ``value``."""

    value: Pattern

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        yield from self.value.match(operand, found)

    def parts(self) -> tuple[Pattern, ...]:
        return (self.value,)


@dataclass(frozen=True, eq=False)
class _Product(Pattern):
    coefficient: float
    factors: tuple[Pattern, ...]

    def may_match(self, graph: Graph, operand: Any) -> bool:
        node = graph.producers.get(operand) if isinstance(operand, str) else None
        return node is not None and node.op in _MULTIPLICATIVE

    def _match(self, operand: Any, found: Match) -> Iterator[Match]:
        node = found.graph.producers.get(operand) if isinstance(operand, str) else None
        if node is None:
            return
        factors = _Factors(len(self.factors))
        factors.multiply(found.graph, node)
        if factors.count == len(self.factors) and math.isclose(
            factors.coefficient, self.coefficient, rel_tol=_REL_TOL
        ):
            found = found.with_inner(factors.nodes)
            yield from self._assign(self.factors, factors.above, factors.below, found)

    def _assign(
        self, patterns: tuple[Pattern, ...], above: list[str], below: list[str], found: Match
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
            for extended in first.match(factor, found):
                yield from self._assign(rest, *left, extended)

    def roots(self) -> frozenset[str]:
        return _MULTIPLICATIVE

    def parts(self) -> tuple[Pattern, ...]:
        return self.factors


#: The ops of which a product may consist.
_MULTIPLICATIVE = frozenset({"MUL", "DIV", "RECIPROCAL", "SQUARE", "POW"})


class _Factors:
    """A tree of multiplications, divisions and small powers, expanded to factors.

    A value with other readers is not expanded; it is a factor itself.

    Parameters
    ----------
    most : int
        The most factors; a product may have as many as the model has layers.
    """

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 1
        self.coefficient = 1.0
        self.above: list[str] = []
        self.below: list[str] = []
        self.nodes: list[str] = []

    def multiply(self, graph: Graph, node: Node, sign: int = 1) -> None:
        """Multiply by the output of ``node`` (sign 1), or divide by it (sign -1)."""
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
        self.count += sum(isinstance(operand, str) for operand in operands) - 1
        if self.count > self.most:
            return
        for operand, operand_sign in zip(operands, signs, strict=True):
            self._multiply_operand(graph, node, operand, sign * operand_sign)

    def _multiply_operand(self, graph: Graph, node: Node, operand: Operand, sign: int) -> None:
        if not isinstance(operand, str):
            if sign < 0:
                operand = 1 / operand if operand else math.nan  # nan equals no coefficient
            self.coefficient *= operand
            return
        producer = graph.producers.get(operand)
        if producer is not None and graph.sole_consumer(operand) is node:
            self.multiply(graph, producer, sign)
        else:
            (self.above if sign > 0 else self.below).append(operand)


def _match_all(
    patterns: tuple[Pattern, ...] | list[Pattern], operands: list[Any], found: Match
) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    for extended in patterns[0].match(operands[0], found):
        yield from _match_all(patterns[1:], operands[1:], extended)


def _equal(number: float, value: float) -> bool:
    """Return whether a user's number is ``value``, which float32 may not represent exactly."""
    if float(np.float32(value)) == value:
        return number == value
    return math.isclose(number, value, rel_tol=_REL_TOL)


def tensor(
    dtype: str | None = None, *, where: Callable[[TensorSpec], bool] | None = None
) -> Pattern:
    """Match any tensor, or any of a dtype, or any whose spec satisfies ``where``."""
    return _Tensor(dtype, where)


def constant(value: float | None = None) -> Pattern:
    """Match any constant, or any whose elements all equal ``value``."""
    return _Constant(value)


def number(value: float | None = None) -> Pattern:
    """Match any number, or ``value`` within the precision of float32."""
    return Number(value)


def attr() -> Pattern:
    """Match any value of an attr: ``op("SUM", x, axes=attr())``."""
    return _Attr()


def either(*choices: Pattern) -> Pattern:
    """Match the first of several formulas that fits."""
    return _Either(choices)


def shared(part: Pattern) -> Pattern:
    """Match like ``part``, whose values may be outputs and may have readers outside the match."""
    return _Shared(part)


def op(name: str | Iterable[str], /, *operands: Pattern | str | float, **attrs: Any) -> Pattern:
    """Match a node of an op with these operands (any, if none are given) and attr values.

    The operands of a commutative op match in either order.

    Parameters
    ----------
    name : str or iterable of str
        The op, or several, of which the node must have one.
    *operands : Pattern, number or str
        A str, the name of a tensor, is allowed only in a replacement.
    **attrs
        Plain data, or a piece that is bound to the attr's value. In a replacement also a function
        of the match.
    """
    names = frozenset((name,) if isinstance(name, str) else name)
    return OpPattern(names, tuple(_piece(operand) for operand in operands), attrs)


def like(model: Pattern, /, *operands: Pattern | str | float, **attrs: Any) -> Pattern:
    """Make, in a replacement, a node with the op and the attrs of ``model``, except those given."""
    return Like(model, tuple(_piece(operand) for operand in operands), attrs)


def product(*factors: Pattern | float) -> Pattern:
    """Match a product in any order and grouping, of MUL, DIV, RECIPROCAL, SQUARE, POW 2 or 3.

    Numbers among the factors are multiplied together. List the most specific factors first.
    """
    coefficient = math.prod(f for f in factors if not isinstance(f, Pattern))
    return _Product(float(coefficient), tuple(f for f in factors if isinstance(f, Pattern)))


def inverse(value: Pattern) -> Pattern:
    """Match one over ``value``, as a factor of a product."""
    return _Inverse(value)


def _piece(operand: Pattern | str | float) -> Pattern:
    if isinstance(operand, Pattern):
        return operand
    return TensorName(operand) if isinstance(operand, str) else Number(operand)


def matches(graph: Graph, node: Node, pattern: Pattern) -> Iterator[Match]:
    """Yield the matches of ``pattern`` at ``node`` whose inner values nothing else needs."""
    if isinstance(pattern, OpPattern) and not pattern.operands and not pattern.attrs:
        if node.op in pattern.names:
            yield Match(graph, node, {pattern: node.output}, frozenset((node.output,)))
        return
    if not pattern.may_match(graph, node.output):
        return
    for match in pattern.match(node.output, Match(graph, node, {}, frozenset())):
        if len(match.inner) < 2 or not _is_needed_outside(graph, node, match.inner):
            yield match


def _is_needed_outside(graph: Graph, root: Node, inner: frozenset[str]) -> bool:
    return any(
        graph.is_output(name) or any(c.output not in inner for c in graph.consumers(name))
        for name in inner
        if name != root.output
    )
