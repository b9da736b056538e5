"""Moving permutations of axes towards the outputs, where two of them meet and cancel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.analysis.product import is_plain_matmul
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape

Axes = tuple[int, ...]


def sink_permutations(graph: Graph) -> bool:
    """Let an op work on a tensor as it lies and permute the result instead.

    ::

        CONV -> PERMUTE -> RELU -> PERMUTE back -> CONV
        CONV -> RELU -> PERMUTE -> PERMUTE back -> CONV
        CONV -> RELU -> CONV                               (once remove_noops has run)

    This is how a model written for ``[N, C, H, W]`` comes to run channels-last throughout: lowering
    puts a permutation before and after each op that wants another layout. They sink through
    elementwise ops, reductions, norms, products, joins and cuts, and through a RESHAPE that keeps
    together what lies together. The other operands of an op must have the same permutation, or one
    that costs nothing: constants, and what has only one dimension that counts. An operand that lies
    otherwise is permuted only where all that read the result undo the permutation. Each step leaves
    a permutation nearer to the outputs, and what it adds above the op costs nothing or is undone.
    """
    return rewrite(graph, _sink)


class _Moved(NamedTuple):
    """An op in the layout of its permuted input: what it reads, and how its output is permuted."""

    inputs: list[str]
    attrs: Mapping[str, Any]
    axes: Axes


def _sink(graph: Graph, node: Node) -> bool:
    rule = _elementwise if is_elementwise(node) else _RULES.get(node.op)
    moved = rule(graph, node) if rule is not None else None
    if moved is None:
        return False
    name = f"{node.output}.moved"
    output = graph.add_node(node.op, moved.inputs, moved.attrs, name=name, source=node.source)
    op, attrs = permutation_op(moved.axes)
    graph.replace_node(node, op, [output], attrs)
    return True


def _permuted(graph: Graph, tensor: str) -> tuple[str, Axes] | None:
    """Return what a permutation that makes ``tensor`` reads, and its axes.

    None where it undoes another: the two are to be removed, not to sink one after the other.
    """
    producer = graph.producer(tensor)
    axes = None if producer is None else permutation(graph, producer)
    if producer is None or axes is None:
        return None
    before = graph.producer(producer.inputs[0])
    first = None if before is None else permutation(graph, before)
    if first is not None and tuple(first[axis] for axis in axes) == tuple(range(len(axes))):
        return None
    return producer.inputs[0], axes


# -- operands that broadcast or are joined ---------------------------------------------------------


def _elementwise(graph: Graph, node: Node) -> _Moved | None:
    operands = _alike(graph, node, full_rank=False)
    return None if operands is None else _Moved(operands[0], node.attrs, operands[1])


def _cat(graph: Graph, node: Node) -> _Moved | None:
    operands = _alike(graph, node, full_rank=True)
    if operands is None:
        return None
    inputs, axes = operands
    return _Moved(inputs, {"axis": axes[node.attrs["axis"]]}, axes)


def _alike(graph: Graph, node: Node, *, full_rank: bool) -> tuple[list[str], Axes] | None:
    """Return the inputs before a permutation of all of them, and that permutation.

    It is that of the largest input that has one; the others are permuted back where that is free,
    or where the permutation of the result is undone at once.
    """
    rank = len(graph.tensors[node.output].shape)
    candidates = [
        (graph.tensors[name].type.size, found[1])
        for name in node.inputs
        if len(graph.tensors[name].shape) == rank and (found := _permuted(graph, name)) is not None
    ]
    if not candidates:
        return None
    axes = max(candidates, key=lambda candidate: candidate[0])[1]
    free = [_is_free(graph, name, axes) for name in node.inputs]
    if not all(free) and not _is_undone(graph, node.output, axes, by=all):
        return None
    return [_before(graph, name, axes, full_rank=full_rank) for name in node.inputs], axes


def _is_free(graph: Graph, tensor: str, axes: Axes) -> bool:
    """Whether what ``tensor`` was before a permutation is there, or can be had without a copy."""
    found = _permuted(graph, tensor)
    return (
        (found is not None and found[1] == axes)
        or tensor in graph.constants
        or _is_filled(graph, tensor)
        or _keeps_order(_padded(graph, tensor, axes), _inverse(axes))
    )


def _before(graph: Graph, tensor: str, axes: Axes, *, full_rank: bool) -> str:
    """Return the tensor that ``tensor`` (of fewer dimensions, perhaps) is a permutation of."""
    found = _permuted(graph, tensor)
    if found is not None and found[1] == axes:
        return found[0]
    shape, back = _padded(graph, tensor, axes), _inverse(axes)
    moved = tuple(shape[axis] for axis in back)
    if _is_filled(graph, tensor):
        (source,) = graph.nodes[tensor].inputs
        return _added(graph, tensor, "EXPAND", source, {"shape": moved})
    if _keeps_order(shape, back):
        # a vector of parameters stays one; what is computed keeps its rank, and its epilogue
        while not full_rank and tensor in graph.constants and moved[:1] == (1,):
            moved = moved[1:]
        return _reshaped(graph, tensor, moved)
    return _reordered(graph, _reshaped(graph, tensor, shape), back)


def _padded(graph: Graph, tensor: str, axes: Axes) -> Shape:
    shape = graph.tensors[tensor].shape
    return (1,) * (len(axes) - len(shape)) + shape


def _is_filled(graph: Graph, tensor: str) -> bool:
    """Whether ``tensor`` is one element repeated."""
    producer = graph.producer(tensor)
    return (
        producer is not None
        and producer.op == "EXPAND"
        and graph.tensors[producer.inputs[0]].shape == ()
    )


def _is_undone(graph: Graph, tensor: str, axes: Axes, *, by: Callable[[list[bool]], bool]) -> bool:
    """Whether the readers of ``tensor`` undo a permutation of it, after ops it sinks through.

    ``by`` is ``all`` or ``any`` of them.
    """
    undone: list[bool] = []
    reached = [tensor]
    for name in reached:
        undone += [False] * graph.is_output(name)
        for reader in graph.consumers(name):
            then = permutation(graph, reader)
            same_rank = len(graph.tensors[reader.output].shape) == len(axes)
            if then is not None:
                undone.append(tuple(axes[axis] for axis in then) == tuple(range(len(axes))))
            elif same_rank and (is_elementwise(reader) or reader.op in _SAME_AXES):
                if reader.output not in reached:
                    reached.append(reader.output)
            else:
                undone.append(False)
    return by(undone)


# -- one operand -----------------------------------------------------------------------------------


def _one_axis(graph: Graph, node: Node) -> _Moved | None:
    """An op along one axis; of INDEX_SELECT the index must be a vector, so that the axis stays."""
    found = _permuted(graph, node.inputs[0])
    if found is None or len(graph.tensors[node.output].shape) != len(found[1]):
        return None
    source, axes = found
    attrs = node.attrs | {"axis": axes[node.attrs["axis"]]}
    return _Moved([source, *node.inputs[1:]], attrs, axes)


def _flip(graph: Graph, node: Node) -> _Moved | None:
    found = _permuted(graph, node.inputs[0])
    if found is None:
        return None
    source, axes = found
    return _Moved([source], {"axes": sorted(axes[axis] for axis in node.attrs["axes"])}, axes)


def _reduction(graph: Graph, node: Node) -> _Moved | None:
    found = _permuted(graph, node.inputs[0])
    if found is None:
        return None
    source, axes = found
    attrs = node.complete_attrs()
    one = "axis" in attrs
    reduced = {axes[axis] for axis in ([attrs["axis"]] if one else attrs["axes"])}
    moved = node.attrs | ({"axis": min(reduced)} if one else {"axes": tuple(sorted(reduced))})
    if not attrs["keepdim"]:
        left = [axis for axis in range(len(axes)) if axis not in reduced]
        axes = tuple(left.index(axis) for axis in axes if axis not in reduced)
    return _Moved([source], moved, axes)


def _trailing(graph: Graph, node: Node) -> _Moved | None:
    """An op on last dimensions, which the permutation leaves where they are."""
    found = _permuted(graph, node.inputs[0])
    if found is None:
        return None
    source, axes = found
    rank = len(axes)
    if node.op == "MATMUL":
        matrix = is_plain_matmul(node) and len(graph.tensors[node.inputs[1]].shape) == 2
        kept = 1 if matrix else rank
    else:
        kept = node.attrs["dims"]
    if axes[rank - kept :] != tuple(range(rank - kept, rank)) or kept == rank:
        return None
    return _Moved([source, *node.inputs[1:]], node.attrs, axes)


# -- RESHAPE ---------------------------------------------------------------------------------------


def _reshape(graph: Graph, node: Node) -> _Moved | None:
    """Split and join dimensions before permuting them.

    Where dimensions are joined that do not lie together, as in a shuffle of channels, the
    permutation is split: part of it stays before the RESHAPE, if the rest is undone at once.
    """
    found = _permuted(graph, node.inputs[0])
    if found is None:
        return None
    source, axes = found
    old, new = (graph.tensors[t].shape for t in (node.inputs[0], node.output))
    blocks = _blocks(old, new)
    if blocks is None:
        return None
    # the source's dims that make each block, in its order, and the new dims they become
    pieces = sorted(([axes[axis] for axis in mine], theirs) for mine, theirs in blocks)
    order = [axis for _, theirs in pieces for axis in theirs]
    permuted = tuple(order.index(axis) for axis in range(len(new)))
    regrouped = tuple(axis for members, _ in pieces for axis in members)
    regrouped = (*(axis for axis in sorted(axes) if axis not in regrouped), *regrouped)
    if not _keeps_order(graph.tensors[source].shape, regrouped):
        if not _is_undone(graph, node.output, permuted, by=any):
            return None
        source = _reordered(graph, source, regrouped)
    return _Moved([source], {"shape": tuple(new[axis] for axis in order)}, permuted)


def _blocks(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Pair the dims of two shapes: least groups of as many elements, in order.

    A dim of size 1 is paired with one where both stand at the same place. Else one of the old shape
    is left out, and one of the new goes with the block that follows, or the last. None if there is
    no block to go with.
    """
    before, after = list(range(len(old))), list(range(len(new)))
    blocks: list[tuple[list[int], list[int]]] = []
    while before and after and 0 not in old:
        mine, theirs = [before.pop(0)], [after.pop(0)]
        while (have := _count(old, mine)) != (want := _count(new, theirs)):
            if have == 1:
                mine = [before.pop(0)]
            elif have < want:
                mine.append(before.pop(0))
            else:
                theirs.append(after.pop(0))
        blocks.append((mine, theirs))
    if blocks:
        blocks[-1][1].extend(after)
    return blocks or None


def _count(shape: Shape, axes: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


# -- helpers ---------------------------------------------------------------------------------------


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _keeps_order(shape: Shape, axes: Axes) -> bool:
    """Whether a permutation leaves the elements of a tensor of this shape where they are."""
    counting = [axis for axis in axes if shape[axis] != 1]
    return counting == sorted(counting)


def _reshaped(graph: Graph, tensor: str, shape: Shape) -> str:
    if graph.tensors[tensor].shape == shape:
        return tensor
    return _added(graph, tensor, "RESHAPE", tensor, {"shape": shape})


def _reordered(graph: Graph, tensor: str, axes: Axes) -> str:
    op, attrs = permutation_op(axes)
    return _added(graph, tensor, op, tensor, attrs)


def _added(graph: Graph, like: str, op: str, source: str, attrs: Mapping[str, Any]) -> str:
    producer = graph.producer(like)
    origin = "" if producer is None else producer.source
    return graph.add_node(op, [source], attrs, name=f"{like}.moved", source=origin)


#: Ops whose output has the axes of their first input.
_SAME_AXES = frozenset({"CAT", "SLICE", "FLIP", "RESAMPLE", "SOFTMAX", "CUMSUM"})

_RULES: Mapping[str, Callable[[Graph, Node], _Moved | None]] = {
    "CAT": _cat,
    "FLIP": _flip,
    "RESHAPE": _reshape,
    **dict.fromkeys(
        ("CUMPROD", "CUMSUM", "INDEX_SELECT", "RESAMPLE", "SLICE", "SOFTMAX"), _one_axis
    ),
    **dict.fromkeys(
        ["ALL", "AMAX", "AMIN", "ANY", "ARGMAX", "ARGMIN", "MEAN", "PROD", "SUM", "VAR"], _reduction
    ),
    **dict.fromkeys(("LAYER_NORM", "MATMUL", "RMS_NORM"), _trailing),
}
