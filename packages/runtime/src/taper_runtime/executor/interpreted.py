"""Run plans node by node, for debugging: every root has memory of its own."""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor._pool import FramePool, Lease
from taper_runtime.executor.dispatching import find_implementations, kernel_attrs, runs_blocks
from taper_runtime.executor.executor import (
    DEFAULT_SETTINGS,
    PlanExecutor,
    Settings,
    Spans,
    definition,
    input_types,
    operand,
    output_types,
    refuse,
)
from taper_runtime.executor.inputs import bind_inputs, check_input, check_output
from taper_runtime.executor.sites import Site
from taper_runtime.extend.servers import (
    NumpyServer,
    ServedNode,
    Server,
    bind_server,
    label_of,
    make_server,
    naming,
)
from taper_runtime.native import _kernels
from taper_runtime.native.variants import KernelName
from taper_runtime.ops.opdef import BlockFunction
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taper_runtime.executor._stop import Stop
    from taper_runtime.extend.servers import Compute
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode

    Read = Callable[[str], np.ndarray]

#: The Stop of the run in this context, for the blocks that its nodes run.
_STOP: ContextVar[Stop | None] = ContextVar("stop", default=None)


def block_function(
    plan: Plan,
    block: PlanBlock,
    settings: Settings,
    kept: Kept | None = None,
    kind: type[InterpretedExecutor] | None = None,
) -> BlockFunction:
    """Return a function that evaluates a block of a plan without size variables."""
    settings = Settings(dispatch=settings.dispatch)
    body = (kind or InterpretedExecutor).compile(plan.body(block), settings, kept)
    return BlockFunction(block.signature, body.run)


class Kept(NamedTuple):
    """Servers that are kept when an executor is made again for other sizes or other weights.

    Attributes
    ----------
    servers : dict of tuple to Server
        The key: outputs and block numbers of the nodes around the node, then its first output.
    around : tuple
        The outputs and block numbers of the nodes around this block.
    """

    servers: dict[tuple[str | int, ...], Server]
    around: tuple[str | int, ...] = ()

    def inside(self, node: PlanNode, index: int) -> Kept:
        """Return the servers inside one of the node's blocks."""
        return self._replace(around=(*self.around, node.output, index))

    def make(
        self, make: Callable[[ServedNode], Server], name: str, plan: Plan, node: PlanNode
    ) -> Server:
        """Return the server of a node; make it if there is none yet. See :func:`make_server`."""
        key = (*self.around, node.output)
        if key not in self.servers:
            self.servers.setdefault(key, make_server(make, name, plan, node))
        return self.servers[key]


class NodeStep(NamedTuple):
    """One node with the function that computes it, the function's kind and its name."""

    node: PlanNode
    compute: Compute
    kind: str
    kernel: KernelName


class InterpretedExecutor(PlanExecutor):
    """Evaluator of a plan and its blocks of control flow, node by node in Python.

    No two roots share memory, and each keeps its memory until its last reader has run, so that
    :meth:`trace` can show its values. For each run of a plan with size variables, a static plan is
    made for the run's sizes.
    """

    def __init__(self, plan: Plan, steps: list[NodeStep], settings: Settings, kept: Kept) -> None:
        self._plan = plan
        self._kept = kept
        self._steps = steps
        self._settings = settings
        self._pool = settings.pool or FramePool()
        #: the executor for the last run's sizes; this one holds no reference to itself, so that
        #: its kernels are gone with it
        self._sized: InterpretedExecutor | None = None
        self._generation = 0

    @classmethod
    def compile(
        cls, plan: Plan, settings: Settings = DEFAULT_SETTINGS, kept: Kept | None = None
    ) -> InterpretedExecutor:
        """See :meth:`PlanExecutor.compile`.

        Every node runs on the caller's thread. ``kept`` are the servers of another executor of the
        same nodes.
        """
        if settings.nodes_at_once > 1:
            raise InputError(
                "execution_mode: expected sequential, because the interpreted executor runs one "
                "node after the other; got parallel"
            )
        kept = Kept({}) if kept is None else kept
        nodes = tuple(filter(plan.is_executed, plan.nodes))
        if plan.sizes:  # a run makes its steps, when it knows the sizes
            for node in nodes:
                cls._implementations(plan, node, settings, kept)
            return cls(plan, [], settings, kept)
        made = [cls.make_step(plan, node, settings, kept) for node in nodes]
        unserved = [node for node, step in zip(nodes, made, strict=True) if step is None]
        refuse([(plan, node) for node in unserved], settings.dispatch)
        steps = [step for step in made if step is not None]
        return cls(plan, steps, settings, kept)

    @classmethod
    def make_step(
        cls, plan: Plan, node: PlanNode, settings: Settings, kept: Kept
    ) -> NodeStep | None:
        """Return the step of a node, with the first server that takes it; None if none does."""
        op, attrs = definition(node)
        kernels, server = cls._implementations(plan, node, settings, kept)
        attrs = kernel_attrs(node, attrs, kernels)
        inputs = [None if name is None else operand(plan, name) for name in node.inputs]
        outputs = [operand(plan, name) for name in node.outputs]
        choice, told = settings.dispatch.chooser(node.op), None
        if choice is not None:
            from taper_runtime.machine.choices import ChosenNode

            types_in, types_out = input_types(plan, node), output_types(plan, node)
            strides = [() if each is None else each[1] for each in (*inputs, *outputs)]
            told = ChosenNode(label_of(node), op, types_in, types_out, attrs, strides)
        prepared = _kernels.prepare(op, attrs, inputs, outputs, kernels, choice, told)
        if prepared is not None:
            compute = naming(label_of(node), op, prepared.run)
            kernel = KernelName(prepared.kernel_name, prepared.variant)
            return NodeStep(node, compute, prepared.kind, kernel)
        if server is None:
            return None
        types = [*input_types(plan, node), *(plan.tensors[name].type for name in node.outputs)]
        name = server.kind if isinstance(server, NumpyServer) else server.node.server
        return NodeStep(node, bind_server(server, attrs, types), server.kind, KernelName(name))

    @classmethod
    def _implementations(
        cls, plan: Plan, node: PlanNode, settings: Settings, kept: Kept
    ) -> tuple[Sequence[_kernels.Kernel | str | None], Server | None]:
        """Return the implementations of a node; see :func:`find_implementations`."""

        def block(index: int) -> BlockFunction:
            inside = kept.inside(node, index)
            return block_function(plan, node.blocks[index], settings, inside, cls)

        return find_implementations(plan, node, settings.dispatch, block, kept.make)

    @property
    def servers(self) -> list[Server]:
        """See :attr:`PlanExecutor.servers`; those inside blocks are known from the first run on."""
        return list(self._kept.servers.values())

    @property
    def served(self) -> list[tuple[PlanNode, str]]:
        """See :attr:`PlanExecutor.served`; nodes of blocks are left out."""
        return [(step.node, step.kind) for step in self._last()._steps]

    @property
    def steps(self) -> list[tuple[Site, KernelName]]:
        """See :attr:`PlanExecutor.steps`; nodes of blocks are left out."""
        last = self._last()
        plan, steps = last._plan, last._steps
        dispatch = last._settings.dispatch
        return [
            (Site(plan, s.node, i, 0, 0, 1, runs_blocks(plan, s.node, dispatch)), s.kernel)
            for i, s in enumerate(steps)
        ]

    def _last(self) -> InterpretedExecutor:
        """Return the executor for the last run's sizes."""
        return self if self._sized is None else self._sized

    @property
    def weights_version(self) -> int:
        """See :meth:`PlanExecutor.weights_version`."""
        return self._generation

    def with_constants(
        self, constants: Mapping[str, np.ndarray], generation: int
    ) -> InterpretedExecutor:
        """See :meth:`PlanExecutor.with_constants`."""
        own = {name: constants.get(name, array) for name, array in self._plan.constants.items()}
        made = self.compile(self._plan._replace(constants=own), self._settings, self._kept)
        made._generation = generation
        return made

    def _for_sizes(
        self, inputs: Sequence[np.ndarray], sizes: Sequence[int] | None = None
    ) -> InterpretedExecutor:
        """Return the executor for these sizes; without them, for the sizes of the inputs."""
        values = (
            bind_inputs(self._plan, inputs)
            if sizes is None
            else dict(zip(self._plan.sizes, sizes, strict=True))
        )
        plan = specialize(self._plan, values)
        self._sized = self.compile(plan, self._settings._replace(pool=None), self._kept)
        return self._sized

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`PlanExecutor.run`."""
        return self._start(inputs, out, sizes, stop, [])

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], Spans]:
        """See :meth:`PlanExecutor.profile`."""
        spans: Spans = []
        return self._start(inputs, out, sizes, stop, spans), spans

    def _start(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        sizes: Sequence[int] | None,
        stop: Stop | None,
        spans: Spans,
    ) -> list[np.ndarray]:
        """Run with a frame of the pool; add the times of the steps to ``spans``."""
        if stop is None:
            stop = _STOP.get()
        token = _STOP.set(stop)
        try:
            with Lease(self._pool, self, stop):
                if not self._plan.sizes:
                    return self._run(inputs, out, stop, spans)
                return self._for_sizes(inputs, sizes)._run(inputs, out, stop, spans)
        finally:
            _STOP.reset(token)

    def _run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        stop: Stop | None,
        spans: Spans,
    ) -> list[np.ndarray]:
        """Run all nodes; put the states written in place back as they were if one raises."""
        plan = self._plan
        memory = self._bind(inputs)
        given: dict[str, np.ndarray] = {}
        for name, array in zip(plan.writes, out or (), strict=out is not None):
            if array is not None and name not in given:
                given[name] = check_output(plan.tensors[name], array, [*inputs, *given.values()])
                memory[name] = _as_bytes(array)
        kept = {
            name: memory[name].copy() for name in plan.states if plan.is_in_place(name)
        }  # in a run that fails, the states stay
        try:
            if stop is not None:
                stop.check()  # for a block without nodes, which may run for ever
            for _ in self._execute(memory, spans):
                if stop is not None:
                    stop.check()
        except BaseException:
            for name, before in kept.items():
                memory[name][...] = before
            raise
        return [given[n] if n in given else self._array(memory, n) for n in plan.writes]

    def trace(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[PlanNode, Read]]:
        """Run, and yield each executed node before the next one runs.

        With each node comes a function that returns the array of a tensor by its name. It is the
        tensor's own memory: a later node may overwrite it in place. Only tensors that have been
        computed and are still to be read are there, and none of blocks. The states among the
        inputs are not changed.
        """
        if self._plan.sizes:
            yield from self._for_sizes(inputs).trace(inputs)
            return
        memory = self._bind([np.array(array) for array in inputs])
        for node in self._execute(memory, []):
            yield node, partial(self._array, memory)

    def _bind(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the memory, as bytes, of constants and of what the plan reads, by root."""
        plan = self._plan
        memory = {name: _as_bytes(array) for name, array in plan.constants.items()}
        written = {plan.placements[name].root for name in plan.outputs}
        for name, array in zip(plan.reads, inputs, strict=True):
            array = check_input(plan.tensors[name], array)
            memory[name] = _as_bytes(array.copy() if name in written else array)
        return memory

    def _execute(self, memory: dict[str, np.ndarray], spans: Spans) -> Iterator[PlanNode]:
        """Run, and yield each executed node; add its times to ``spans``.

        A root has memory from its first writer until its last reader has run, and at least until
        the node after its writer runs.
        """
        plan = self._plan
        dead: dict[int, list[str]] = {}
        for root, index in self._last_uses().items():
            dead.setdefault(index, []).append(root)
        for index, (node, compute, *_) in enumerate(self._steps):
            written = {plan.placements[name].root for name in node.outputs}
            for root in written - memory.keys():
                memory[root] = np.empty(plan.tensors[root].nbytes, np.uint8)
            inputs = [None if n is None else self._array(memory, n) for n in node.inputs]
            outputs = [self._array(memory, name) for name in node.outputs]
            begin = time.monotonic_ns()
            compute(inputs, outputs)
            spans.append([(begin, time.monotonic_ns(), 1)])
            last = set(dead.get(index, ()))
            for root in last - written:
                del memory[root]
            yield node
            for root in last & written:
                del memory[root]

    def _last_uses(self) -> dict[str, int]:
        """Return the last step that uses each root whose memory belongs to this run alone."""
        plan = self._plan
        kept = {plan.placements[name].root for name in (*plan.reads, *plan.writes)}
        used = {
            plan.placements[name].root: index
            for index, step in enumerate(self._steps)
            for name in (*step.node.reads, *step.node.outputs)
        }
        return {
            root: index
            for root, index in used.items()
            if root not in kept and root not in plan.constants
        }

    def _array(self, memory: dict[str, np.ndarray], name: str) -> np.ndarray:
        dtype, shape, _ = self._plan.tensors[name].storage
        placement = self._plan.placements[name]
        storage = DTYPES[dtype].storage
        return np.ndarray(
            shape,
            storage,
            memory[placement.root],
            placement.offset,
            [stride * storage.itemsize for stride in placement.strides],
        )


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
