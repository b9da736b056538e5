"""Run passes, in order or repeatedly until nothing changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.listener import Listener
from taper_runtime.base.errors import InternalError
from taper_runtime.base.records import NamedTuple

#: Rewrites a graph in place; says whether it changed anything.
Pass = Callable[[Graph], bool]

_MAX_ROUNDS = 100  # of a group; the deepest model needs a handful

_LOGGER = logging.getLogger("taper_frontend.passes")


class Group:
    """A pass that repeats several passes until none of them changes the graph."""

    def __init__(self, *passes: Pass) -> None:
        self.passes = passes

    def __call__(self, graph: Graph) -> bool:
        """Run the group on ``graph``."""
        return run_until_stable(graph, self.passes)


class Form(NamedTuple):
    """Something that a graph no longer has after a stage.

    Attributes
    ----------
    absent : str
        What, in words: "no ...".
    found_by : pass
        It changes a graph that has it, and no other.
    """

    absent: str
    found_by: Pass


@dataclass(frozen=True)
class Stage:
    """A part of the pipeline: passes, and the form that the graph has after them.

    Attributes
    ----------
    name : str
    steps : tuple of passes
        In order; those of a :class:`Group` until they are stable.
    form : tuple of Form
        What the graph no longer has after this stage.
    keeps : tuple of passes
        They restore the form of earlier stages: each runs with every group of this one, and all do
        after the last step.
    """

    name: str
    steps: tuple[Pass, ...]
    form: tuple[Form, ...]
    keeps: tuple[Pass, ...] = ()

    def passes(self) -> list[Pass]:
        """Return what the stage runs, in order."""
        runs: list[Pass] = [
            Group(*step.passes, *self.keeps) if isinstance(step, Group) else step
            for step in self.steps
        ]
        return [*runs, Group(*self.keeps)] if self.keeps else runs

    def __call__(self, graph: Graph) -> bool:
        """Run the stage on ``graph``."""
        changed = [pass_(graph) for pass_ in self.passes()]
        return any(changed)

    def check(self, graph: Graph) -> None:
        """Check that ``graph`` has the form.

        Raises
        ------
        InternalError
            If it has not, naming the stage, the node, what was expected and what is there.
        """
        for absent, found_by in self.form:
            listener = _First()
            twin = graph.copy()
            twin.listener = listener
            if found_by(twin):
                name, rule = listener.node or "?", listener.rule or name_of(found_by)
                node = graph.producers.get(name)
                raise InternalError(
                    f"after stage {self.name!r}: node {name!r}"
                    f"{f' ({node.op})' if node else ''}: expected {absent}, got what "
                    f"{rule!r} of {name_of(found_by)} would change"
                )


class _First(Listener):
    """Remembers the first rule that is applied."""

    rule = node = ""

    def fired(self, rule: str, node: str) -> None:
        """Remember it if it is the first."""
        if not self.rule:
            self.rule, self.node = rule, node


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
    """Run ``passes`` in order, again and again, until none of them has anything to change.

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
    return _run_until_stable(passes, run or (lambda pass_: pass_(graph)), set())


def _run_until_stable(
    passes: Sequence[Pass], run: Callable[[Pass], bool], settled: set[int]
) -> bool:
    """Run passes until all are ``settled``: by id, those that find nothing in the graph."""
    changed = False
    changing: list[Pass] = []
    for _ in range(_MAX_ROUNDS):
        changing = []
        for pass_ in passes:
            if id(pass_) in settled:
                continue
            if run(pass_):
                changing.append(pass_)
                settled.clear()
            else:
                settled.add(id(pass_))
        if not changing:
            return changed
        changed = True
    names = ", ".join(name_of(pass_) for pass_ in changing)
    raise InternalError(f"passes never settle: after {_MAX_ROUNDS} rounds {names} still change")


def run_pipeline(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    verify: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> list[PassRecord]:
    """Run ``passes`` in order on ``graph``; those of a :class:`Group` until they are stable.

    Parameters
    ----------
    graph : Graph
    passes : sequence of passes
        Stages, groups and passes; a user's own may be among them.
    verify : bool
        Check the graph after every pass, and its form after every :class:`Stage`.
    step : callable
        Gets the stage, if the pass is part of one, and the name of each pass before it runs.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    InternalError
        If a group never settles; with ``verify``, if a pass breaks the graph, or a stage leaves
        what its form says is gone.
    """
    records: list[PassRecord] = []
    ops = _ops(graph)
    settled: set[int] = set()
    stage = ""

    def run(pass_: Pass) -> bool:
        nonlocal ops
        step(f"{stage}: {name_of(pass_)}" if stage else name_of(pass_))
        graph.listener.enter(stage, name_of(pass_))
        before = len(graph.nodes)
        changed = pass_(graph)
        graph.listener.leave()
        new_ops = _ops(graph) if changed else ops
        names = sorted({*ops, *new_ops} if changed else ())
        ops_changed = {op: new_ops[op] - ops[op] for op in names if new_ops[op] != ops[op]}
        ops = new_ops
        records.append(PassRecord(name_of(pass_), before, len(graph.nodes), changed, ops_changed))
        _log(records[-1], graph)
        if verify:
            try:
                graph.verify()
            except InternalError as error:
                raise InternalError(f"after {name_of(pass_)}: {error}") from error
        return changed

    def run_all(passes: Sequence[Pass]) -> None:
        for pass_ in passes:
            if isinstance(pass_, Group):
                _run_until_stable(pass_.passes, run, settled)
            elif run(pass_):
                settled.clear()

    _dump("before all passes", graph)
    for pass_ in passes:
        if isinstance(pass_, Stage):
            stage = pass_.name
            run_all(pass_.passes())
            if verify:
                pass_.check(graph)
        else:
            stage = ""
            run_all([pass_])
    return records


def _ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes.values())


def _log(record: PassRecord, graph: Graph) -> None:
    """Tell what a pass did; and, to those who want all, the graph that it left."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return
    ops = ", ".join(f"{count:+d} {op}" for op, count in record.ops.items())
    did = f"changed: {record.before} -> {record.after} nodes" if record.changed else "no change"
    _LOGGER.info("%s: %s%s", record.name, did, f" ({ops})" if ops else "")
    if record.changed:
        _dump(f"after {record.name}", graph)


def _dump(when: str, graph: Graph) -> None:
    """Show the graph as it is now: a handler may look at a record later."""
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("%s:\n%s", when, str(graph))


def name_of(pass_: Pass) -> str:
    """Return what a stage or a pass is called."""
    if isinstance(pass_, Stage):
        return pass_.name
    return getattr(pass_, "__name__", type(pass_).__name__)
