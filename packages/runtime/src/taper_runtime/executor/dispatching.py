"""Find the implementations of a node: kernels in C, and a server if there is no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from taper_runtime.executor.executor import definition, input_types, operand
from taper_runtime.extend.providers import NATIVE, NUMPY, OURS
from taper_runtime.extend.servers import (
    FunctionServer,
    NumpyServer,
    ServedNode,
    Server,
    label_of,
    make_server,
)
from taper_runtime.native._kernels import prepare
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.features import is_undefined

if TYPE_CHECKING:
    from taper_runtime.extend.kernels import Function, UserKernel
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.native._kernels import Kernel
    from taper_runtime.ops.opdef import BlockFunction
    from taper_runtime.plan.plan import Plan, PlanNode

#: Makes the server of a node; see :func:`taper_runtime.extend.servers.make_server`.
Make = Callable[[Callable[[ServedNode], Server], str, "Plan", "PlanNode"], Server]


def runs_blocks(plan: Plan, node: PlanNode, dispatch: Dispatch) -> bool:
    """Return whether a node is run by running the nodes in its blocks."""
    if not node.blocks:
        return False
    from taper_runtime.ops.control import CONTROL  # which most plans do not need

    if node.op == "CALL":
        return not is_undefined(node) and not any(
            _users(plan, node, each) for each in dispatch.providers
        )
    if node.op == "CALL_DELEGATE":
        return node.attrs["backend"] not in dispatch.delegates
    return node.op in CONTROL


def find_implementations(
    plan: Plan,
    node: PlanNode,
    dispatch: Dispatch,
    block_function: Callable[[int], BlockFunction],
    make: Make = make_server,
) -> tuple[Sequence[Kernel | str | None], Server | None]:
    """Return the implementations of a node that is not run by running its blocks.

    Parameters
    ----------
    plan : Plan
    node : PlanNode
    dispatch : Dispatch
    block_function : callable
        ``(number) -> function`` that evaluates a block of the node.
    make : callable
        Makes the server, if foreign code computes the node.

    Returns
    -------
    kernels : sequence of Kernel, str or None
        Kernels in C, in order of preference; a str or None stands for the kernels of our library
        of that ISA level.
    server : Server or None
        What computes the node if no kernel does.
    """
    if node.op == "CALL_DELEGATE" and (backend := node.attrs["backend"]) in dispatch.delegates:
        kind: Callable[[ServedNode], Server] = dispatch.delegates[backend]
        if dispatch.fallbacks is not None:
            kind = partial(dispatch.fallbacks.serve, partial(block_function, 0))
        return [], make(kind, backend, plan, node)
    kernels: list[Kernel | str | None] = []
    for provider in dispatch.providers:
        if provider == NATIVE:
            kernels.append(dispatch.isa)
        elif provider == NUMPY and is_undefined(node):
            continue
        elif provider == NUMPY:
            blocks = [partial(block_function, index) for index in range(len(node.blocks))]
            return kernels, NumpyServer(REGISTRY[node.op], label_of(node), blocks)
        for kernel in _users(plan, node, provider):
            code = kernel.code
            called = node if kernel.key == node.op else as_call(node)
            if isinstance(code, type):
                return kernels, make(code, kernel.name, plan, called)
            if callable(code):
                return kernels, make(partial(_calling, code), kernel.name, plan, called)
            if called is node or not _overwrites(plan, node):
                kernels.append(code)
    return kernels, None


def kernel_attrs(
    node: PlanNode, attrs: dict[str, object], kernels: Sequence[Kernel | str | None]
) -> dict[str, object]:
    """Return the attrs that kernels in C get: also a call's arguments, for users' kernels."""
    if node.arguments is None or all(each is None or isinstance(each, str) for each in kernels):
        return attrs
    return {**attrs, "arguments": node.arguments}


def _overwrites(plan: Plan, node: PlanNode) -> bool:
    """Return whether a node's output lies in the memory of one of its inputs."""
    roots = {plan.placements[name].root for name in node.outputs}
    return any(plan.placements[name].root in roots for name in node.reads)


def as_call(node: PlanNode) -> PlanNode:
    """Return a node in the form in which kernels of its ATen target see it: as a kept call."""
    if node.op == "CALL":
        return node
    return node._replace(op="CALL", attrs={"arguments": node.arguments})


def has_native_kernel(plan: Plan, node: PlanNode) -> bool:
    """Return whether a kernel of our library serves a node of known sizes on this CPU."""
    op, attrs = definition(node)
    inputs = [None if name is None else operand(plan, name) for name in node.inputs]
    outputs = [operand(plan, name) for name in node.outputs]
    return prepare(op, attrs, inputs, outputs) is not None


def _calling(function: Function, node: ServedNode) -> Server:
    return FunctionServer(node, function)


def _users(plan: Plan, node: PlanNode, provider: str) -> list[UserKernel]:
    """Return a provider's kernels for a node; those of our library are not among them."""
    if provider in OURS:
        return []
    from taper_runtime.extend.kernels import find_kernels

    outputs = [plan.tensors[name].type for name in node.outputs]
    return find_kernels(provider, node, [*input_types(plan, node), *outputs])
