"""Running passes: in order, or over and over until nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taper_frontend.compiler.graph.graph import Graph
from taper_runtime.errors import InternalError

#: Rewrites a graph in place; says whether it changed anything.
Pass = Callable[[Graph], bool]

_MAX_ROUNDS = 100  # of a group; the deepest model needs a handful


class Group:
    """Passes that make work for each other: a pass that runs them until none changes anything."""

    def __init__(self, *passes: Pass) -> None:
        self.passes = passes

    def __call__(self, graph: Graph) -> bool:
        """Run the group on ``graph``."""
        return run_until_stable(graph, self.passes)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one run of one pass did.

    Attributes
    ----------
    name : str
    before, after : int
        Nodes in the graph.
    changed : bool
        What the pass said.
    ops : mapping of str to int
        Nodes more (or, negative, fewer) of each op whose count changed.
    """

    name: str
    before: int
    after: int
    changed: bool
    ops: Mapping[str, int]


def run_until_stable(
    graph: Graph, passes: Sequence[Pass], run: Callable[[Pass], bool] | None = None
) -> bool:
    """Run ``passes`` in order, again and again, until none of them in a row changes anything.

    Parameters
    ----------
    graph : Graph
    passes : sequence of passes
    run : callable, optional
        Runs one pass on the graph.

    Returns
    -------
    bool
        Whether anything changed.

    Raises
    ------
    InternalError
        If the passes undo each other's work forever, naming those that still change something.
    """
    run = run or (lambda pass_: pass_(graph))
    changed = False
    changing: list[Pass] = []
    since = 0  # runs since the last that changed something
    for _ in range(_MAX_ROUNDS):
        changing = []
        for pass_ in passes:
            if since == len(passes):
                return changed
            since += 1
            if run(pass_):
                changing.append(pass_)
                changed, since = True, 0
        if since == len(passes):
            return changed
    names = ", ".join(_name(pass_) for pass_ in changing)
    raise InternalError(f"passes never settle: after {_MAX_ROUNDS} rounds {names} still change")


def run_pipeline(graph: Graph, passes: Sequence[Pass], *, verify: bool = False) -> list[PassRecord]:
    """Run ``passes`` in order on ``graph``; those of a :class:`Group` until they are stable.

    Parameters
    ----------
    graph : Graph
    passes : sequence of passes
        A user's own may be among them.
    verify : bool
        Check the graph after every pass.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    InternalError
        If a pass breaks the graph (with ``verify``), or a group never settles.
    """
    records: list[PassRecord] = []
    ops = _ops(graph)
    stage = ""

    def run(pass_: Pass) -> bool:
        nonlocal ops
        graph.listener.enter(stage, _name(pass_))
        before = len(graph.nodes)
        changed = pass_(graph)
        graph.listener.leave()
        new_ops = _ops(graph) if changed else ops
        names = sorted({*ops, *new_ops} if changed else ())
        ops_changed = {op: new_ops[op] - ops[op] for op in names if new_ops[op] != ops[op]}
        ops = new_ops
        records.append(PassRecord(_name(pass_), before, len(graph.nodes), changed, ops_changed))
        if verify:
            try:
                graph.verify()
            except InternalError as error:
                raise InternalError(f"after {_name(pass_)}: {error}") from error
        return changed

    for number, pass_ in enumerate(passes, 1):
        stage = f"{number}"
        if isinstance(pass_, Group):
            run_until_stable(graph, pass_.passes, run)
        else:
            run(pass_)
    return records


def _ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes.values())


def _name(pass_: Pass) -> str:
    return getattr(pass_, "__name__", type(pass_).__name__)
