"""Compute steps that no kernel in C computes: numpy, a user's function or a delegate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError, KernelError, NodeInputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor import input_types
from taper_runtime.extend.providers import NATIVE, NUMPY, OURS
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.extend.delegates import BoundDelegate
    from taper_runtime.extend.kernels import UserKernel
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.native._kernels import Kernel
    from taper_runtime.ops.opdef import BlockFunction, OpDef, TensorType
    from taper_runtime.plan.plan import Block, Plan, PlanNode

#: Fills the outputs from the inputs, None where one is absent.
Compute = Callable[[Sequence["np.ndarray | None"], Sequence["np.ndarray"]], None]


class Host(NamedTuple):
    """What computes a step in Python, whatever the sizes are.

    Attributes
    ----------
    name : str
    kind : str
        "numpy", "user" or "delegate".
    bind : callable
        ``(attrs, types) -> Compute``, for one set of sizes: complete attrs, and the types of inputs
        and outputs.
    delegate : BoundDelegate or None
        The delegate that it is.
    """

    name: str
    kind: str
    bind: Callable[[Mapping[str, Any], Sequence[TensorType | None]], Compute]
    delegate: BoundDelegate | None = None


class Servers(NamedTuple):
    """What may compute a node, in order of preference.

    Attributes
    ----------
    kernels : sequence of Kernel, str or None
        In C; a str or None stands for those of our library of that ISA level.
    host : Host or None
        What computes the node where none of them does.
    """

    kernels: Sequence[Kernel | str | None]
    host: Host | None


def runs_blocks(plan: Plan, node: PlanNode, dispatch: Dispatch) -> bool:
    """Whether a node is run by way of the nodes in its blocks."""
    if not node.blocks:
        return False
    from taper_runtime.ops.control import CONTROL  # which most plans do not need

    if node.op == "CALL":
        return not any(_users(plan, node, each) for each in dispatch.providers)
    if node.op == "CALL_DELEGATE":
        return node.attrs["backend"] not in dispatch.delegates
    return node.op in CONTROL


def find_servers(
    plan: Plan,
    node: PlanNode,
    dispatch: Dispatch,
    block_function: Callable[[Plan, Block, Dispatch], BlockFunction],
) -> Servers:
    """Return what may compute a node that is not run by way of its blocks.

    Parameters
    ----------
    plan : Plan
    node : PlanNode
    dispatch : Dispatch
    block_function : callable
        Gives a block of the node as an evaluator calls it.
    """
    op = REGISTRY[node.op]
    label = label_of(node)
    if node.op == "CALL_DELEGATE" and (backend := node.attrs["backend"]) in dispatch.delegates:
        from taper_runtime.extend.delegates import make_delegate

        delegate = make_delegate(plan, node, dispatch.delegates[backend])
        return Servers([], delegate_host(delegate, backend))
    kernels: list[Kernel | str | None] = []
    for provider in dispatch.providers:
        if provider == NATIVE:
            kernels.append(dispatch.isa)
        elif provider == NUMPY:
            blocks = [partial(block_function, plan, block, dispatch) for block in node.blocks]
            return Servers(kernels, numpy_host(op, label, tuple(blocks)))
        for kernel in _users(plan, node, provider):
            if callable(kernel.code):
                return Servers(kernels, user_host(kernel, op, label))
            kernels.append(kernel.code)
    return Servers(kernels, None)


def _users(plan: Plan, node: PlanNode, provider: str) -> list[UserKernel]:
    """Return a provider's kernels for a node; ours are none of a user's."""
    if provider in OURS:
        return []
    from taper_runtime.extend.kernels import find_kernels

    outputs = [plan.tensors[name].type for name in node.outputs]
    return find_kernels(provider, node, [*input_types(plan, node), *outputs])


def label_of(node: PlanNode) -> str:
    """Return what errors call a node."""
    return f"{node.output} ({node.op})"


def naming(label: str, op: OpDef, compute: Compute) -> Compute:
    """Return ``compute``, which says of which node an input that the op refuses is."""

    def named(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        try:
            compute(inputs, outputs)
        except NodeInputError:
            raise  # of a node in a block
        except InputError as error:
            reason = str(error).removeprefix(f"{op.name}: ")
            raise NodeInputError(label, reason) from None

    return named


def numpy_host(op: OpDef, label: str, blocks: Sequence[Callable[[], BlockFunction]] = ()) -> Host:
    """Return the op's own evaluator as a host; ``blocks`` give those of a node."""
    return Host("numpy", "numpy", partial(_bind_evaluator, op, label, blocks))


def _bind_evaluator(
    op: OpDef,
    label: str,
    blocks: Sequence[Callable[[], BlockFunction]],
    attrs: Mapping[str, Any],
    types: Sequence[TensorType | None],
) -> Compute:
    def compute(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        op.compute(inputs, attrs, outputs, types, [block() for block in blocks])

    return naming(label, op, compute)


def user_host(kernel: UserKernel, op: OpDef, label: str) -> Host:
    """Return a user's Python function as a host of a node, which ``label`` names."""
    function: Any = kernel.code
    what = f"node {label}: kernel {kernel.name!r}"
    from taper_runtime.ops.call import arguments  # which most plans do not need

    def bind(attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        given = arguments(attrs) if op.name == "CALL" else dict(attrs)
        return _checked(what, lambda inputs, outputs: function(inputs, outputs, given))

    return Host(kernel.name, "user", bind)


def delegate_host(bound: BoundDelegate, backend: str) -> Host:
    """Return a delegate as a host of its node."""
    run = bound.delegate.run

    def bind(attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        return _checked(bound.label, lambda inputs, outputs: run(inputs[1:], outputs))

    return Host(backend, "delegate", bind, bound)


def _checked(what: str, function: Callable[[Any, Any], object]) -> Compute:
    """Return a function of somebody else's with the checks that its contract allows.

    Raises
    ------
    KernelError
        If it raises, returns something, or changes the shape of an output.
    """

    def compute(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        for array in inputs:
            if array is not None:
                array.flags.writeable = False
        shapes = [(array.shape, array.dtype, array.strides) for array in outputs]
        try:
            result = function(tuple(inputs), tuple(outputs))
        except Exception as error:
            raise KernelError(f"{what} raised {type(error).__name__}: {error}") from error
        if result is not None:
            raise KernelError(
                f"{what}: expected it to write its outputs and return nothing, got "
                f"{type(result).__name__}"
            )
        for array, before in zip(outputs, shapes, strict=True):
            after = (array.shape, array.dtype, array.strides)
            if after != before:
                raise KernelError(
                    f"{what}: expected an output of shape {before[0]}, got {after[0]}"
                )

    return compute
