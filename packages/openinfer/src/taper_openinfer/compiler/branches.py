"""Lower branches and loops: inline, unrolled, or as a node with blocks."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.scope import POISON, Scope
from taper_openinfer.compiler.touched import all_nodes, index_names, touched
from taper_openinfer.language import graph as g
from taper_openinfer.language.kinds import accesses, returns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_openinfer.compiler.lower_program import ProgramLowering
    from taper_openinfer.language.graph import Branch, Loop, Node

#: A loop of at most so many nodes is unrolled, even if it could stay a loop.
_SHORT = 4096

#: A loop that must be unrolled may have at most so many nodes.
_LONGEST = 65_536


def lower_branch(lowering: ProgramLowering, scope: Scope, branch: Branch) -> None:
    """Lower a branch: a block, or a choice of two blocks by a scalar."""
    if branch.condition is None:
        lowering.block(scope, branch.then)
        return
    condition = lowering.load(scope, branch.condition)
    if scope.type(condition).dtype != "bool":
        condition = scope.binary("NE", condition, 0)
    graph, names = lowering.program.graph, [branch.then, branch.otherwise or branch.then]
    found = touched(graph, [node for name in names for node in graph.blocks[name].nodes])
    read = lowering.loaded(scope, found.names)
    written = lowering.loaded(scope, found.written)
    operands = [name for name in read if scope.values[name] not in scope.graph.constants]
    inners = []
    for name in names:
        inner = scope.inner(scope.graph.new_block(), read)
        lowering.block(inner, name)
        inners.append(inner)
    lowering.join(scope, inners, written)
    kept = [name for name in written if scope.values[name] != POISON]
    if not kept:
        return
    for inner in inners:
        inner.graph.set_outputs(inner.values[name] for name in kept)
    inputs = [scope.reshape(condition, ()), *(scope.values[name] for name in operands)]
    results = scope.graph.add_multi_output(
        "IF",
        inputs,
        blocks=[inner.graph for inner in inners],
        name=kept[0],
        source=scope.source,
    )
    scope.values.update(zip(kept, results, strict=True))


def lower_loop(lowering: ProgramLowering, scope: Scope, loop: Loop) -> bool:
    """Lower a loop; return whether its body contains a `return`."""
    start, end = (lowering.bound(scope, bound) for bound in (loop.start, loop.end))
    inside = list(all_nodes(lowering.program.graph, loop.body))
    if isinstance(start, int) and isinstance(end, int):
        count = max(end - start, 0) * _weight(lowering, loop.body)
        if count <= _SHORT or (reason := _reason_to_unroll(lowering, loop, inside)):
            if count > _LONGEST:
                raise CannotLower(
                    f"loop {loop.name}: {reason}, so it must be unrolled: expected at most "
                    f"{_LONGEST} nodes, got {count}"
                )
            return _unroll(lowering, scope, loop, range(start, end))
    elif reason := _reason_to_unroll(lowering, loop, inside):
        raise CannotLower(
            f"loop {loop.name}: {reason}, so it must be unrolled: expected fixed bounds, got "
            "bounds that depend on the run"
        )
    _lower_while(lowering, scope, loop, start, end)
    return False


def _weight(lowering: ProgramLowering, nodes: Sequence[Node]) -> int:
    """Count the nodes of a body, with inner loops of known bounds unrolled."""
    total = 0
    for node in nodes:
        total += 1
        if isinstance(node.kind, g.Loop):
            start, end = lowering.size(node.kind.start), lowering.size(node.kind.end)
            trips = 1 if start is None or end is None else max(end - start, 0)
            total += trips * _weight(lowering, node.kind.body)
    return max(total, 1)  # an empty body takes time too


def _unroll(lowering: ProgramLowering, scope: Scope, loop: Loop, values: range) -> bool:
    outer = scope.indices.get(loop.index)
    ended = False
    for value in values:
        scope.indices[loop.index] = value
        if ended := lowering.nodes(scope, loop.body):
            break
    if outer is None:
        scope.indices.pop(loop.index, None)
    else:
        scope.indices[loop.index] = outer
    return ended


def _reason_to_unroll(lowering: ProgramLowering, loop: Loop, inside: Sequence[Node]) -> str:
    """Return why a loop cannot be one node; empty if it can."""
    variables = lowering.program.variables
    if returns(loop.body):
        return "its body has a return"
    for node in inside:
        if isinstance(node.kind, g.Yield | g.Await):
            return "its body passes variables to blocks"
        if isinstance(node.kind, g.Loop) and loop.index in (node.kind.start, node.kind.end):
            return f"its index {loop.index} bounds another loop"
        for access in chain(*accesses(node.kind)):
            if loop.index not in index_names(access):
                continue
            if access.base in variables and variables[access.base].declaration.is_prefix_table:
                return f"its index {loop.index} names entries of {access.base}"
            cache = lowering.caches.get(access.base)
            if cache is not None and not cache.takes_tensors(access, loop.index):
                return f"its index {loop.index} decides shapes of {access.base}"
    return ""


def _lower_while(
    lowering: ProgramLowering, scope: Scope, loop: Loop, start: int | str, end: int | str
) -> None:
    """Lower a loop to one node, which carries the index and each variable the loop writes."""
    found = touched(lowering.program.graph, loop.body)
    read = lowering.loaded(scope, found.names)
    carried = lowering.loaded(scope, found.written)
    for name in carried:
        if name in scope.extents:
            scope.extents[name] = lowering.caches[name].at_start
    others = [n for n in read if n not in carried and scope.values[n] not in scope.graph.constants]
    own = [n for n in read if n not in carried and n not in others]
    counter, last = (_as_int64(scope, bound) for bound in (start, end))
    inputs = [counter, *(scope.values[name] for name in (*carried, *others)), last]

    def begin(graph: Graph) -> tuple[Scope, str, str]:
        inner = Scope(graph, scope.source, scope.lost(), dict(scope.extents), dict(scope.indices))
        index = graph.add_input(loop.index, "int64", ())
        for name in (*carried, *others):
            inner.values[name] = graph.add_input(name, *scope.type(scope.values[name])[:2])
        limit = graph.add_input("end", "int64", ())
        for name in own:
            inner.values[name] = inner.enter(scope, scope.values[name], name)
        return inner, index, limit

    test, index, limit = begin(scope.graph.new_block())
    test.graph.set_outputs([test.emit("LT", [index, limit])])
    body, index, _ = begin(scope.graph.new_block())
    body.indices[loop.index] = index
    lowering.nodes(body, loop.body)
    before = dict(scope.values)
    lowering.join(scope, [scope, body], carried)
    if any(scope.values[name] == POISON for name in carried):
        return
    body.graph.set_outputs([body.binary("ADD", index, 1), *(body.values[name] for name in carried)])
    scope.values = before
    results = scope.graph.add_multi_output(
        "WHILE",
        inputs,
        {"carries": 1 + len(carried)},
        blocks=[test.graph, body.graph],
        name=loop.name,
        source=scope.source,
    )
    scope.values.update(zip(carried, results[1:], strict=True))


def _as_int64(scope: Scope, bound: int | str) -> str:
    if isinstance(bound, int):
        return scope.constant(bound, "int64", "bound")
    return scope.cast(bound, "int64")
