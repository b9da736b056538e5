"""Find the float weights of a graph, and store them as a scheme says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.analysis.tile_programs import tile_program
from taper_frontend.compiler.graph.constants import (
    Constant,
    Derived,
    Parameter,
    derived,
    reshaped,
)
from taper_frontend.compiler.quantization.factored import FORMAT
from taper_frontend.compiler.quantization.round_activations import activation_group
from taper_frontend.compiler.quantization.rounding import Rounded, round_matrix, rounded_to
from taper_frontend.compiler.quantization.schemes import FLOAT32, HALVES, Scheme, parse_scheme
from taper_runtime.base.dtypes import cast
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats import PLAIN, decode, find
from taper_runtime.formats.blocks import Blocks
from taper_runtime.ops.map import MAX_INPUTS, MAX_INSTRUCTIONS
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.arithmetic import HALVED, ROUNDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape

#: The ops whose weights are quantized: [..., K, N], with outputs last; a table is [N, K].
_OPS = ("MATMUL", "CONV", "CONV_TRANSPOSE", "GROUPED_MATMUL", "EMBEDDING")

_PRODUCTS = _OPS[:-1]

_FLOATS = ("float32", *HALVES)

#: The scheme of convolutions, experts and tables where that of matrices has groups of few bits.
_BY_CHANNEL = parse_scheme("int8")

_ROWS_DECODED = "float32, rows decoded in each run"


class Layer(NamedTuple):
    """Record of what became of a weight.

    Attributes
    ----------
    name : str
        The names of the parameters that it is made of, joined by `` + ``.
    op : str
        The op that reads it.
    shape : tuple of int
        K and N: the rows that a product sums over, and its outputs.
    scheme : str
        The name of its scheme; ``"float32"`` if it stays as it is.
    before, after : int
        The bytes of the floats, and those in the file.
    error : float
        The relative error of its numbers.
    arithmetic : str
        How runs compute with it.
    reason : str
        Why it stays as it is; empty if it does not, or if that was asked for.
    """

    name: str
    op: str
    shape: tuple[int, int]
    scheme: str
    before: int
    after: int
    error: float
    arithmetic: str
    reason: str = ""


@dataclass(slots=True)
class FloatWeight:
    """A float weight, and the nodes that read it.

    Attributes
    ----------
    names : tuple of str
        The parameters that it is made of.
    plain : Constant
        The weight as the op means it, in no format.
    op : str
    nbytes : int
        The bytes of its floats.
    is_table : bool
        Whether nodes look up its rows; then it is ``[N, K]``, and products read its transpose.
    readers : list of (Graph, Node)
    """

    names: tuple[str, ...]
    plain: Constant
    op: str
    nbytes: int
    is_table: bool = False
    is_transposed: bool = False
    readers: list[tuple[Graph, Node]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the name for users."""
        return " + ".join(self.names)

    @property
    def is_by_rows(self) -> bool:
        """Return whether each output has a row of the weight, instead of a column."""
        return self.is_table or self.is_transposed

    @property
    def shape(self) -> tuple[int, int]:
        """Return K and N."""
        shape = self.plain.shape
        if self.is_by_rows:
            return math.prod(shape[1:]), shape[0]
        return _as_matrix(shape)

    def matrix(self) -> np.ndarray:
        """Return the numbers as float32 ``[K, N]``."""
        array = cast(self.plain.value(), "float32")
        if self.is_by_rows:
            return array.reshape(array.shape[0], -1).T
        return array.reshape(-1, array.shape[-1])

    def served(self, scheme: Scheme) -> Scheme:
        """Return the scheme that the weight gets: kernels read groups of matrices alone."""
        if scheme.dtype != "int":
            return scheme
        if self.is_table:  # one of 8 bits keeps its groups
            is_kept = scheme.bits == 8 and scheme.group and self.shape[0] % scheme.group == 0
            return scheme if is_kept else _BY_CHANNEL
        if self.op != "MATMUL":
            return _BY_CHANNEL
        is_matrix = len(self.plain.shape) == 2
        return scheme.fitting(self.shape[0] if is_matrix else 1)  # no op decodes factors


def _rows(shape: Shape) -> tuple[int, int]:
    """Return how many rows a table has, and their numbers."""
    return shape[0], math.prod(shape[1:])


def _as_matrix(shape: Shape) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def find_weights(
    graph: Graph, names: Mapping[Constant, tuple[str, ...]]
) -> tuple[list[FloatWeight], list[Layer]]:
    """Return the float weights of a graph and of the blocks in it.

    Parameters
    ----------
    graph : Graph
    names : mapping of Constant to tuple of str
        The parameters that a constant is made of.

    Returns
    -------
    tuple of two lists
        The weights, and a record for each that cannot be quantized, with the reason.
    """
    found: dict[Constant, FloatWeight] = {}
    left: dict[Constant, Layer] = {}
    _find(graph, names, found, left)
    weights = []
    for constant, weight in found.items():
        if reason := _refusal(weight):
            shape, nbytes = weight.shape, weight.nbytes
            left[constant] = Layer(
                weight.name, weight.op, shape, FLOAT32, nbytes, nbytes, 0.0, "float32", reason
            )
        else:
            weights.append(weight)
    return weights, list(left.values())


def _refusal(weight: FloatWeight) -> str:
    """Return why a weight cannot be quantized; empty if it can."""
    ways = {
        bool(node.attrs.get("transpose_b")) for _, node in weight.readers if node.op == "MATMUL"
    }
    if len(ways) > 1 or (weight.is_table and False in ways):
        return "products read it both as it lies and transposed"
    activations = [
        graph.tensors[node.inputs[0]].dtype
        for graph, node in weight.readers
        if node.op in _PRODUCTS
    ]
    if any(dtype != "float32" for dtype in activations):
        return f"its activations are {activations[0]}"
    if weight.is_table and len(weight.plain.shape) != 2:
        return "it is a table of more than rows"
    return ""


def _find(
    graph: Graph,
    names: Mapping[Constant, tuple[str, ...]],
    found: dict[Constant, FloatWeight],
    left: dict[Constant, Layer],
) -> None:
    """Add the weights of a graph, and of the blocks in it, to those that are known."""
    for node in graph.order():
        for block in node.blocks:
            _find(block, names, found, left)
        if node.op not in _OPS or node.attrs.get("accumulate"):
            continue
        name = node.inputs[node.definition.weights[0]]
        constant = graph.constants.get(name)
        if constant is None or constant.dtype not in _FLOATS or len(constant.shape) < 2:
            continue
        if node.op == "EMBEDDING" and _scales_integers(graph, node):
            continue  # quantized already
        called = names.get(constant) or (name,)
        plain = _plain(constant)
        if plain is None:
            if not find(constant.type.format).is_for_kernels:
                continue  # quantized already
            shape, nbytes = _as_matrix(constant.shape), constant.nbytes
            left[constant] = Layer(
                *(" + ".join(called), node.op, shape, FLOAT32, nbytes, nbytes, 0.0, "float32"),
                f"the plan has it only in format {constant.type.format}; "
                "export with packing='at_open'",
            )
            continue
        if constant not in found:
            found[constant] = FloatWeight(called, plain, node.op, plain.nbytes)
        weight = found[constant]
        weight.is_table |= node.op == "EMBEDDING"
        if node.op == "MATMUL":
            weight.op, weight.is_transposed = "MATMUL", bool(node.attrs.get("transpose_b"))
        weight.readers.append((graph, node))


def _scales_integers(graph: Graph, node: Node) -> bool:
    """Return whether a lookup reads the scales of rows of integers, which another one looks up."""
    scales, indices = node.inputs[:2]
    rows, columns = _rows(graph.tensors[scales].shape)
    lookups = [other for other in graph.order() if other.op == "EMBEDDING"]
    tables = [graph.tensors[other.inputs[0]] for other in lookups if other.inputs[1] == indices]
    levels = [_rows(table.shape) for table in tables if table.dtype in ("int8", "uint8")]
    return any(count == rows and length % columns == 0 for count, length in levels)


def _plain(constant: Constant) -> Constant | None:
    """Return a weight without its format; None if the format does not keep the numbers."""
    if constant.type.format == PLAIN:
        return constant
    if isinstance(constant, Derived) and constant.op == "PACK" and len(constant.inputs) == 1:
        return constant.inputs[0]
    format = find(constant.type.format)
    if not format.is_for_kernels or format.tolerance:
        return None
    type_ = TensorType(constant.dtype, constant.shape)
    return Parameter(type_, ("weight",), lambda: decode(constant.value(), constant.type))


def quantize_weight(
    weight: FloatWeight,
    scheme: Scheme,
    *,
    search: bool = True,
    rounded: Rounded | None = None,
    activations: str = "",
) -> Layer:
    """Store a weight as a scheme says, in all nodes that read it.

    ::

        MATMUL(x, w)               MATMUL(x, PACK(levels, scales, blocks...))
        CONV(x, w)                 CONV(x, PACK(DEQUANTIZE(levels, scales), ...))
        EMBEDDING(w, i)            PERMUTE(INDEX_SELECT(PACK(levels, scales, blocks...), i))
        EMBEDDING(w, i)            MUL(CAST(EMBEDDING(levels, i)), EMBEDDING(scales, i))
        MATMUL(x, w, transpose_b)  MUL(MATMUL(x, levels, transpose_b), scales)

    The second one is a constant that sessions compute. The last two are for a table with a scale
    for each row, whose rows are looked up, and whose products read it as it lies.

    Parameters
    ----------
    weight : FloatWeight
    scheme : Scheme
        One that :meth:`FloatWeight.served` returns.
    search : bool
        See :func:`.round_matrix`.
    rounded : Rounded, optional
        The integers, if they are known already.
    activations : str
        How products will round their activations, for the report (:mod:`.round_activations`).

    Raises
    ------
    ExportError
        As :func:`.round_matrix`.
    """
    rows = weight.shape[0]
    if scheme.dtype == FLOAT32:
        return _layer(weight, scheme, weight.nbytes, 0.0, "float32")
    if scheme.dtype in HALVES:
        return _halve(weight, scheme, activations)
    if rounded is None:
        rounded = round_matrix(weight.matrix(), scheme, search=search, name=weight.name)
    leaves = _leaves(weight, scheme, rounded)
    after = sum(leaf.nbytes for leaf in leaves)
    if weight.is_table and not scheme.group:
        for graph, node in weight.readers:
            _look_up(graph, node, weight.name, *leaves)
        return _layer(weight, scheme, after, rounded.error, _ROWS_DECODED)
    size = scheme.group or rows
    is_matrix = weight.op == "MATMUL" and len(weight.plain.shape) == 2
    is_read_packed = (is_matrix or weight.is_table) and size % 8 == 0
    if is_read_packed:
        kind = FORMAT.levels if scheme.shift == FORMAT.shift else scheme.bits
        format = Blocks(kind, size, scheme.scales, scheme.shift or "symmetric").name
        packed = derived("PACK", leaves, {"format": format})
        after = packed.type.storage.nbytes
        for graph, node in weight.readers:
            if node.op == "EMBEDDING":
                _look_up_columns(graph, node, weight.name, packed)
            else:
                _read(graph, node, weight.name, packed, drops=("transpose_b",))
        group = activation_group(format, rows) if activations == "grouped" else 0
        how = ROUNDED.format(group) if group else "float32, widened in registers"
        how = _ROWS_DECODED if weight.op == "EMBEDDING" else how
        return _layer(weight, scheme, after, rounded.error, how)
    whole: Constant = derived("DEQUANTIZE", leaves)
    if weight.is_transposed:
        whole = derived("TRANSPOSE", [whole], {"axis0": 0, "axis1": 1})
    _decode_at_open(weight, reshaped(whole, weight.plain.shape))
    return _layer(weight, scheme, after, rounded.error, "float32, decoded when a session opens")


def _layer(weight: FloatWeight, scheme: Scheme, after: int, error: float, how: str) -> Layer:
    return Layer(
        weight.name, weight.op, weight.shape, scheme.name, weight.nbytes, after, error, how
    )


def _leaves(weight: FloatWeight, scheme: Scheme, rounded: Rounded) -> list[Constant]:
    """Return levels, scales and what is beside them as constants, in the order of formats."""
    parts = (
        ("levels", "int8", rounded.q),
        ("scales", scheme.scales, rounded.scales),
        ("zeros", "int8", rounded.zeros),
        ("offsets", scheme.scales, rounded.offsets),
        ("factors", "uint8", rounded.factors),
        ("offset_factors", "uint8", rounded.offset_factors),
    )
    return [
        _leaf(f"{weight.name}.{what}", array, dtype)
        for what, dtype, array in parts
        if array is not None
    ]


def _leaf(name: str, array: np.ndarray, dtype: str) -> Constant:
    array = np.asarray(array, order="C")
    return Parameter(TensorType(dtype, array.shape), (name,), lambda: array, "constant")


def _halve(weight: FloatWeight, scheme: Scheme, activations: str) -> Layer:
    """Store a weight as 16-bit floats, which saturate."""
    numbers = cast(weight.plain.value(), "float32")
    array = rounded_to(numbers, scheme.dtype)
    with np.errstate(invalid="ignore"):
        lost = cast(array, "float32").astype(np.float64) - numbers
    finite = np.isfinite(lost)
    total = float(np.square(numbers[finite], dtype=np.float64).sum())
    error = float((np.square(lost[finite]).sum() / total) ** 0.5) if total else 0.0
    leaf = _leaf(f"{weight.name}.{scheme.dtype}", array, scheme.dtype)
    rounds = activations == "rounded" and scheme.dtype == "bfloat16" and weight.op == "MATMUL"
    how = HALVED if rounds else "float32, widened in registers"
    layer = _layer(weight, scheme, leaf.nbytes, error, how)
    if weight.is_table or weight.op == "MATMUL":
        for graph, node in weight.readers:
            if node.op == "EMBEDDING":
                _cast_rows(graph, node, weight.name, _packed_as(graph, node, leaf))
            else:
                _read(graph, node, weight.name, _packed_as(graph, node, leaf))
        return layer
    _decode_at_open(weight, derived("CAST", [leaf], {"dtype": "float32"}))
    return layer._replace(arithmetic="float32, decoded when a session opens")


def _packed_as(graph: Graph, node: Node, constant: Constant) -> Constant:
    """Return a constant in the format of the weight that a node reads now."""
    format = graph.tensors[node.inputs[node.definition.weights[0]]].format
    if format == PLAIN and node.op == "MATMUL" and constant.dtype in HALVES:
        if len(constant.shape) != 2:
            return derived("CAST", [constant], {"dtype": "float32"})
        format = "panels.0" if node.attrs.get("transpose_b") else "panels.1"  # halves are read so
    if format == PLAIN:
        return constant
    return derived("PACK", [constant], {"format": format})


def _decode_at_open(weight: FloatWeight, whole: Constant) -> None:
    for graph, node in weight.readers:
        _read(graph, node, weight.name, _packed_as(graph, node, whole))


def _read(
    graph: Graph, node: Node, name: str, constant: Constant, drops: tuple[str, ...] = ()
) -> Node:
    """Let a node read another constant as its weight."""
    inputs = list(node.inputs)
    inputs[node.definition.weights[0]] = _added(graph, name, constant)
    attrs = {key: value for key, value in node.attrs.items() if key not in drops}
    graph.replace_node(node, node.op, inputs, attrs)
    return graph.producers[node.output]


def _added(graph: Graph, name: str, constant: Constant) -> str:
    """Add a constant once."""
    known = (n for n, each in graph.constants.items() if each.identity == constant.identity)
    return next(known, "") or graph.add_constant(name, constant)


def _cast_rows(graph: Graph, node: Node, name: str, table: Constant) -> None:
    _give(graph, node, _table(graph, node, name, table))


def _give(graph: Graph, node: Node, rows: str) -> None:
    """Let what reads a lookup read these rows, in its dtype."""
    dtype = graph.tensors[node.output].dtype
    if graph.tensors[rows].dtype != dtype:
        rows = graph.add_node("CAST", [rows], {"dtype": dtype}, source=node.source)
    graph.bypass(node, rows)


def _table(graph: Graph, node: Node, name: str, table: Constant) -> str:
    """Add a lookup of the same rows in another table."""
    inputs = [_added(graph, name, table), node.inputs[1]]
    return graph.add_node("EMBEDDING", inputs, node.attrs, source=node.source)


def _look_up_columns(graph: Graph, node: Node, name: str, table: Constant) -> None:
    """Let a lookup read columns of a table ``[K, N]``."""
    inputs, attrs = [_added(graph, name, table), node.inputs[1]], {"axis": 1, "wrap": False}
    columns = graph.add_node("INDEX_SELECT", inputs, attrs, source=node.source)
    axes = {"axes": (*range(1, len(graph.tensors[columns].shape)), 0)}
    _give(graph, node, graph.add_node("PERMUTE", [columns], axes, source=node.source))


def _look_up(graph: Graph, node: Node, name: str, levels: Constant, scales: Constant) -> None:
    """Let a lookup or a product read levels ``[K, N]`` and scales ``[1, N]`` of a table."""
    rows = derived("TRANSPOSE", [levels], {"axis0": 0, "axis1": 1})
    table = _packed_as(graph, node, rows)
    if node.op == "EMBEDDING":
        read = _table(graph, node, name, table)
        factors = reshaped(scales, (levels.shape[1], 1))
        factor = _table(graph, node, f"{name}.scales", factors)
        wide = graph.add_node("CAST", [read], {"dtype": "float32"}, source=node.source)
        _give(graph, node, graph.add_node("MUL", [wide, factor], source=node.source))
        return
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if k not in _EPILOGUE}
    inputs = [node.inputs[0], _added(graph, name, table)]
    product = graph.add_node(node.op, inputs, attrs, source=node.source)
    column = _added(graph, f"{name}.factors", reshaped(scales, (levels.shape[1],)))
    steps = [graph.add_node("MUL", [product, column], source=node.source)]
    if node.attrs.get("code"):
        code = {k: v for k, v in node.attrs.items() if k in _EPILOGUE}
        steps.append(graph.add_node("MAP", [steps[0], *node.inputs[2:]], code, source=node.source))
    program = tile_program([graph.producers[step] for step in steps], first=[product])
    inputs += program.inputs[1:]
    is_fused = len(program.inputs) <= MAX_INPUTS and len(program.code) <= MAX_INSTRUCTIONS
    if is_fused:
        steps.append(graph.add_node(node.op, inputs, attrs | program.attrs, source=node.source))
    graph.bypass(node, steps[-1])
    graph.prune(steps[:-1])


_EPILOGUE = ("code", "args", "scalars")
