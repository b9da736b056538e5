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
from taper_runtime.plan.features import is_undefined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor._pool import FramePool
    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.memory_layout import MemoryLayout
    from taper_runtime.executor.sites import Site
    from taper_runtime.extend.servers import Server
    from taper_runtime.native.variants import KernelName
    from taper_runtime.ops.opdef import Cost, OpDef, TensorType
    from taper_runtime.plan.plan import Plan, PlanNode


#: Per step and worker: begin and end in nanoseconds of the monotonic clock, and how often the
#: worker ran the step; zeros if it did not. For a step that runs several times, the begin is that
#: of the first time, and the end is the begin plus the sum of all times.
Spans = list[list[tuple[int, int, int]]]


class ShortRuns(NamedTuple):
    """Threads of runs that end soon, beyond those of all runs.

    Under a limit on CPU time a process may use more CPUs than its share for as long as a period's
    time lasts, and then stops until the next period begins. A run that needs a small part of that
    time ends sooner on more threads, and seldom stops.

    Attributes
    ----------
    threads : int
        Threads that may compute a node of such a run, the caller's among them.
    work : int
        The most work of such a run: the sum over its nodes of the threads that each is worth
        (:func:`taper_runtime.machine.cost.threads_worth`). Runs with control flow are not short.
    """

    threads: int = 1
    work: int = 0


class Settings(NamedTuple):
    """Options that decide how an executor runs a plan.

    Attributes
    ----------
    threads : int
        Threads that may compute a node, the caller's among them.
    nodes_at_once : int
        Nodes that may run at the same time. The bits depend neither on this nor on ``threads``.
    pool : FramePool or None
        Bounds how many runs go on at the same time, of all executors that share it; None makes one
        for this executor.
    dispatch : Dispatch
        Which kernels and servers may compute nodes.
    planning : MemoryPlanning
        Whether tensors share memory, and how to lay out tensors whose sizes are known only in a
        run.
    memory_budget : int
        The most bytes of memory for a run; 0 for no limit.
    short_runs : ShortRuns
        More threads for runs that end soon.
    """

    threads: int = 1
    nodes_at_once: int = 1
    pool: FramePool | None = None
    dispatch: Dispatch = CPU_ALONE
    planning: MemoryPlanning = MemoryPlanning()
    memory_budget: int = 0
    short_runs: ShortRuns = ShortRuns()


DEFAULT_SETTINGS = Settings()


class PlanExecutor(ABC):
    """Runner of one plan. ``compile`` makes it; then many threads may call ``run``."""

    @classmethod
    @abstractmethod
    def compile(cls, plan: Plan, settings: Settings = DEFAULT_SETTINGS) -> PlanExecutor:
        """Prepare ``plan`` for running.

        Parameters
        ----------
        plan : Plan
            A valid plan: loaded from a file or checked by ``validate``.
        settings : Settings

        Raises
        ------
        UnsupportedOpError
            If nothing in ``settings.dispatch`` computes some nodes; it lists all of them.
        InputError
            If ``settings`` ask for several nodes at the same time, which the executor cannot run.
        """

    @property
    @abstractmethod
    def served(self) -> list[tuple[PlanNode, str]]:
        """Return the computed nodes, each with the code that computes it.

        That is "native", "user", "delegate" or "numpy". Nodes of blocks that are run follow the
        node that has the blocks. If sizes vary, this describes the last run's sizes.
        """

    @property
    def servers(self) -> list[Server]:
        """Return the foreign code that computes nodes, to be told of new weights.

        Executors that :meth:`with_constants` returns have the same servers.
        """
        return []

    @abstractmethod
    def with_constants(self, constants: Mapping[str, np.ndarray], generation: int) -> PlanExecutor:
        """Return an executor of the same nodes with other constants; runs of this one go on.

        Parameters
        ----------
        constants : mapping of str to numpy.ndarray
            All constants of the plan, and perhaps others: C-contiguous, aligned, of the same types.
        generation : int
            A number for this set of constants, different from that of any other set.
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

        If the plan writes a state in place, the run writes to that state's array among the inputs;
        a run that fails leaves the array as it was.

        Parameters
        ----------
        inputs : sequence of numpy.ndarray
        out : sequence of numpy.ndarray or None, optional
            The array to write each output to, None for a fresh one. Nothing is copied, so it must
            be C-contiguous, writable, and share no memory with an input. For an output that the
            plan names twice, the first array is used.
        sizes : sequence of int, optional
            Values of the plan's size variables, if the inputs' shapes do not determine them.
        stop : Stop, optional
            Can end the run early.

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
        """Return the nodes that :meth:`profile` times, in order, each with its kernel's name.

        The name is "numpy" for a node without a kernel. Nodes in blocks follow the node that has
        the blocks. If sizes vary, this describes the last run's sizes.
        """

    @property
    def sized_sites(self) -> list[Site] | None:
        """Return the sites of :attr:`steps` in the plan for the last run's sizes.

        Before the first run these are the sizes of the plan's samples. None if the executor does
        not know them.
        """
        return None

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
        """Return the version of the weights that the next run reads."""
        return 0

    def memory_planning(self) -> dict[str, Any] | None:
        """Return the statistics of the memory planner; None if the executor has no planner.

        See :meth:`MemoryPlanner.stats`.
        """
        return None

    def layout(self) -> MemoryLayout | None:
        """Return where the memory of the last run's sizes lies; None if there is no arena."""
        return None


def operand(plan: Plan, name: str) -> tuple[TensorType, tuple[int, ...]]:
    """Return the type and strides (elements) of a tensor."""
    return plan.tensors[name].type, plan.placements[name].strides


def definition(node: PlanNode) -> tuple[OpDef, dict[str, object]]:
    """Return the op of a valid plan's node, and its attrs with defaults filled in."""
    op = REGISTRY[node.op]
    return op, op.fill(node.attrs)


def node_work(plan: Plan, node: PlanNode) -> Cost:
    """Return a node's work, as its op gives it, without the copies that running in place saves.

    The work of the node's blocks is not counted.
    """
    op, attrs = definition(node)
    work = op.work(input_types(plan, node), output_types(plan, node), attrs)
    if not node.reads or plan.placements[node.output].root != plan.placements[node.reads[0]].root:
        return work
    return work._replace(bytes=work.bytes - work.copied, copied=0)


def input_types(plan: Plan, node: PlanNode) -> list[TensorType | None]:
    """Return the types of a node's inputs; None for an absent input."""
    return [None if name is None else plan.tensors[name].type for name in node.inputs]


def output_types(plan: Plan, node: PlanNode) -> list[TensorType]:
    """Return the types of a node's outputs."""
    return [plan.tensors[name].type for name in node.outputs]


def refuse(nodes: Sequence[tuple[Plan, PlanNode]], dispatch: Dispatch) -> None:
    """Raise an error that lists nodes, each with its plan, which nothing in ``dispatch`` serves."""
    if not nodes:
        return
    if targets := [target for _, node in nodes if is_undefined(node) for target in node.targets]:
        raise UnsupportedOpError(
            f"{', '.join(dict.fromkeys(targets))}: the export kept these calls without a "
            "definition, and no kernel of the session's providers computes them; call "
            "taper_runtime.register_kernel or load_kernels before the session is opened"
        )
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
        "strict_native=True: expected a native kernel for every node, got none for"
        if NATIVE in dispatch.providers
        else f"expected {', '.join(dispatch.providers)} to compute every node, got no kernel for"
    )
    raise UnsupportedOpError("\n".join([why, *lines]))
