"""Remove data movement without effect, or that the next movement makes redundant."""

from __future__ import annotations

import math

import numpy as np

from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.rules.engine import Replacement, Rule, RuleSet
from taper_frontend.compiler.rules.pattern import (
    Match,
    TensorName,
    attr,
    constant,
    like,
    op,
    shared,
    tensor,
)
from taper_runtime.base.sizes import is_static
from taper_runtime.ops.convert import is_native_cast
from taper_runtime.ops.elementwise import MICROOPS
from taper_runtime.ops.type_rules import broadcast

_X = tensor()
_AXIS = attr()
_INDEX = constant()
_ELEMENTWISE = (*MICROOPS, "CAST", "MAP")
_PERMUTATION = ("TRANSPOSE", "PERMUTE")

_RESHAPE = op("RESHAPE", shared(op("RESHAPE", _X)))
_EXPAND = op("EXPAND", shared(op("EXPAND", _X)))
_INNER_CAST = op("CAST", _X)
_CAST = op("CAST", shared(_INNER_CAST))
_INNER_SLICE = op("SLICE", _X, axis=_AXIS)
_SLICE = op("SLICE", shared(_INNER_SLICE), axis=_AXIS)


def _join_permutations(match: Match) -> Replacement:
    """Merge a permutation with the one it reads, in its normal form."""
    graph, node = match.graph, match.node
    axes, source = permutation(graph, node), node.inputs[0]
    producer = graph.producers.get(source)
    if axes is None:
        return None
    if producer is not None and (first := permutation(graph, producer)) is not None:
        source = producer.inputs[0]
        axes = tuple(first[axis] for axis in axes)
    if axes == tuple(range(len(axes))):
        return TensorName(source)
    joined, attrs = permutation_op(axes)
    if source == node.inputs[0] and joined == node.op:
        return None
    return op(joined, source, **attrs)


def _join_slices(match: Match) -> Replacement:
    outer, inner = match.node.complete_attrs(), match.producer(_INNER_SLICE).complete_attrs()
    if inner["step"] == outer["step"] == 1:
        start, stop = (inner["start"] + outer[end] for end in ("start", "stop"))
        return op("SLICE", _X, axis=_AXIS, start=start, stop=stop)
    if not all(is_static(attrs[end]) for attrs in (outer, inner) for end in ("start", "stop")):
        return None
    picked = range(inner["start"], inner["stop"], inner["step"])[
        outer["start"] : outer["stop"] : outer["step"]
    ]
    start, stop = (picked[0], picked[-1] + 1) if picked else (0, 0)
    return op("SLICE", _X, axis=_AXIS, start=start, stop=stop, step=picked.step)


def _loses_nothing(match: Match) -> bool:
    """Return whether the second dtype has every value of the first.

    Kernels may need the second dtype.
    """
    dtypes = first, second = match.type(_X).dtype, match.type(_INNER_CAST).dtype
    if "bfloat16" in dtypes or dtypes == ("int64", "float64"):  # numpy considers this cast safe
        return False
    last = match.output.dtype
    return np.can_cast(first, second, "safe") and (last == first or is_native_cast(first, last))


def _let_op_broadcast(match: Match) -> Replacement:
    """Let an elementwise op broadcast a small operand, if another one has the full shape."""
    graph, node = match.graph, match.node
    for index, name in enumerate(node.inputs):
        producer = graph.producers.get(name)
        if producer is None or producer.op != "EXPAND":
            continue
        inputs = list(node.inputs)
        inputs[index] = producer.inputs[0]
        shapes = [graph.tensors[t].shape for t in inputs]
        if broadcast(node.op, shapes) == match.output.shape:
            return op(node.op, *inputs, **node.attrs)
    return None


def _expand_later(match: Match) -> Replacement:
    """Compute before expanding; the expanded value stays a view for readers that accept views."""
    graph, node = match.graph, match.node
    producers = [graph.producers.get(name) for name in node.inputs]
    expands = [p for p in producers if p is not None and p.op == "EXPAND"]
    if len(expands) != 1 or graph.sole_consumer(expands[0].output) is not node:
        return None
    (expand,) = expands
    inputs = [expand.inputs[0] if name == expand.output else name for name in node.inputs]
    shapes = [graph.tensors[name].shape for name in inputs]
    shape = match.output.shape
    if math.prod(broadcast(node.op, shapes)) == math.prod(shape):
        return None
    name = f"{node.output}.once"
    small = graph.add_node(node.op, inputs, node.attrs, name=name, source=node.source)
    return op("EXPAND", small, shape=shape)


def _selects_all(match: Match) -> bool:
    size = match.type(_X).shape[match.node.attrs["axis"]]
    places = match.graph.value(match[_INDEX]) if is_static(size) else None
    return places is not None and np.array_equal(places.ravel(), np.arange(size))


#: Each rule leaves fewer movements on some path, or an EXPAND nearer to the outputs. A replacement
#: by a piece applies only if the types are equal, that is, if nothing is moved.
remove_noops = RuleSet(
    "remove_noops",
    Rule("movement that moves nothing", op(("RESHAPE", "CAST", "EXPAND", "SLICE", "COPY"), _X), _X),
    Rule("CAT of one", op("CAT", _X), _X),
    Rule("PERMUTE of PERMUTE", op(_PERMUTATION), _join_permutations),
    Rule("RESHAPE of RESHAPE", _RESHAPE, like(_RESHAPE, _X)),
    Rule("EXPAND of EXPAND", _EXPAND, like(_EXPAND, _X)),
    Rule("SLICE of SLICE", _SLICE, _join_slices),
    Rule("CAST of CAST", _CAST, like(_CAST, _X), where=_loses_nothing),
    Rule("EXPAND that the op repeats itself", op(_ELEMENTWISE), _let_op_broadcast),
    Rule("op of EXPAND", op(_ELEMENTWISE), _expand_later),
    Rule(
        "INDEX_SELECT of all",
        op("INDEX_SELECT", _X, _INDEX),
        op("RESHAPE", _X, shape=lambda m: m.output.shape),
        where=_selects_all,
    ),
)
