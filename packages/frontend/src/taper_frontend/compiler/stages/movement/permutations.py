"""Move permutations to where they cancel, and the rest to where they are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.permutation import permutation, permutation_op, swaps
from taper_frontend.compiler.analysis.tile_programs import is_elementwise, is_fusable
from taper_frontend.compiler.graph.node import ABSENT, SourceLine
from taper_frontend.compiler.rules.engine import rewrite
from taper_frontend.compiler.stages.movement.crossing import (
    inverse,
    keeps_order,
    padded,
    permuted,
    reorder,
)
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.region import WHOLE, Grouped, Same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.stages.movement.crossing import Axes
    from taper_runtime.ops.opdef import Shape

#: The most tensors that are searched for readers that undo a permutation: a residual path leads
#: through all layers of a model.
_NEAR = 64


def sink_permutations(graph: Graph) -> bool:
    """Let an op compute on the unpermuted tensor and permute its result instead.

    ::

        CONV -> PERMUTE -> RELU -> PERMUTE back -> CONV
        CONV -> RELU -> PERMUTE -> PERMUTE back -> CONV
        CONV -> RELU -> CONV                               (once remove_noops has run)

    In this way a model written for ``[N, C, H, W]`` runs channels-last throughout: lowering puts a
    permutation before and after each op that needs another layout. Permutations sink through every
    op whose region allows it (:func:`.crossing.reorder`), and through RESHAPEs that do not split
    groups of adjacent dimensions. The other operands of an op must have the same permutation, or
    one that costs nothing: constants, and tensors with at most one dimension larger than 1. Any
    other operand is permuted only if all readers of the result undo the permutation. Each step
    moves a permutation closer to the outputs, and permutations that it adds above the op are free
    or undone.
    """
    return rewrite(graph, _sink)


def _sink(graph: Graph, node: Node) -> bool:
    """Compute a node on unpermuted inputs, and permute its result, if that is possible."""
    found = {
        index: found
        for index, name in enumerate(node.inputs)
        if name != ABSENT and (found := _permuted(graph, name)) is not None
    }
    # a COPY is left only where an output repeats another one, and would be made again
    if not found or node.op == "COPY" or permutation(graph, node) is not None:
        return False
    moved = _reshape(graph, node) if node.op == "RESHAPE" else _reordered(graph, node, found)
    if moved is None:
        return False
    name = f"{node.output}.moved"
    output = graph.add_node(node.op, moved.inputs, moved.attrs, name=name, source=node.source)
    op, attrs = permutation_op(moved.axes)
    graph.replace_node(node, op, [output], attrs)
    return True


class _Moved(NamedTuple):
    """An op in the layout of its permuted input: its inputs, and the permutation of its output."""

    inputs: list[str]
    attrs: Mapping[str, Any]
    axes: Axes


def _permuted(graph: Graph, tensor: str) -> tuple[str, Axes] | None:
    """Return the tensor before the permutations that make ``tensor``, and these as one."""
    source, axes = tensor, tuple(range(len(graph.tensors[tensor].shape)))
    while (node := graph.producers.get(source)) and (first := permutation(graph, node)) is not None:
        source, axes = node.inputs[0], permuted(first, axes)
    return None if axes == tuple(range(len(axes))) else (source, axes)


# -- any op ----------------------------------------------------------------------------------------


def _reordered(graph: Graph, node: Node, found: Mapping[int, tuple[str, Axes]]) -> _Moved | None:
    """Return ``node`` in the layout of its largest permuted input.

    Other inputs are permuted back if that is free, or if the permutation of the result is undone at
    once.
    """
    sizes = {i: graph.typical(graph.tensors[node.inputs[i]].type.size) for i in found}
    for index in sorted(found, key=sizes.__getitem__, reverse=True):
        axes = found[index][1]
        moved = reorder(graph, node, index, axes)
        if moved is None:
            continue
        pairs = list(zip(node.inputs, moved.follows, strict=True))
        # an op that adds axes has a larger result than input, and permuting the input is cheaper
        free = len(moved.axes) <= len(axes) and all(
            _is_free(graph, name, axes) for name, follows in pairs if follows
        )
        if not free and not _is_undone(graph, node.output, moved.axes, by=all):
            return None
        inputs = [_before(graph, node, name, axes) if follows else name for name, follows in pairs]
        return _Moved(inputs, moved.attrs, moved.axes)
    return None


def _is_free(graph: Graph, tensor: str, axes: Axes) -> bool:
    """Return whether the tensor before a permutation exists, or can be had without a copy."""
    found = _permuted(graph, tensor)
    return (
        (found is not None and found[1] == axes)
        or tensor in graph.constants
        or _is_filled(graph, tensor)
        or keeps_order(_padded(graph, tensor, axes), inverse(axes))
    )


def _before(graph: Graph, node: Node, tensor: str, axes: Axes) -> str:
    """Return the tensor of which ``tensor`` (perhaps of lower rank) is a permutation."""
    found = _permuted(graph, tensor)
    if found is not None and found[1] == axes:
        return found[0]
    shape, back = _padded(graph, tensor, axes), inverse(axes)
    moved = permuted(shape, back)
    if _is_filled(graph, tensor):
        (source,) = graph.nodes[tensor].inputs
        return _added(graph, tensor, "EXPAND", source, {"shape": moved})
    if keeps_order(shape, back):
        # a vector of parameters stays a vector; a computed tensor keeps its rank, and its epilogue
        while is_elementwise(node) and tensor in graph.constants and moved[:1] == (1,):
            moved = moved[1:]
        return _reshaped(graph, tensor, moved)
    return _reordered_tensor(graph, _reshaped(graph, tensor, shape), back)


def _padded(graph: Graph, tensor: str, axes: Axes) -> Shape:
    return padded(graph.tensors[tensor].shape, len(axes))


def _is_filled(graph: Graph, tensor: str) -> bool:
    """Return whether all elements of ``tensor`` are one repeated element."""
    producer = graph.producers.get(tensor)
    return (
        producer is not None
        and producer.op == "EXPAND"
        and graph.tensors[producer.inputs[0]].shape == ()
    )


def _is_undone(
    graph: Graph, tensor: str, axes: Axes, *, by: Callable[[Iterable[bool]], bool]
) -> bool:
    """Return whether the readers of ``tensor`` undo a permutation, after ops it sinks through.

    ``by`` is ``all`` or ``any``.
    """
    return by(_undone(graph, tensor, axes))


def _undone(graph: Graph, tensor: str, axes: Axes) -> Iterator[bool]:
    """Yield for each reader whether it does; False for one that is far from ``tensor``."""
    reached = [tensor]
    for name in reached:
        if graph.is_output(name):
            yield False
        for reader in graph.consumers(name):
            then = permutation(graph, reader)
            if then is not None:
                yield permuted(axes, then) == tuple(range(len(axes)))
            elif len(reached) < _NEAR and _keeps_axes(graph, reader, name, axes):
                if reader.output not in reached:
                    reached.append(reader.output)
            else:
                yield False


def _keeps_axes(graph: Graph, reader: Node, tensor: str, axes: Axes) -> bool:
    """Return whether a permutation of ``tensor`` sinks unchanged through a reader of it."""
    moved = reorder(graph, reader, reader.inputs.index(tensor), axes)
    return moved is not None and moved.axes == axes


# -- RESHAPE ---------------------------------------------------------------------------------------


def _reshape(graph: Graph, node: Node) -> _Moved | None:
    """Split and join dimensions before permuting them.

    If the joined dimensions are not adjacent before the permutation, as in a channel shuffle, the
    permutation is split: a part of it stays before the RESHAPE, if the rest is undone at once.
    """
    found = _permuted(graph, node.inputs[0])
    assert found is not None
    source, axes = found
    new = graph.tensors[node.output].shape
    blocks = _blocks(graph, node)
    if not blocks:
        return None
    # the source's dims of each group, in the source's order, and the new dims that they become
    pieces = sorted(([axes[axis] for axis in mine], theirs) for mine, theirs in blocks)
    order = [axis for _, theirs in pieces for axis in theirs]
    for axis in sorted(set(range(len(new))) - set(order)):
        # a new dim keeps its position, except a last one, which stays after the dim before it
        order.insert(order.index(axis - 1) + 1 if axis == len(new) - 1 else axis, axis)
    result = tuple(order.index(axis) for axis in range(len(new)))
    regrouped = tuple(axis for members, _ in pieces for axis in members)
    regrouped = (*(axis for axis in sorted(axes) if axis not in regrouped), *regrouped)
    if not keeps_order(graph.tensors[source].shape, regrouped):
        if not _is_undone(graph, node.output, result, by=any):
            return None
        source = _reordered_tensor(graph, source, regrouped)
    return _Moved([source], {"shape": tuple(new[axis] for axis in order)}, result)


def _blocks(graph: Graph, node: Node) -> list[tuple[list[int], list[int]]]:
    """Pair groups of axes of a RESHAPE's input and output that hold the same elements, in order.

    An input axis of size 1 that is not in the output is left out. A new axis of size 1 belongs to
    the following group, or to the last one.
    """
    x, output = (graph.tensors[name].type for name in (node.inputs[0], node.output))
    (region,) = node.definition.needs([x], output, node.complete_attrs())
    blocks: list[tuple[list[int], list[int]]] = []
    for axis, relation in enumerate(region):
        if isinstance(relation, Same):
            blocks.append(([axis], [relation.axis]))
        elif isinstance(relation, Grouped):
            if relation.inputs[0] == axis:
                blocks.append((list(relation.inputs), list(relation.outputs)))
        elif relation is WHOLE:
            return []
    if not blocks:
        return []
    return blocks


# -- helpers ---------------------------------------------------------------------------------------


def _reshaped(graph: Graph, tensor: str, shape: Shape) -> str:
    if graph.tensors[tensor].shape == shape:
        return tensor
    return _added(graph, tensor, "RESHAPE", tensor, {"shape": shape})


def _reordered_tensor(graph: Graph, tensor: str, axes: Axes) -> str:
    op, attrs = permutation_op(axes)
    return _added(graph, tensor, op, tensor, attrs)


def _added(graph: Graph, like: str, op: str, source: str, attrs: Mapping[str, Any]) -> str:
    producer = graph.producers.get(like)
    origin = SourceLine() if producer is None else producer.source
    return graph.add_node(op, [source], attrs, name=f"{like}.moved", source=origin)


# -- hoisting --------------------------------------------------------------------------------------


def hoist_permutations(graph: Graph) -> bool:
    """Move a permutation that would be a copy above the elementwise node before it.

    ::

        x -> MAP -> PERMUTE -> CONV             x -> PERMUTE -> MAP -> CONV

    This is the opposite of :func:`sink_permutations`, and comes after it. Sinking brings
    permutations together, so that they cancel. One that is left then stands as far down as it can,
    where it is a copy. An elementwise node reads its operands in any order of memory, so the same
    permutation costs nothing before it. The node's result must have no other reader.
    """
    return rewrite(graph, _permute_operands)


def _permute_operands(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    producer = None if axes is None else graph.producers.get(node.inputs[0])
    if (
        axes is None
        or producer is None
        or not is_fusable(graph, producer)
        or graph.sole_consumer(producer.output) is not node
        or not _is_copied(graph, node)
    ):
        return False
    inputs = [_operand(graph, name, axes, node.source) for name in producer.inputs]
    graph.replace_node(node, producer.op, inputs, producer.attrs)
    return True


def _operand(graph: Graph, tensor: str, axes: Axes, source: SourceLine) -> str:
    """Return an operand, perhaps of lower rank, for a permuted result."""
    shape = graph.tensors[tensor].shape
    if not shape:
        return tensor
    full = padded(shape, len(axes))
    if full != shape:
        tensor = graph.add_node("RESHAPE", [tensor], {"shape": full}, source=source)
    op, attrs = permutation_op(axes)
    return graph.add_node(op, [tensor], attrs, source=source)


def _is_copied(graph: Graph, node: Node) -> bool:
    """Return whether some reader needs the permuted tensor in row-major order."""
    return graph.is_output(node.output) or any(
        reader.definition.view is None and not reader.definition.takes_strided(index)
        for reader in graph.consumers(node.output)
        for index, name in enumerate(reader.inputs)
        if name == node.output
    )


def absorb_output_transpose(graph: Graph) -> bool:
    """Let ATTENTION write its output with adjacent heads.

    ::

        ATTENTION -> [B, H, L, D]                  ATTENTION(transpose_output) -> [B, L, H, D]
          -> TRANSPOSE(1, 2) -> [B, L, H, D]         -> RESHAPE [B, L, H * D]     (now free)
          -> RESHAPE [B, L, H * D]                                                (was a copy)

    This applies only if nothing else reads the original output.
    """
    return rewrite(graph, _absorb_transpose)


def _absorb_transpose(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    if axes is None or len(axes) != 4 or not swaps(axes, 1, 2):
        return False
    attention = graph.producers.get(node.inputs[0])
    if attention is None or attention.op != "ATTENTION" or attention.attrs.get("transpose_output"):
        return False
    if graph.sole_consumer(attention.output) is not node:
        return False
    attrs = attention.attrs | {"transpose_output": True}
    graph.replace_node(node, "ATTENTION", attention.inputs, attrs)
    return True
