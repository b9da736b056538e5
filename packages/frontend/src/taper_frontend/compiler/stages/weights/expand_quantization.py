"""Write QUANTIZE and DEQUANTIZE as elementwise ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.ops.convert import is_native_cast
from taper_runtime.ops.quant import block_shapes

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def expand_quantization(graph: Graph) -> bool:
    """Replace each QUANTIZE and DEQUANTIZE that is left by elementwise ops with the same bits.

    ::

        QUANTIZE(x, scale, zero)      CAST(MINIMUM(MAXIMUM(
                                          ADD(ROUND(MUL(x, RECIPROCAL(scale))), CAST(zero)),
                                      low), high))
        DEQUANTIZE(q, scale, zero)    CAST(MUL(SUB(CAST(q), CAST(zero)), CAST(scale)))

    Kernels compute these as one tile program, with what stands beside them. Blocks of elements with
    a scale each become an axis, for the time of that.
    """
    return rewrite(graph, _expand)


def _expand(graph: Graph, node: Node) -> bool:
    """Replace one QUANTIZE or DEQUANTIZE by elementwise ops on blocks."""
    expand = {"QUANTIZE": _quantize, "DEQUANTIZE": _dequantize}.get(node.op)
    if expand is None:
        return False
    make = _Maker(graph, node)
    shape = graph.tensors[node.output].shape
    shapes = block_shapes(shape, graph.tensors[node.inputs[1]].shape)
    assert shapes is not None
    inputs = [
        make.reshape(name, to)
        for name, to in zip(node.inputs, (shapes[0], *[shapes[1]] * 2), strict=False)
    ]
    y = expand(make, node.complete_attrs(), *inputs)
    graph.bypass(node, make.reshape(y, shape))
    return True


class _Maker:
    """Adds the nodes that replace one node."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.graph.add_node(op, inputs, attrs, source=self.node.source)

    def reshape(self, name: str, shape: tuple[int, ...]) -> str:
        if self.graph.tensors[name].shape == shape:
            return name
        return self.add("RESHAPE", name, shape=shape)

    def cast(self, name: str, dtype: str) -> str:
        """Cast, through float32 where no kernel casts at once."""
        source = self.graph.tensors[name].dtype
        if source == dtype:
            return name
        if not is_native_cast(source, dtype):
            name = self.add("CAST", name, dtype="float32")
        return self.add("CAST", name, dtype=dtype)


def _quantize(
    make: _Maker, attrs: dict[str, Any], x: str, scale: str, zero: str | None = None
) -> str:
    y = make.add("MUL", x, make.add("RECIPROCAL", scale))
    if not attrs["shift_first"]:
        y = make.add("ROUND", y)
    if zero is not None:
        y = make.add("ADD", y, make.cast(zero, make.graph.tensors[x].dtype))
    if attrs["shift_first"]:
        y = make.add("ROUND", y)
    y = make.add("MAXIMUM", y, scalar=float(attrs["low"]), scalar_index=1)
    y = make.add("MINIMUM", y, scalar=float(attrs["high"]), scalar_index=1)
    return make.cast(y, attrs["dtype"])


def _dequantize(
    make: _Maker, attrs: dict[str, Any], x: str, scale: str, zero: str | None = None
) -> str:
    dtype = "float64" if make.graph.tensors[scale].dtype == "float64" else "float32"
    y = make.cast(x, dtype)
    if zero is not None:
        y = make.add("SUB", y, make.cast(zero, dtype))
    return make.cast(make.add("MUL", y, make.cast(scale, dtype)), attrs["dtype"])
