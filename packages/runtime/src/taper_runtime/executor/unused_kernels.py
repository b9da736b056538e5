"""Warn of users' kernels that can compute no node of a plan."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from taper_runtime.base.text import counted, nearest
from taper_runtime.executor.sites import sites
from taper_runtime.extend.kernels import find_kernels, registered_kernels
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.extend.kernels import UserKernel
    from taper_runtime.plan.plan import Plan


def warn_unused(plan: Plan, providers: Sequence[str]) -> None:
    """Warn of kernels of these providers that can compute no node of a plan.

    There is no warning if another kernel of the same provider and target, or of the same library,
    computes some.
    """
    used: list[UserKernel] = []
    held: dict[str, int] = {}
    for entry in [plan.entry(), *map(plan.entry, plan.entries)]:
        for scope, node, *_ in sites(entry):
            for key in {node.op, *node.targets}:
                held[key] = held.get(key, 0) + 1
            types = [
                None if name is None else scope.tensors[name].type
                for name in (*node.inputs, *node.outputs)
            ]
            for provider in providers:
                used += find_kernels(provider, node, types)
    families = {(kernel.provider, kernel.key) for kernel in used}
    libraries = {kernel.library for kernel in used if kernel.library}
    for kernel in registered_kernels():
        is_used = (kernel.provider, kernel.key) in families or kernel.library in libraries
        if kernel.provider in providers and not is_used:
            warnings.warn(
                f"kernel {kernel.name!r} computes {kernel.key}, but no node here: "
                f"{_why_unused(kernel, held)}",
                UserWarning,
                stacklevel=4,  # where the session is opened
            )


def _why_unused(kernel: UserKernel, held: Mapping[str, int]) -> str:
    """Say why a kernel computes no node of a plan that has so many of each op and target."""
    count = held.get(kernel.key, 0)
    if not count:
        near = nearest(kernel.key, held)
        return "the plan has none" + (f"; did you mean {near!r}?" if near else "")
    nodes = counted(count, "node")
    if kernel.key in REGISTRY:
        return f"it takes none of the dtypes and formats of the plan's {nodes} of this op"
    return (
        f"the plan's {nodes} of it each compute a part of a call, or several calls, or have dtypes "
        f"and formats that the kernel does not take; export with keep=[{kernel.key!r}]"
    )
