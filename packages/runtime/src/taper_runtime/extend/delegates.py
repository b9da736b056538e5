"""Register delegates: code other than Taper's that computes regions of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from taper_runtime.base.errors import InputError, KernelError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.plan.features import with_inner

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Block, Plan, PlanNode
    from taper_runtime.session.options import SessionOptions


_NAMED = 5  # nodes in an error


class Region(NamedTuple):
    """What a delegate is to compute.

    Attributes
    ----------
    name : str
        The node's.
    blob : numpy.ndarray
        uint8 [n]: what the backend has made of the region at export. A stranger may have written
        it: check what you read.
    inputs, outputs : tuple of TensorType
        Their dims may be size expressions.
    weights : tuple of int
        Which of the inputs are constants of the plan.
    block : Block
        The region as a graph.
    """

    name: str
    blob: np.ndarray
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    weights: tuple[int, ...]
    block: Block


class Delegate(ABC):
    """Computes one region; ``SessionOptions.delegates`` has the class by its backend's name.

    An object is made for each region when a session is opened, and told its weights.

    Attributes
    ----------
    runs_machine_code : bool
        Whether the blob is run as code: then a session also needs
        ``SessionOptions.allow_native_code``.

    Parameters
    ----------
    region : Region
    """

    runs_machine_code: ClassVar[bool] = False

    def __init__(self, region: Region) -> None:
        self.region = region

    def init_weights(self, weights: Mapping[int, np.ndarray]) -> None:
        """Take the first weights: the constants among the inputs, by position."""
        self.process_weights(weights)
        self.commit_weights()

    def process_weights(self, weights: Mapping[int, np.ndarray]) -> None:  # noqa: B027 - optional
        """Check new weights and prepare what is made of them; runs go on with those before.

        What it raises stops the replacement: the session keeps its weights, and no delegate is told
        to commit. What was prepared is then to be forgotten when this is called again.
        """

    def commit_weights(self) -> None:  # noqa: B027 - optional
        """Let runs that begin from now on use what :meth:`process_weights` has prepared.

        The session has its new weights already, so this must not fail: what can fail belongs into
        :meth:`process_weights`.
        """

    @abstractmethod
    def run(self, inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Write every element of ``outputs``; return nothing.

        Several threads may call it at once. The arrays are C-contiguous and must not be kept. The
        weights among the inputs are those of the run: one that began before a replacement ends with
        the old ones, perhaps after :meth:`commit_weights`. Whoever keeps something made of them
        tells the sets apart by their addresses, which are those that :meth:`process_weights` saw.
        """


class BoundDelegate(NamedTuple):
    """A delegate of a session, and which of the plan's constants are its weights.

    Attributes
    ----------
    delegate : Delegate
    label : str
        What names it in errors.
    weights : dict of int to str
        Names of constants, by position among the inputs of the region.
    """

    delegate: Delegate
    label: str
    weights: dict[int, str]

    def differs(
        self, before: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> bool:
        """Whether any of its weights is another array than before."""
        return any(constants[name] is not before[name] for name in self.weights.values())

    def process(self, constants: Mapping[str, np.ndarray]) -> None:
        """Have it prepare new weights.

        Raises
        ------
        KernelError
            If it does not take them.
        """
        given = {position: constants[name] for position, name in self.weights.items()}
        try:
            self.delegate.process_weights(given)
        except Exception as error:
            raise KernelError(
                f"{self.label}: process_weights raised {type(error).__name__}: {error}"
            ) from error


def check_delegates(plan: Plan, options: SessionOptions) -> None:
    """Check that a session may run the delegates of a plan.

    Raises
    ------
    InputError
        If a region's backend is not among ``options.delegates``, or runs its blob as machine code
        and ``options.allow_native_code`` is not set.
    """
    nodes = [*plan.nodes, *(node for entry in plan.entries.values() for node in entry.nodes)]
    for node in with_inner(nodes):
        if node.op != "CALL_DELEGATE":
            continue
        backend = node.attrs["backend"]
        if backend not in options.delegates:
            known = ", ".join(map(repr, options.delegates)) or "none"
            raise InputError(
                f"node {node.output!r}: the plan gives a region to the delegate {backend!r}, which "
                f"runs what its file says; to allow it set SessionOptions.delegates (it has "
                f"{known})"
            )
        kind = options.delegates[backend]
        if kind is not None and kind.runs_machine_code and not options.allow_native_code:
            raise InputError(
                f"node {node.output!r}: the delegate {backend!r} runs machine code from the plan's "
                "file; set SessionOptions.allow_native_code if you trust who made the file"
            )


def check_whole(plan: Plan, options: SessionOptions) -> None:
    """Check that delegates compute all of a plan: what ``SessionOptions.executor`` may ask for.

    Raises
    ------
    InputError
        Naming the first nodes that something else computes.
    """
    others = [
        f"{node.output!r} ({node.op})"
        for node in filter(plan.is_executed, plan.nodes)
        if node.op != "CALL_DELEGATE" or options.delegates.get(node.attrs["backend"]) is None
    ]
    if others:
        named = ", ".join(others[:_NAMED]) + (", ..." if len(others) > _NAMED else "")
        raise InputError(
            f'executor: expected a plan of delegates alone for "delegate", got '
            f"{counted(len(others), 'node')} that something else computes: {named}"
        )


def make_delegate(plan: Plan, node: PlanNode, kind: type[Delegate]) -> BoundDelegate:
    """Return the delegate of a node, which has its first weights."""
    _, *operands = node.reads
    weights = {
        position: name
        for position, name in enumerate(operands)
        if name in plan.constants and name not in plan.states
    }
    inputs, outputs = (
        tuple(plan.tensors[name].type for name in names) for names in (operands, node.outputs)
    )
    (block,) = node.blocks
    blob = plan.constants.get(node.reads[0])
    if blob is None:
        raise InputError(f"node {node.output!r}: expected a constant as the delegate's blob")
    delegate = kind(Region(node.output, blob, inputs, outputs, tuple(weights), block))
    delegate.init_weights({position: plan.constants[name] for position, name in weights.items()})
    label = f"node {node.output} ({node.op}): delegate {node.attrs['backend']!r}"
    return BoundDelegate(delegate, label, weights)
