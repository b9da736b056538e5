"""Define what an executor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import UnsupportedOpError
from taper_runtime.base.option_values import MemoryPlanning
from taper_runtime.base.records import NamedTuple
from taper_runtime.extend.providers import CPU_ALONE, NATIVE, Dispatch
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor._pool import FramePool
    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.sites import Site
    from taper_runtime.extend.servers import Server
    from taper_runtime.native.variants import KernelName
    from taper_runtime.ops.opdef import Cost, OpDef, TensorType
    from taper_runtime.plan.plan import Plan, PlanNode


#: Per step, per worker: begin and end in nanoseconds of the monotonic clock, and how often it was
#: at the step; zeros where it had no part in it. Of a step that runs often, the begin of its first
#: time, and all its times one after the other.
Spans = list[list[tuple[int, int, int]]]


class Settings(NamedTuple):
    """Options that decide how an executor runs a plan.

    Attributes
    ----------
    threads : int
        Threads that may compute a node, the caller's among them.
    nodes_at_once : int
        Nodes that may run at the same time. The bits depend neither on this nor on ``threads``.
    pool : FramePool or None
        What bounds runs at the same time, of this and other executors; with None one of its own.
    dispatch : Dispatch
        What may compute nodes.
    planning : MemoryPlanning
        Whether tensors share memory, and how those are laid out whose sizes a run finds out.
    """

    threads: int = 1
    nodes_at_once: int = 1
    pool: FramePool | None = None
    dispatch: Dispatch = CPU_ALONE
    planning: MemoryPlanning = MemoryPlanning()


DEFAULT_SETTINGS = Settings()


class Executor(ABC):
    """Runs one plan. Made by ``compile``, after which ``run`` may be called from many threads."""

    @classmethod
    @abstractmethod
    def compile(cls, plan: Plan, settings: Settings = DEFAULT_SETTINGS) -> Executor:
        """Prepare ``plan`` for running.

        Parameters
        ----------
        plan : Plan
            Valid: loaded from a file or checked by ``validate``.
        settings : Settings

        Raises
        ------
        UnsupportedOpError
            Listing every node that nothing in ``settings.dispatch`` computes.
        InputError
            If the executor cannot run several nodes at the same time, and is asked to.
        """

    @property
    @abstractmethod
    def served(self) -> list[tuple[PlanNode, str]]:
        """Computed nodes, each with what computes it: "native", "user", "delegate" or "numpy".

        Those of blocks that are run come behind the node that has them. Of the last run's sizes,
        where they vary.
        """

    @property
    def servers(self) -> list[Server]:
        """The foreign code that computes nodes of this and of what :meth:`with_constants` returns.

        It is to be told of new weights.
        """
        return []

    @abstractmethod
    def with_constants(self, constants: Mapping[str, np.ndarray], generation: int) -> Executor:
        """Return an executor of the same nodes over other constants; runs of this one go on.

        Parameters
        ----------
        constants : mapping of str to numpy.ndarray
            Those of the plan, and perhaps more: C-contiguous, aligned, of the same types.
        generation : int
            A number of these constants that no others of the executor have.
        """

    @abstractmethod
    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Run once: take arrays in the order of ``plan.reads``, return those of ``plan.writes``.

        A state that the plan writes in place is written in its array among the inputs; a run that
        fails leaves it as it was.

        Parameters
        ----------
        inputs : sequence of numpy.ndarray
        out : sequence of numpy.ndarray or None, optional
            Per output the array to write, None for a fresh one. It is written without a copy and
            must be C-contiguous, writable and apart from every input. The first array stands for an
            output that the plan names twice.
        sizes : sequence of int, optional
            Values of the plan's size variables, where the inputs' shapes do not give them.
        stop : Stop, optional
            What may end the run before its time.

        Raises
        ------
        InputError
            If an array does not fit the plan.
        StoppedError
            If ``stop`` has ended it.
        """

    @property
    @abstractmethod
    def steps(self) -> list[tuple[Site, KernelName]]:
        """The nodes that :meth:`profile` times, in order, each with its kernel's name.

        It is "numpy" where there is none. Nodes in blocks come behind the node that has them. Of
        the sizes of the last run, where they vary.
        """

    @abstractmethod
    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], Spans]:
        """Run once as :meth:`run`; return the outputs, and when workers were at :attr:`steps`."""

    @property
    def weights_version(self) -> int:
        """The version of the weights that the next run reads."""
        return 0

    def memory_planning(self) -> dict[str, Any] | None:
        """Return what the planner of memory for sizes that runs compute has done, if there is one.

        See :meth:`MemoryPlanner.stats`.
        """
        return None


def operand(plan: Plan, name: str) -> tuple[TensorType, tuple[int, ...]]:
    """Return the type and strides (elements) of a tensor."""
    return plan.tensors[name].type, plan.placements[name].strides


def definition(node: PlanNode) -> tuple[OpDef, dict[str, object]]:
    """Return the op of a valid plan's node, and its attrs with defaults filled in."""
    op = REGISTRY[node.op]
    return op, op.fill(node.attrs)


def node_work(plan: Plan, node: PlanNode) -> Cost:
    """Return the node's work by its op, less the copies that running in place saves.

    That of its blocks is not counted.
    """
    op, attrs = definition(node)
    work = op.work(input_types(plan, node), output_types(plan, node), attrs)
    if not node.reads or plan.placements[node.output].root != plan.placements[node.reads[0]].root:
        return work
    return work._replace(bytes=work.bytes - work.copied, copied=0)


def input_types(plan: Plan, node: PlanNode) -> list[TensorType | None]:
    """Return the types of a node's inputs; None for those that are absent."""
    return [None if name is None else plan.tensors[name].type for name in node.inputs]


def output_types(plan: Plan, node: PlanNode) -> list[TensorType]:
    """Return the types of a node's outputs."""
    return [plan.tensors[name].type for name in node.outputs]


def refuse(nodes: Sequence[tuple[Plan, PlanNode]], dispatch: Dispatch) -> None:
    """Raise for nodes, each with its plan, that nothing in ``dispatch`` computes."""
    if not nodes:
        return
    from taper_runtime.plan.spelling import call_text, type_text  # which only this error needs

    lines = []
    for plan, node in nodes:
        lines.append(f"  {', '.join(node.outputs)} = {call_text(node)}  {node.source}")
        inputs, outputs = (
            ", ".join(type_text(plan.tensors[name]) for name in names)
            for names in (node.reads, node.outputs)
        )
        lines.append(f"    of {inputs} -> {outputs}")
    for op in dict.fromkeys(node.op for _, node in nodes):
        signatures = _kernels.kernel_signatures(op, dispatch.isa) or ["none"]
        lines += [f"  kernels of {op}:", *(f"    {text}" for text in signatures)]
    why = (
        "strict_native=True, but no native kernel serves"
        if NATIVE in dispatch.providers
        else f"no provider of {', '.join(dispatch.providers)} serves"
    )
    raise UnsupportedOpError("\n".join([why, *lines]))
