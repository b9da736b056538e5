"""Run passes in order, or repeatedly until nothing changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.listener import Listener
from taper_runtime.base.errors import InternalError
from taper_runtime.base.records import NamedTuple

#: A function that rewrites a graph in place and returns whether it changed anything.
Pass = Callable[[Graph], bool]

_MAX_ROUNDS = 100  # rounds of a group; the deepest model needs a handful

_LOGGER = logging.getLogger("taper_frontend.passes")


class Group:
    """A pass that repeats several passes until none of them changes the graph."""

    def __init__(self, *passes: Pass) -> None:
        self.passes = passes

    def __call__(self, graph: Graph) -> bool:
        """Run the group on ``graph``."""
        return run_until_stable(graph, self.passes)


class Form(NamedTuple):
    """A property of a graph after a stage: the absence of something.

    Attributes
    ----------
    absent : str
        A description of what is absent: "no ...".
    found_by : pass
        A pass that changes a graph if and only if the graph still has it.
    """

    absent: str
    found_by: Pass


@dataclass(frozen=True)
class Stage:
    """A part of the pipeline: passes, and the form of the graph after them.

    Attributes
    ----------
    name : str
    steps : tuple of passes
        The passes in order; those of a :class:`Group` are repeated until they are stable.
    form : tuple of Form
        The form of the graph after this stage.
    keeps : tuple of passes
        Passes that restore the form of earlier stages. They run as part of each group of this
        stage, and after the last step.
    """

    name: str
    steps: tuple[Pass, ...]
    form: tuple[Form, ...]
    keeps: tuple[Pass, ...] = ()

    def passes(self) -> list[Pass]:
        """Return everything that the stage runs, in order."""
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
        """Check that ``graph`` has the stage's form.

        Raises
        ------
        InternalError
            If it does not; the message names the stage, the node, the expected and the actual form.
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
                    f"{f' ({node.op})' if node else ''}: expected {absent}, but "
                    f"rule {rule!r} of {name_of(found_by)} would change it"
                )


class _First(Listener):
    """A listener that remembers the first rule that is applied."""

    rule = node = ""

    def fired(self, rule: str, node: str) -> None:
        """Remember the rule if it is the first."""
        if not self.rule:
            self.rule, self.node = rule, node


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The result of one run of one pass.

    Attributes
    ----------
    name : str
    before, after : int
        The number of nodes in the graph before and after.
    changed : bool
        Whether the pass reported a change.
    ops : mapping of str to int
        The change in the number of nodes of each op whose count changed.
    """

    name: str
    before: int
    after: int
    changed: bool
    ops: Mapping[str, int]


def run_until_stable(
    graph: Graph, passes: Sequence[Pass], run: Callable[[Pass], bool] | None = None
) -> bool:
    """Run ``passes`` in order, repeatedly, until none of them changes anything.

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
        If the passes undo each other's work forever; the message names those that still change
        something.
    """
    return _run_until_stable(passes, run or (lambda pass_: pass_(graph)), set())


def _run_until_stable(
    passes: Sequence[Pass], run: Callable[[Pass], bool], settled: set[int]
) -> bool:
    """Run passes until all are ``settled``, by id: they find nothing to change."""
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
    raise InternalError(
        f"expected passes to change nothing after {_MAX_ROUNDS} rounds, but {names} did"
    )


def run_pipeline(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    verify: bool = False,
    step: Callable[[str], None] | None = None,
) -> list[PassRecord]:
    """Run ``passes`` in order on ``graph``; groups are repeated until they are stable.

    Parameters
    ----------
    graph : Graph
    passes : sequence of passes
        Stages, groups and passes, including users' passes.
    verify : bool
        Check the graph after every pass, and its form after every :class:`Stage`.
    step : callable, optional
        Called before each pass with its name, and the stage if the pass is part of one.

    Returns
    -------
    list of PassRecord
        One per run of a pass, in order.

    Raises
    ------
    InternalError
        If a group never becomes stable; with ``verify`` also if a pass breaks the graph, or the
        graph lacks a stage's form afterwards.
    """
    records: list[PassRecord] = []
    ops = _ops(graph)
    settled: set[int] = set()
    stage = ""

    def run(pass_: Pass) -> bool:
        """Run one pass and append its record; return whether it changed the graph."""
        nonlocal ops
        name = name_of(pass_)
        if step is not None:
            step(f"{stage}: {name}" if stage else name)
        graph.listener.enter(stage, name)
        before = len(graph.nodes)
        changed = pass_(graph)
        new_ops = _ops(graph) if changed else ops
        names = sorted({*ops, *new_ops} if changed else ())
        ops_changed = {op: new_ops[op] - ops[op] for op in names if new_ops[op] != ops[op]}
        ops = new_ops
        records.append(PassRecord(name, before, len(graph.nodes), changed, ops_changed))
        _log(records[-1], graph)
        if verify:
            try:
                graph.verify()
            except InternalError as error:
                raise InternalError(f"after {name}: {error}") from error
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
    graph.listener.leave()
    return records


def _ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes.values())


def _log(record: PassRecord, graph: Graph) -> None:
    """Log what a pass did; at the finest level also the graph after it."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        return
    ops = ", ".join(f"{count:+d} {op}" for op, count in record.ops.items())
    did = f"changed: {record.before} -> {record.after} nodes" if record.changed else "no change"
    _LOGGER.info("%s: %s%s", record.name, did, f" ({ops})" if ops else "")
    if record.changed:
        _dump(f"after {record.name}", graph)


def _dump(when: str, graph: Graph) -> None:
    """Log the graph as text now, because handlers may format a record later."""
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("%s:\n%s", when, str(graph))


def name_of(pass_: Pass) -> str:
    """Return the name of a stage, a group or a pass."""
    if isinstance(pass_, Stage):
        return pass_.name
    return getattr(pass_, "__name__", type(pass_).__name__)
