"""Read the nodes of a subgraph as steps on the device: products, and sums with a ReLU.

A graph that is being exported and a plan that is opened have the same nodes, so both are read here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The ops that have a step.
OPS = ("MATMUL", "ADD", "RELU")

#: All of a blob: the steps are read from the subgraph's own nodes, which the plan has too.
BLOB = b"products of float32 matrices, 1"

Shape = tuple[Any, ...]  # of numbers; of size expressions too in a subgraph whose sizes vary


class UnsupportedError(ValueError):
    """A node that has no step; the message says what was expected, and what it is."""


class AnyNode(Protocol):
    """A node of a graph or of a plan."""

    @property
    def op(self) -> str:
        """Return the op's name."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Return the attrs; those equal to the op's defaults may be missing."""

    @property
    def reads(self) -> Sequence[str]:
        """Return the inputs that are there."""

    @property
    def output(self) -> str:
        """Return the first output."""


class Product(NamedTuple):
    """``output = alpha * (a @ b)``: a is [..., k], b is [k, n], or [n, k] if transposed."""

    output: str
    a: str
    b: str
    alpha: float
    transpose_b: bool


class Epilogue(NamedTuple):
    """``output = x + other`` or ``x + number``, and then perhaps a ReLU.

    ``steps`` are 0 or 1: whether ``other`` has rows, and whether it has columns, as ``x`` does.
    """

    output: str
    x: str
    other: str | None
    number: float
    steps: tuple[int, int]
    has_relu: bool


class Program(NamedTuple):
    """Steps in their order, over buffers.

    Attributes
    ----------
    steps : list of Product or Epilogue
        Each names buffers. An epilogue may write where it reads.
    shapes : dict of str to tuple
        Of each buffer: the subgraph's inputs and what steps make.
    outputs : list of str
        The buffers of the subgraph's outputs.
    """

    steps: list[Product | Epilogue]
    shapes: dict[str, Shape]
    outputs: list[str]


def read_program(
    nodes: Iterable[AnyNode], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> Program:
    """Return the steps of a subgraph.

    Parameters
    ----------
    nodes : iterable of AnyNode
        In their order.
    inputs : mapping of str to TensorType
        The types of all tensors from outside.
    outputs : sequence of str

    Raises
    ------
    UnsupportedError
        If a node has no step, or there is no product.
    """
    nodes = list(nodes)
    types = dict(inputs)
    readers = Counter(name for node in nodes for name in node.reads)
    place = {name: name for name in inputs}  # the buffer of each tensor
    steps: list[Product | Epilogue] = []
    writer: dict[str, int] = {}  # the step that made a tensor
    for node in nodes:
        step, shape = read_node(node, types)
        types[step.output] = TensorType("float32", shape)
        read = step.a if isinstance(step, Product) else step.x
        # what only this step reads can be written over
        is_free = read in writer and readers[read] == 1 and read not in outputs
        in_place = is_free and isinstance(step, Epilogue)
        place[step.output] = place[read] if in_place else step.output
        before = steps[writer[read]] if in_place else None
        if node.op == "RELU" and isinstance(before, Epilogue) and not before.has_relu:
            writer[step.output] = writer[read]
            steps[writer[read]] = before._replace(has_relu=True)
            continue
        writer[step.output] = len(steps)
        output = place[step.output]
        if isinstance(step, Product):
            steps.append(step._replace(output=output, a=place[step.a], b=place[step.b]))
        else:
            other = None if step.other is None else place[step.other]
            steps.append(step._replace(output=output, x=place[step.x], other=other))
    if not any(isinstance(step, Product) for step in steps):
        raise UnsupportedError(f"expected a product, got {', '.join(n.op for n in nodes)}")
    shapes = {place[name]: type_.shape for name, type_ in types.items()}
    return Program(steps, shapes, [place[name] for name in outputs])


def read_node(node: AnyNode, types: Mapping[str, TensorType]) -> tuple[Product | Epilogue, Shape]:
    """Return the step of a node, over tensors, and its output's shape.

    Raises
    ------
    UnsupportedError
        If it has none.
    """
    if node.op not in OPS:
        raise UnsupportedError(f"expected ops among {', '.join(OPS)}, got {node.op}")
    for name in node.reads:
        type_ = types[name]
        if type_.dtype != "float32" or type_.format != "plain":
            raise UnsupportedError(f"{node.op}: expected plain float32, got {type_}")
    if node.op == "MATMUL":
        return _read_product(node, types)
    if node.op == "ADD":
        return _read_sum(node, types)
    (x,) = node.reads
    return Epilogue(node.output, x, None, 0.0, (0, 0), has_relu=True), types[x].shape


def _read_product(node: AnyNode, types: Mapping[str, TensorType]) -> tuple[Product, Shape]:
    others = node.attrs.keys() - {"alpha", "transpose_b"}
    if others or len(node.reads) != 2:
        got = ", ".join(sorted(others)) or f"{len(node.reads)} inputs"
        raise UnsupportedError(f"MATMUL: expected a product alone, got one with {got}")
    a, b = node.reads
    if len(types[a].shape) < 2 or len(types[b].shape) != 2:
        got = f"{list(types[a].shape)} @ {list(types[b].shape)}"
        raise UnsupportedError(f"MATMUL: expected one matrix on the right, got {got}")
    transposed = bool(node.attrs.get("transpose_b", False))
    columns = types[b].shape[0 if transposed else 1]
    alpha = float(node.attrs.get("alpha", 1.0))
    return Product(node.output, a, b, alpha, transposed), (*types[a].shape[:-1], columns)


def _read_sum(node: AnyNode, types: Mapping[str, TensorType]) -> tuple[Epilogue, Shape]:
    if len(node.reads) == 1:
        (x,) = node.reads
        number = float(node.attrs["scalar"])
        return Epilogue(node.output, x, None, number, (0, 0), has_relu=False), types[x].shape
    for x, other in (node.reads, reversed(node.reads)):
        shape = types[x].shape
        if (steps := _broadcast_steps(types[other].shape, shape)) is not None:
            return Epilogue(node.output, x, other, 0.0, steps, has_relu=False), shape
    got = " + ".join(str(list(types[name].shape)) for name in node.reads)
    raise UnsupportedError(f"ADD: expected a matrix, a row or a scalar to add, got {got}")


def _broadcast_steps(other: Shape, shape: Shape) -> tuple[int, int] | None:
    """Return whether the rows and the columns of ``other`` are those of ``shape``; None if not."""
    if len(other) > len(shape):
        return None
    if other == shape:
        return (1, 1)
    if all(dim == 1 for dim in other):
        return (0, 0)
    if other[-1] == shape[-1] and all(dim == 1 for dim in other[:-1]):
        return (0, 1)
    return None
