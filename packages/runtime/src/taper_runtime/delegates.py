"""Delegates: regions of a plan that something else than Taper computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from taper_runtime.errors import InputError
from taper_runtime.plan.features import with_inner

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.options import SessionOptions
    from taper_runtime.plan.plan import Block, Plan, PlanNode


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
        """Check new weights and prepare what is made of them; runs go on with those before."""

    def commit_weights(self) -> None:  # noqa: B027 - optional
        """Let runs that begin from now on use what :meth:`process_weights` has prepared."""

    @abstractmethod
    def run(self, inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Write every element of ``outputs``; return nothing.

        Several threads may call it at once. The arrays are C-contiguous and must not be kept. The
        weights among the inputs are those of the run, whether or not :meth:`process_weights` has
        seen them.
        """


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


def make_delegate(plan: Plan, node: PlanNode, kind: type[Delegate]) -> Delegate:
    """Return the delegate of a node, which has its weights."""
    _, *operands = node.reads
    weights = {
        position: plan.constants[name]
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
    delegate.init_weights(weights)
    return delegate
