"""Apply rewrite rules: try each pattern at every node, and replace the matches.

A simple rule is a line of algebra::

    x = tensor()
    simplify = RuleSet(
        "simplify",
        Rule("x * 1", op("MUL", x, 1), x),
        Rule("x ** 2", op("POW", x, 2), op("SQUARE", x)),
    )

A :class:`RuleSet` is a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import Node
from taper_frontend.compiler.rules.pattern import (
    Like,
    Match,
    Number,
    OpPattern,
    Pattern,
    TensorName,
    matches,
)
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.sizes import UndecidedError

#: A function that rewrites the graph at one node if it can, and returns whether it did.
Step = Callable[[Graph, Node], bool]

#: The result of a function of a match: a replacement; True if it has changed the graph itself; None
#: or False if the rule does not apply.
Replacement = Pattern | bool | None

#: How often steps may change one node in a row, beside once for each operand.
_MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite rule: a pattern, and its replacement.

    Attributes
    ----------
    name : str
        The rule's name in traces and errors.
    pattern : Pattern
        The pattern that the node must match.
    rewrite : Pattern or callable
        The replacement. An :func:`.op` or :func:`.like` replaces the node; its operands are pieces
        that the pattern binds, numbers, or further nodes to make. A piece that the pattern binds
        replaces the node's output for all readers; then the rule applies only if the types are
        equal. If no formula is enough, a function of the :class:`.Match`, which returns one of the
        above; True if it has changed the graph itself; None or False if the rule does not apply.
    where : callable, optional
        A condition on the :class:`.Match`.
    """

    name: str
    pattern: Pattern
    rewrite: Pattern | Callable[[Match], Replacement]
    where: Callable[[Match], bool] | None = None

    def __post_init__(self) -> None:
        """Check that a formula uses only pieces that the pattern binds.

        Raises
        ------
        ValueError
            If it is not.
        """
        if isinstance(self.rewrite, Pattern):
            unbound = [*_unbound(self.rewrite, set(_pieces(self.pattern)))]
            if unbound:
                raise ValueError(
                    f"rule {self.name!r}: expected a rewrite with variables of its pattern, "
                    f"got {unbound[0]}"
                )

    @property
    def roots(self) -> frozenset[str] | None:
        """Return the ops of the nodes at which the rule can apply; None for any op."""
        return self.pattern.roots()

    def __call__(self, graph: Graph, node: Node) -> bool:
        """Apply the rule at ``node`` if it matches there; return whether it did."""
        for match in matches(graph, node, self.pattern):
            if self.where is not None and not self.where(match):
                continue
            made = self.rewrite if isinstance(self.rewrite, Pattern) else self.rewrite(match)
            if made is True or (isinstance(made, Pattern) and _replace(match, made)):
                return True
        return False


class RuleSet:
    """A pass that applies rules until none of them applies.

    Every rule must lower something that the others do not raise, or they never settle. Where
    several apply at a node the first one does.

    Parameters
    ----------
    name : str
        Name of the pass.
    *rules : Rule
    """

    def __init__(self, name: str, *rules: Rule) -> None:
        self.__name__ = name
        self.rules = rules
        self._by_op = _Index(rules)

    def __repr__(self) -> str:
        return f"RuleSet({self.__name__!r}, {len(self.rules)} rules)"

    def __call__(self, graph: Graph) -> bool:
        """Rewrite ``graph``; return whether anything changed."""
        return _rewrite(graph, self._by_op.__getitem__)

    def at(self, op: str) -> tuple[Rule, ...]:
        """Return the rules that may apply at a node of this op, in order."""
        return self._by_op[op]


class _Index(dict[str, "tuple[Rule, ...]"]):
    """The rules that may apply at a node, by its op."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        super().__init__()
        self.rules = rules

    def __missing__(self, op: str) -> tuple[Rule, ...]:
        self[op] = tuple(r for r in self.rules if r.roots is None or op in r.roots)
        return self[op]


def rewrite(graph: Graph, *steps: Step, at: Collection[str] | None = None) -> bool:
    """Apply steps at each node until none applies, producers first.

    Every step must lower something that the others do not raise, or they never settle.

    Parameters
    ----------
    graph : Graph
    *steps : callable
    at : collection of str, optional
        The ops of the nodes to try; no step may apply at others.

    Returns
    -------
    bool
        Whether anything changed.

    Raises
    ------
    InternalError
        If steps apply to one node without end, naming the last of them and the node.
    """
    return _rewrite(graph, lambda op: steps if at is None or op in at else ())


def _rewrite(graph: Graph, steps_at: Callable[[str], Sequence[Step]]) -> bool:
    """Apply the steps for a node's op at each node until none applies.

    Raises
    ------
    InternalError
        If steps apply to one node without end, naming the last of them and the node.
    """
    changed = False
    for node in graph.order():
        left = _MOST_STEPS + len(node.inputs)
        # a step may have removed this node, or nodes further down the list
        while (steps := steps_at(node.op)) and graph.producers.get(node.output) is node:
            applied = next((step for step in steps if _applies(step, graph, node)), None)
            if applied is None:
                break
            changed = True
            left -= 1
            if not left:
                raise InternalError(
                    f"rule {_name(applied)!r} at node {node.output!r} ({node.op}): expected at "
                    f"most {_MOST_STEPS} changes, got more"
                )
    return changed


def _applies(step: Step, graph: Graph, node: Node) -> bool:
    """Try a step; a condition that holds for only some sizes counts as false.

    Raises
    ------
    InternalError
        If it makes a node that the op does not accept; the message names the rule and the node.
    """
    name, op = node.output, node.op
    try:
        changed = step(graph, node)
    except UndecidedError:
        return False
    except (OpError, InternalError) as error:
        raise InternalError(f"rule {_name(step)!r} at node {name!r} ({op}): {error}") from error
    if changed:
        graph.listener.fired(_name(step), name)
    return changed


def _name(step: Step) -> str:
    return step.name if isinstance(step, Rule) else getattr(step, "__name__", "").lstrip("_")


# -- replacements ----------------------------------------------------------------------------------


def _pieces(pattern: Pattern) -> Iterable[Pattern]:
    """Yield ``pattern`` and all its parts."""
    yield pattern
    for part in pattern.parts():
        yield from _pieces(part)


def _unbound(made: Pattern, bound: set[Pattern]) -> Iterable[str]:
    """Yield the parts of a replacement that are neither bound nor nodes to make."""
    if made in bound:
        return
    if isinstance(made, OpPattern) and len(made.names) != 1:
        yield f"a choice of ops, {', '.join(sorted(made.names))}"
    elif isinstance(made, OpPattern | Like):
        for part in made.parts():
            yield from _unbound(part, bound)
    elif not isinstance(made, TensorName) and not (
        isinstance(made, Number) and made.value is not None
    ):
        yield f"{type(made).__name__.lstrip('_').lower()}()"


def _replace(match: Match, made: Pattern) -> bool:
    """Replace the match's root by ``made``; return whether the graph has changed."""
    graph, root = match.graph, match.node
    if made in match.bound or isinstance(made, TensorName):
        tensor = _operand(match, made, [])
        return graph.tensors[tensor].type == match.output and graph.bypass(root, tensor)
    added: list[str] = []
    try:
        graph.replace_node(root, *_definition(match, made, added))
    finally:
        graph.prune(added)
    return True


def _definition(
    match: Match, made: Pattern, added: list[str]
) -> tuple[str, list[str], dict[str, Any]]:
    """Return op, inputs and attrs of a node to make; new nodes are appended to ``added``."""
    attrs: dict[str, Any] = {}
    if isinstance(made, Like):
        model = match.producer(made.model)
        op, attrs = model.op, dict(model.attrs)
    elif isinstance(made, OpPattern):
        (op,) = made.names
    else:
        raise InternalError(f"expected a replacement, got {made}")
    operands = [_operand(match, operand, added) for operand in made.operands]
    attrs |= {name: _value(match, value) for name, value in made.attrs.items()}
    for index, operand in enumerate(operands):
        if not isinstance(operand, str):
            attrs |= {"scalar": operand, "scalar_index": index}
    return op, [operand for operand in operands if isinstance(operand, str)], attrs


def _operand(match: Match, made: Pattern, added: list[str]) -> Any:
    """Return the tensor or the number of an operand of a replacement."""
    if made in match.bound:
        return match[made]
    if isinstance(made, TensorName):
        return made.name
    if isinstance(made, OpPattern | Like):
        op, inputs, attrs = _definition(match, made, added)
        added.append(match.graph.add_node(op, inputs, attrs, source=match.node.source))
        return added[-1]
    if isinstance(made, Number) and made.value is not None:
        return made.value
    raise InternalError(f"expected an operand of a replacement, got {made}")


def _value(match: Match, value: Any) -> Any:
    """Return the value of an attr of a replacement."""
    if isinstance(value, Pattern):
        return match[value]
    return value(match) if callable(value) else value
