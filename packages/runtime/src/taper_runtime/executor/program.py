"""Make the native program of a plan: its executed nodes, and the places of their operands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from taper_runtime.base.loading import watched
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor import _program
from taper_runtime.executor._run import Runner
from taper_runtime.executor.dispatching import find_implementations, kernel_attrs, runs_blocks
from taper_runtime.executor.executor import (
    DEFAULT_SETTINGS,
    Settings,
    definition,
    node_work,
    refuse,
)
from taper_runtime.executor.inputs import bind_inputs
from taper_runtime.executor.sites import executed_nodes, sites
from taper_runtime.extend.servers import NumpyServer, label_of
from taper_runtime.formats import counted_bytes
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.liveness import LiveRange, lifetimes
from taper_runtime.plan.tensor_kinds import Kinds

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    import numpy as np

    from taper_runtime.executor.rollback import Restore
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.ops.opdef import BlockFunction, TensorType
    from taper_runtime.plan.node_order import Order
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode, TensorSpec


#: A share of the time that all nodes take one after the other. Handing nodes to other workers
#: costs time too, and cache misses.
_WORTH_SHARE = 0.9


class Variables:
    """Size variables of a plan, whose values need not be known; reads them from a run's arrays.

    Attributes
    ----------
    names : list of str
    """

    def __init__(self, plan: Plan) -> None:
        self.names = list(plan.sizes)
        self._plan = plan

    def read(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Return the variables' values, in order, as input arrays give them.

        Raises
        ------
        InputError
            If the arrays do not fit the plan's inputs for any sizes.
        """
        values = bind_inputs(self._plan, arrays)
        return [values[name] for name in self.names]


def make_runner(plan: Plan, settings: Settings = DEFAULT_SETTINGS) -> Runner:
    """Return the native runner of a valid plan.

    Its inputs are ``plan.reads``, its outputs the distinct ones of ``plan.writes``, and its steps
    those of :func:`taper_runtime.executor.sites.sites`. At first it has an instance for
    :func:`example_sizes`.

    Parameters
    ----------
    plan : Plan
        A plan that saves the states which it overwrites:
        :func:`taper_runtime.executor.rollback.with_saves` returns it.
    settings : Settings

    Raises
    ------
    UnsupportedOpError
        If nothing in ``settings.dispatch`` computes some nodes; it lists all of them.
    InputError
        If the arena would be larger than the limit.
    """
    restores: list[Restore] = []
    if plan.states:
        from taper_runtime.executor.rollback import find_restores

        restores = find_restores(plan, executed_nodes(plan))
    nodes = executed_nodes(plan)
    kept = [name for restore in restores for name in restore.node.reads[1:]]
    outputs = list(dict.fromkeys(plan.writes))
    constants = constant_names(plan)
    places = {name: RootPlace(_program.CONSTANT, i) for i, name in enumerate(constants)}
    external = (*plan.reads, *outputs)
    places.update((name, RootPlace(_program.EXTERNAL, i)) for i, name in enumerate(external))
    builder = _StepBuilder(settings)
    scope = builder.add_body(plan, nodes, places, kept)[1]
    types = {spec.type for spec in _tensors(plan)} if plan.sizes else ()
    without = plan.without_values()
    program = _program.Program(
        inputs=[plan.tensors[name] for name in plan.reads],
        outputs=[plan.tensors[name] for name in outputs],
        n_constants=len(constants),
        steps=builder.steps,
        bodies=builder.bodies,
        restores=[(saved_by, _restoring(scope, node)) for saved_by, node in restores],
        threads=settings.threads,
        short_threads=settings.short_runs.threads,
        short_work=settings.short_runs.work,
        variables=Variables(without),
        tensor_bytes=[counted_bytes(tensor) for tensor in types],
        refuse=partial(_refuse, without, settings.dispatch),
        order=(
            _make_order(plan, nodes, kept, places, settings) if settings.nodes_at_once > 1 else None
        ),
        memory_budget=settings.memory_budget,
    )
    weights = _program.Weights([plan.constants[name] for name in constants])
    return Runner(program, weights, [*example_sizes(plan).values()], settings.pool)


def constant_names(plan: Plan) -> list[str]:
    """Return the names of the constants, in the order of the arrays of a runner's weights."""
    return [name for name in plan.constants if name not in plan.states]


def _make_order(
    plan: Plan,
    nodes: Sequence[PlanNode],
    kept: Sequence[str],
    places: Container[str],
    settings: Settings,
) -> _program.StepOrder | None:
    """Return which steps may run at the same time; None if none may, or if it saves little time."""
    from taper_runtime.plan.node_order import memory_before, order_of, users_of  # rarely needed

    order = order_of(plan, nodes)
    if order.is_total or _least_share(plan, order) > _WORTH_SHARE:
        return None
    users = users_of(nodes, _arena_roots(plan, places), kept)
    # a tensor that may not share memory is treated as if all nodes used it
    every = (1 << len(nodes)) - 1
    in_arena = [
        users[root] if settings.planning.enabled else every
        for root in arena_ranges(plan, nodes, kept, places)
    ]
    own = [1 << index for index in range(len(nodes))]
    before = memory_before(order, [*in_arena, *own])
    return _program.StepOrder(order.producers, before, min(settings.nodes_at_once, len(nodes)))


def _least_share(plan: Plan, order: Order) -> float:
    """Return the time of the longest chain of dependent nodes, as a share of that of all nodes.

    No run can take a smaller share of the time that all nodes take one after the other. Return 0
    if a node's time is not known: it has blocks, or numpy computes it.
    """
    from taper_runtime.machine.cost import alone_ns
    from taper_runtime.plan.specialize import specialize

    plan = specialize(plan, example_sizes(plan))
    nodes = executed_nodes(plan)
    if any(node.blocks or not definition(node)[0].native for node in nodes):
        return 0.0
    times = [alone_ns(node_work(plan, node)) for node in nodes]
    ends: list[float] = []
    for ns, waits_for in zip(times, order.producers, strict=True):
        ends.append(ns + max((ends[each] for each in waits_for), default=0.0))
    return max(ends) / sum(times)


def _refuse(plan: Plan, dispatch: Dispatch, indices: Sequence[int]) -> None:
    """Raise an error for the steps of a program that nothing serves."""
    found = {site.step: (site.plan, site.node) for site in sites(plan, dispatch)}
    refuse([found[index] for index in indices], dispatch)


def _restoring(scope: _Scope, node: PlanNode) -> _program.Step:
    """Return the step of a node that restores a state after the run: numpy computes it."""
    op, attrs = definition(node)
    inputs = [None if name is None else scope.operand(name) for name in node.inputs]
    outputs = [scope.operand(name) for name in node.outputs]
    server = NumpyServer(op, label_of(node))
    return _program.Step(op, attrs, inputs, outputs, label=node.output, server=server)


class RootPlace(NamedTuple):
    """Location of a root's memory; see ``Operand``."""

    kind: int
    number: int
    offset: int = 0
    along: tuple[tuple[int, int], ...] = ()

    def in_scan(self, step: int, nbytes: int) -> RootPlace:
        """Return the location of slices of this many bytes in the iterations of a scan."""
        return self._replace(along=(*self.along, (step, nbytes)))


class _StepBuilder:
    """Builder of the steps and bodies of a plan's nodes and blocks.

    Attributes
    ----------
    steps : list of Step
    bodies : list of Body
        Each follows the body that contains it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shares = max(settings.threads, settings.short_runs.threads) > 1
        self.steps: list[Any] = []
        self.bodies: list[Any] = []
        self._n_roots = 0

    def add_body(
        self,
        plan: Plan,
        nodes: Sequence[PlanNode],
        places: Mapping[str, RootPlace],
        kept: Sequence[str],
    ) -> tuple[int, _Scope]:
        """Add the executed nodes of a plan, or of a block as a plan of its own.

        ``places`` are the places of roots outside the body's part of the arena; tensors in ``kept``
        are needed to the end. Return the body's number and its scope.
        """
        roots = arena_ranges(plan, nodes, kept, places)
        if not self._settings.planning.enabled:  # each is needed from the first to the last
            last = len(nodes) - 1
            roots = {root: life._replace(birth=0, death=last) for root, life in roots.items()}
        places = {
            **places,
            **{r: RootPlace(_program.ARENA, self._n_roots + i) for i, r in enumerate(roots)},
        }
        self._n_roots += len(roots)
        first, body = len(self.steps), len(self.bodies)
        self.steps += [None] * len(nodes)
        self.bodies.append(_program.Body(first, len(nodes), roots.values()))
        scope = _Scope(plan, places, {n: spec.type for n, spec in watched(plan.tensors.items())})
        for i, node in enumerate(watched(nodes)):
            self.steps[first + i] = self.step(scope, node, first + i)
        return body, scope

    def step(self, scope: _Scope, node: PlanNode, index: int) -> _program.Step:
        """Return the step of a node, number ``index`` of the program."""
        op, attrs = definition(node)
        inputs = [None if name is None else scope.operand(name) for name in node.inputs]
        outputs = [scope.operand(name) for name in node.outputs]
        label = label_of(node)
        if runs_blocks(scope.plan, node, self._settings.dispatch):
            makers = {"IF": self._branch, "WHILE": self._loop, "SCAN": self._loop}
            control = makers.get(node.op, self._call)(scope, node, index)
            return _program.Step(op, attrs, inputs, outputs, label=label, control=control)
        block = partial(_block_function, scope.plan, node, self._settings.dispatch)
        kernels, server = find_implementations(scope.plan, node, self._settings.dispatch, block)
        return _program.Step(
            op,
            kernel_attrs(node, attrs, kernels),
            inputs,
            outputs,
            label=label,
            threads=_threads_worth(scope.plan, node) if self._shares else 1,
            kernels=kernels,
            server=server,
            choice=self._settings.dispatch.chooser(node.op),
        )

    def _call(self, scope: _Scope, node: PlanNode, index: int) -> _program.Control:
        """Make a step that runs a call's block once on the operands themselves."""
        (block,) = node.blocks
        operands = node.reads[len(node.reads) - len(block.inputs) :]
        ends = zip((*block.inputs, *block.outputs), (*operands, *node.outputs), strict=True)
        body, _ = self._inside(scope, block, {inner: scope.place(name) for inner, name in ends})
        return _program.Control(_program.SCAN, [body], trips=1)

    def _branch(self, scope: _Scope, node: PlanNode, index: int) -> _program.Control:
        """Make the step of an IF: its blocks read the operands in place and write the outputs."""
        predicate, *operands = node.reads
        made = []
        for block in node.blocks:
            ends = zip((*block.inputs, *block.outputs), (*operands, *node.outputs), strict=True)
            made.append(self._inside(scope, block, {n: scope.place(m) for n, m in ends})[0])
        return _program.Control(_program.BRANCH, made, predicate=scope.operand(predicate))

    def _loop(self, scope: _Scope, node: PlanNode, index: int) -> _program.Control:
        """Make the step of a WHILE or a SCAN: its blocks keep the carries in the node's outputs."""
        attrs: dict[str, Any] = definition(node)[1]
        n, block = attrs["carries"], node.blocks[-1]
        read = [*node.outputs[:n], *node.reads[n:]]
        enter = [
            _program.Copy(scope.operand(output), scope.operand(name))
            for output, name in zip(node.outputs[:n], node.reads[:n], strict=True)
        ]
        ends = {inner: scope.place(name) for inner, name in zip(block.inputs, read, strict=True)}
        results = zip(block.outputs[n:], node.outputs[n:], strict=True)
        ends.update((inner, scope.place(name)) for inner, name in results)
        made, predicate, trips = [], None, 0
        if node.op == "WHILE":
            condition = node.blocks[0]
            given = zip(condition.inputs, read, strict=True)
            body, inside = self._inside(scope, condition, {i: scope.place(m) for i, m in given})
            made.append(body)
            predicate = inside.operand(condition.outputs[0])
        else:
            trips = scope.plan.tensors[node.reads[n]].shape[0]
            for inner in (*block.inputs[n : n + attrs["xs"]], *block.outputs[n:]):
                ends[inner] = ends[inner].in_scan(index, block.tensors[inner].nbytes)
        body, inside = self._inside(scope, block, ends)
        made.append(body)
        after = [
            _program.Copy(scope.operand(output), inside.operand(inner))
            for output, inner in zip(node.outputs[:n], block.outputs[:n], strict=True)
        ]
        kind = _program.LOOP if node.op == "WHILE" else _program.SCAN
        return _program.Control(
            kind, made, predicate=predicate, trips=trips, enter=enter, next=after
        )

    def _inside(
        self, scope: _Scope, block: PlanBlock, ends: Mapping[str, RootPlace]
    ) -> tuple[int, _Scope]:
        body, outside = scope.body(block, ends)
        return self.add_body(body, executed_nodes(body), outside, body.outputs)


class _Scope(NamedTuple):
    """Plan, or block as a plan, with the places of its roots and the types of its tensors."""

    plan: Plan
    places: Mapping[str, RootPlace]
    types: Mapping[str, TensorType]

    def place(self, name: str) -> RootPlace:
        """Return the place of a tensor."""
        root, offset, _ = self.plan.placements[name]
        kind, number, start, along = self.places[root]
        return RootPlace(kind, number, start + offset, along)

    def operand(self, name: str) -> _program.Operand:
        """Return a tensor and its place as an operand."""
        # The same as place() does, without making a RootPlace for each operand.
        root, offset, strides = self.plan.placements[name]
        kind, index, start, along = self.places[root]
        return _program.Operand(kind, index, start + offset, self.types[name], strides, along)

    def body(
        self, block: PlanBlock, ends: Mapping[str, RootPlace]
    ) -> tuple[Plan, dict[str, RootPlace]]:
        """Return a block as a plan, and the places of its roots outside its part of the arena.

        ``ends`` are the places of inputs and outputs. An output in the memory of an input gets the
        place of that input.
        """
        body = self.plan.body(block)
        places = {name: self.places[name] for name in body.constants}
        places.update((n, at) for n, at in ends.items() if body.placements[n].root == n)
        return body, places


def _block_function(plan: Plan, node: PlanNode, dispatch: Dispatch, index: int) -> BlockFunction:
    """Return a function that evaluates a block without steps of its own."""
    from taper_runtime.executor.interpreted import block_function

    return block_function(plan, node.blocks[index], Settings(dispatch=dispatch))


def _tensors(plan: Plan) -> Iterator[TensorSpec]:
    """Yield the tensors of a plan and of the blocks in it."""
    yield from watched(plan.tensors.values())
    for node in watched(plan.nodes):
        for block in node.blocks:
            yield from _tensors(plan.body(block))


def arena_ranges(
    plan: Plan,
    nodes: Sequence[PlanNode],
    kept: Sequence[str] = (),
    elsewhere: Container[str] | None = None,
) -> dict[str, LiveRange]:
    """Return the memory of each root in the arena, and which of ``nodes`` need it first and last.

    The tensors in ``kept`` are needed to the end. ``elsewhere`` are the roots outside the arena; by
    default all roots but intermediates.
    """
    roots = _arena_roots(plan, elsewhere)
    last = len(nodes) - 1
    kinds = Kinds()
    return {
        root: LiveRange(birth, min(death, last), kinds[plan.tensors[root].type].nbytes)
        for root, (birth, death) in watched(lifetimes(nodes, roots, outputs=kept).items())
    }


def _arena_roots(plan: Plan, elsewhere: Container[str] | None) -> dict[str, str]:
    """Return the root of each tensor that lies in the arena; see :func:`arena_ranges`."""
    return {
        name: root
        for name, (root, _, _) in watched(plan.placements.items())
        if (
            plan.tensors[root].role == "intermediate"
            if elsewhere is None
            else root not in elsewhere
        )
    }


def _threads_worth(plan: Plan, node: PlanNode) -> int:
    from taper_runtime.machine.cost import threads_worth

    return threads_worth(node_work(plan, node))


def example_sizes(plan: Plan) -> dict[str, int]:
    """Return values of the size variables: those of the samples, or the least ones from 1 on."""
    if not plan.sizes:
        return {}
    values = bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    return {name: values.get(name) or max(low, 1) for name, (low, _) in plan.sizes.items()}
