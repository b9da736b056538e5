"""Rewrite an ATen call as one call of another op, without tracing its decomposition.

A rule returns the call that tracing the op's decomposition would give. It returns None if that is
more than one call, or depends on properties that the rule does not check.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Given = dict[str, Any]

aten = torch.ops.aten


class AtenCall(NamedTuple):
    """An op and its arguments.

    Attributes
    ----------
    target : OpOverload
    args : tuple
    kwargs : dict
    results : tuple of Tensor
        The results of an op with several results, without data; the first one is used.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...] = ()


def respell(node: Node) -> AtenCall | Node | None:
    """Return an equivalent call, or the node that already has the result, or None."""
    rule = _RULES.get(str(node.target))
    return None if rule is None else rule(node, arguments(node))


def arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults."""
    assert isinstance(node.target, OpOverload)
    schema = node.target._schema.arguments
    given: dict[str, Any] = {argument.name: argument.default_value for argument in schema}
    return given | dict(zip(given, node.args, strict=False)) | node.kwargs


def _same_arguments(target: Any) -> Callable[[Node, Given], AtenCall]:
    return lambda node, given: AtenCall(target, node.args, node.kwargs)


def _value(node: Any) -> torch.Tensor | None:
    """Return the result of a node, if it is a tensor of known sizes and strides."""
    value = node.meta["val"] if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    return None if any(isinstance(size, torch.SymInt) for size in value.shape) else value


def _cast(node: Node, given: Given) -> AtenCall | Node | None:
    source, value = node.args[0], node.meta["val"]
    if not isinstance(source, Node) or given.get("copy"):
        return None
    if given.get("memory_format") not in (None, torch.preserve_format):  # may be a copy
        return None
    before = source.meta["val"]
    if value.dtype == before.dtype and value.device == before.device:
        return source
    if str(node.target) not in _CONVERSIONS or value.device != before.device:
        return None
    return AtenCall(aten._to_copy.default, (source,), {"dtype": value.dtype})


def _contiguous(node: Node, given: Given) -> AtenCall | Node | None:
    before = _value(given["self"])
    wanted = node.kwargs.get("memory_format", torch.contiguous_format)
    if before is None or wanted != torch.contiguous_format:
        return None
    if before.is_contiguous():
        source: Node = given["self"]
        return source
    kwargs = {"memory_format": torch.contiguous_format}
    return AtenCall(aten.clone.default, (given["self"],), kwargs)


def _shape(node: Node, given: Given) -> AtenCall | None:
    before, value = _value(node.args[0]), _value(node)
    if before is None or value is None or not before.is_contiguous():
        return None
    return AtenCall(aten.view.default, (node.args[0], [*value.shape]), {})


def _transpose(node: Node, given: Given) -> AtenCall | None:
    axes: list[Any] = list(range(node.meta["val"].dim()))
    if not axes:
        return None
    first, second = (int(axis) for axis in node.args[1:])  # type: ignore[arg-type]
    axes[first], axes[second] = axes[second], axes[first]
    return AtenCall(aten.permute.default, (node.args[0], axes), {})


def _convolution(node: Node, given: Given) -> AtenCall | None:
    x, weight = (given[name].meta["val"] for name in ("input", "weight"))
    steps = [given[name] for name in ("stride", "padding", "dilation")]
    spatial = weight.dim() - 2
    if x.dim() != weight.dim() or x.is_complex():
        return None
    if any(isinstance(step, int) or len(step) != spatial for step in steps):
        return None
    tensors = (given[name] for name in ("input", "weight", "bias"))
    args = (*tensors, *steps, False, [0] * spatial, given["groups"])
    return AtenCall(aten.convolution.default, args, {})


def _arange(node: Node, given: Given) -> AtenCall:
    return AtenCall(aten.arange.start_step, (given.get("start", 0), given["end"]), node.kwargs)


def _filled(number: int) -> Callable[[Node, Given], AtenCall]:
    def rule(node: Node, given: Given) -> AtenCall:
        dtype = node.meta["val"].dtype
        filling = bool(number) if dtype == torch.bool else number
        return AtenCall(aten.full.default, (given["size"], filling), {"dtype": dtype})

    return rule


def _softmax(target: Any) -> Callable[[Node, Given], AtenCall | None]:
    def rule(node: Node, given: Given) -> AtenCall | None:
        if given["self"].meta["val"].dtype != node.meta["val"].dtype:
            return None
        return AtenCall(target, (given["self"], given["dim"], False), {})

    return rule


def _batch_norm(node: Node, given: Given) -> AtenCall | None:
    if given["training"] or given["running_mean"] is None:
        return None
    names = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
    value = node.meta["val"]
    return AtenCall(
        aten._native_batch_norm_legit_no_training.default,  # it writes to nothing
        tuple(given[name] for name in names),
        {},
        (value, value.new_empty(0), value.new_empty(0)),
    )


def _group_norm(node: Node, given: Given) -> AtenCall | None:
    """Return a ``group_norm`` as ``native_group_norm``; None if its input is not contiguous."""
    x = _value(given["input"])
    if x is None or not x.is_contiguous() or not x.numel():
        return None
    batch, channels, *positions = x.shape
    tensors = (given[name] for name in ("input", "weight", "bias"))
    groups, value = given["num_groups"], node.meta["val"]
    statistics = value.new_empty(batch, groups)
    sizes = (batch, channels, math.prod(positions), groups)
    return AtenCall(
        aten.native_group_norm.default,
        (*tensors, *sizes, given["eps"]),
        {},
        (value, statistics, statistics),
    )


#: Ops that convert the dtype of their first argument.
_CONVERSIONS = frozenset({
    "aten.to.device",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.type_as.default",
})  # fmt: skip

#: Ops that return their first argument if it already has the dtype.
CASTS = _CONVERSIONS | {
    "aten.detach_.default",
    "aten.dropout.default",
    "aten.dropout_.default",
}

_RULES: dict[str, Callable[[Node, Given], AtenCall | Node | None]] = {
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(
        (
            "aten.flatten.using_ints",
            "aten.reshape.default",
            "aten.reshape_as.default",
            "aten.unflatten.int",
        ),
        _shape,
    ),
    "aten.__and__.Tensor": _same_arguments(aten.bitwise_and.Tensor),
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.batch_norm.default": _batch_norm,
    "aten.contiguous.default": _contiguous,
    "aten.conv1d.default": _convolution,
    "aten.conv2d.default": _convolution,
    "aten.conv3d.default": _convolution,
    "aten.group_norm.default": _group_norm,
    "aten.lift_fresh_copy.default": _same_arguments(aten.clone.default),
    "aten.log_softmax.int": _softmax(aten._log_softmax.default),
    "aten.new_ones.default": _filled(1),
    "aten.new_zeros.default": _filled(0),
    "aten.ones.default": _filled(1),
    "aten.softmax.int": _softmax(aten._softmax.default),
    "aten.transpose.int": _transpose,
    "aten.zeros.default": _filled(0),
}
