"""Make the native program of a plan: its executed nodes, and where their operands lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.executor import _native
from taper_runtime.executor.executor import definition, node_work, operand
from taper_runtime.executor.inputs import bind_inputs
from taper_runtime.executor.rollback import find_restores, with_saves
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.checks import counted_bytes
from taper_runtime.plan.liveness import Block, lifetimes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.plan.plan import Plan, PlanNode


class Variables:
    """The size variables of a plan, and what a run's arrays make of it.

    Attributes
    ----------
    names : list of str
    """

    def __init__(self, plan: Plan) -> None:
        self.names = list(plan.sizes)
        self._plan = plan

    def read(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Return the variables' values, in order, that input arrays give.

        Raises
        ------
        InputError
            If the arrays are not those of the plan's inputs for any sizes.
        """
        values = bind_inputs(self._plan, arrays)
        return [values[name] for name in self.names]


def make_program(plan: Plan, threads: int) -> _native.Program:
    """Return the program of a valid plan.

    Its inputs are ``plan.reads``, its outputs the different ones of ``plan.writes``, its steps the
    executed nodes, all in the plan's order, and what saves the states they overwrite
    (:mod:`taper_runtime.executor.rollback`). It begins with an instance for :func:`example_sizes`.

    Raises
    ------
    InputError
        If the arena would be larger than one may be.
    """
    plan = with_saves(plan)
    nodes = executed_nodes(plan)
    restores = find_restores(plan, nodes)
    outputs = list(dict.fromkeys(plan.writes))
    external = {name: i for i, name in enumerate((*plan.reads, *outputs))}
    constants = {n: i for i, n in enumerate(n for n in plan.constants if n not in plan.states)}
    kept = [name for restore in restores for name in restore.node.reads[1:]]
    blocks = arena_blocks(plan, nodes, kept)
    roots = {name: i for i, name in enumerate(blocks)}

    def place(name: str) -> _native.Operand:
        type_, strides = operand(plan, name)
        root, offset, _ = plan.placements[name]
        if root in external:
            return _native.Operand(_native.EXTERNAL, external[root], offset, type_, strides)
        if root in constants:
            return _native.Operand(_native.CONSTANT, constants[root], offset, type_, strides)
        return _native.Operand(_native.ARENA, roots[root], offset, type_, strides)

    program = _native.Program(
        [plan.tensors[name] for name in plan.reads],
        [plan.tensors[name] for name in outputs],
        [plan.constants[name] for name in constants],
        list(blocks.values()),
        threads,
        Variables(plan),
    )
    for node in nodes:
        op: Any
        op, attrs = definition(node)
        operands = [place(name) for name in (*node.reads, *node.outputs)]
        if node.blocks or None in node.inputs or len(node.outputs) > 1:
            op = _Composite(plan, node)
        count = _threads_worth(plan, node) if threads > 1 else 1
        label = f"{node.output} ({node.op})"
        program.add(op, attrs, operands, label, count)
    for saved_by, node in restores:
        op, attrs = definition(node)
        program.add_restore(saved_by, op, attrs, [place(n) for n in (*node.reads, node.output)])
    types = {spec.type for spec in plan.tensors.values()} if plan.sizes else ()
    program.finish([*example_sizes(plan).values()], [counted_bytes(tensor) for tensor in types])
    return program


class _Composite:
    """A node of several outputs, absent inputs or blocks, which numpy computes.

    Attributes
    ----------
    name : str
        That of no op, so that no kernel serves it.
    """

    name = ""
    check = None

    def __init__(self, plan: Plan, node: PlanNode) -> None:
        self._plan = plan
        self._node = node

    def compute(
        self,
        arrays: Sequence[np.ndarray],
        attrs: Mapping[str, object],
        last: Sequence[np.ndarray],
        types: object,
    ) -> None:
        """See :meth:`OpDef.compute`; ``arrays`` are the inputs and all outputs but the last."""
        from taper_runtime.executor.interpreted import numpy_backend

        values = iter((*arrays, *last))
        inputs = [None if name is None else next(values) for name in self._node.inputs]
        numpy_backend(self._plan, self._node)(inputs, list(values))


def executed_nodes(plan: Plan) -> list[PlanNode]:
    """Return the nodes that a run computes, in order."""
    return [node for node in plan.nodes if plan.is_executed(node)]


def arena_blocks(
    plan: Plan, nodes: Sequence[PlanNode], kept: Sequence[str] = ()
) -> dict[str, Block]:
    """Return the memory of each root in the arena, and when ``nodes``, in order, need it.

    That of the tensors ``kept`` is needed to the end.
    """
    roots = {
        name: root
        for name, (root, _, _) in plan.placements.items()
        if plan.tensors[root].role == "intermediate"
    }
    last = len(nodes) - 1
    return {
        root: Block(birth, min(death, last), plan.tensors[root].nbytes)
        for root, (birth, death) in lifetimes(nodes, roots, outputs=kept).items()
    }


def _threads_worth(plan: Plan, node: PlanNode) -> int:
    from taper_runtime.machine.cost import threads_worth

    return threads_worth(node_work(plan, node))


def example_sizes(plan: Plan) -> dict[str, int]:
    """Return values of the size variables: the samples', else the least from 1 on."""
    values = bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    return {name: values.get(name) or max(low, 1) for name, (low, _) in plan.sizes.items()}
