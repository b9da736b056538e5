"""Predict whether a product is faster with bytes or with floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import is_static
from taper_runtime.formats import TensorType
from taper_runtime.formats.winograd import POINTS
from taper_runtime.machine.cost import Locality, beyond_cache, cost, memory_ns, shared_ns
from taper_runtime.machine.limits import typical
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import CHAINED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.ops.opdef import Attrs, Shape
    from taper_runtime.plan.plan import Plan, PlanNode

#: What follows the sums of bytes: zero points, factors, a summand, and the next layer's bytes.
_BYTES = {
    "code": ("SUB", "CAST:float32", "MUL", "ADD", "ROUND", "MAXIMUM", "MINIMUM", "CAST:int8"),
    "args": (0, 1, 4, 5, 2, 6, 3, 7, 8, -1, 9, -2, 10),
    "scalars": (-128.0, 127.0),
}

_FLOATS = {"code": ("ADD",), "args": (0, 1), "scalars": ()}

_QUANTIZE = {
    "code": ("MUL", "ROUND", "ADD", "MAXIMUM", "MINIMUM", "CAST:int8"),
    "args": (0, -1, 1, 2, -2, 3, -3, 4, -4, 5),
    "scalars": (1.0, 1.0, -128.0, 127.0),
}

#: The largest activation of seven bits, and what makes no other value of activations.
_SEVEN_BITS, _MOVES = 127, ("CAT", "MAX_POOL", "PERMUTE", "TRANSPOSE", "RESHAPE", "SLICE")

#: How much slower bytes must be: most predictions are right within a quarter, and floats between
#: layers of bytes break up what would be one node.
_WORTH = 1.25


class ProductTimes(NamedTuple):
    """The predicted nanoseconds of a product on one thread.

    Attributes
    ----------
    of_bytes : float
        With int8 operands; the result is quantized for the next layer.
    of_floats : float
        In float32, with the conversions that it needs between neighbours that multiply bytes.
    """

    of_bytes: float
    of_floats: float

    @property
    def is_slower(self) -> bool:
        """Return whether bytes are slower than floats by more than the error of predictions."""
        return self.of_bytes > _WORTH * self.of_floats


def product_times(
    op: str,
    x: Shape,
    weight: Shape,
    output: Shape,
    attrs: Attrs,
    *,
    by_rows: bool = False,
    seven_bits: bool = False,
) -> ProductTimes:
    """Predict the times of MATMUL or CONV, on the ISA level of this process.

    Parameters
    ----------
    op : str
    x, weight, output : tuple of int
        Shapes as of the op: channels are last.
    attrs : mapping
        Those that say which elements are multiplied.
    by_rows : bool
        Whether each run chooses the range of each row of x.
    seven_bits : bool
        Whether the bytes of x are from 0 to 127.

    Returns
    -------
    ProductTimes
    """
    definition, limits = REGISTRY[op], typical(_kernels.active_isa())
    if seven_bits and not _is_depthwise(weight, attrs):
        limits = limits.of_seven_bits
    channels = output[-1:]

    def time(dtype: str, form: str, result: str, extras: list[str], more: dict[str, Any]) -> float:
        inputs = [TensorType(dtype, x), TensorType(dtype, weight, form)]
        inputs += [TensorType(each, channels) for each in extras]
        complete = definition.fill({**attrs, **more})
        # the weight is read from memory; what the cache does not hold of x, by the next layer
        place = Locality(
            streamed=memory_ns(inputs[1].nbytes), waited=shared_ns(beyond_cache(inputs[0].nbytes))
        )
        return cost(definition, inputs, [TensorType(result, output)], complete, place, limits)

    of_bytes = time(
        "int8",
        "plain",
        "int8",
        ["int32", "float32", "float32"],
        {**_BYTES, "accumulate": "int32"},
    )
    formats = ["plain"]
    if op == "CONV" and _has_tiles(attrs):
        formats += [f"winograd.{tile}" for tile in POINTS]
    of_floats = min(time("float32", form, "float32", ["float32"], _FLOATS) for form in formats)
    if by_rows:
        elements = TensorType("float32", x).size
        passes = 2 * limits.function("MAXIMUM", "float32")
        quantized = len(_QUANTIZE["code"]) * limits.function(CHAINED, "float32")
        of_bytes += elements * (passes + quantized) + limits.node_ns
    else:
        # What made x does not quantize it then; it stores four times the bytes, in as much time.
        floats, levels = (TensorType(dtype, output) for dtype in ("float32", "int8"))
        of_floats += cost(REGISTRY["MAP"], [floats], [levels], _QUANTIZE, limits=limits)
    return ProductTimes(of_bytes, of_floats)


def slower_products(plan: Plan) -> list[tuple[str, ProductTimes]]:
    """Return the products of bytes that are predicted to be slower than in float32.

    Parameters
    ----------
    plan : Plan
        Products whose sizes vary are left out.

    Returns
    -------
    list of (str, ProductTimes)
        By the names of the nodes, in order.
    """
    found = []
    makers = {name: node for node in plan.nodes for name in node.outputs}
    for node in plan.nodes:
        if not node.attrs.get("accumulate"):
            continue
        x, weight, output = (
            plan.tensors[str(name)].shape for name in (*node.inputs[:2], node.output)
        )
        if not all(is_static(size) for size in (*x, *weight, *output)):
            continue
        attrs = {name: value for name, value in node.attrs.items() if name not in _FLOATS}
        attrs |= {"accumulate": "", "border": 0} if node.op == "CONV" else {"accumulate": ""}
        seven_bits = _has_seven_bits(makers, str(node.inputs[0]))
        times = product_times(node.op, x, weight, output, attrs, seven_bits=seven_bits)
        if times.is_slower:
            found.append((node.output, times))
    return found


def _has_seven_bits(makers: Mapping[str, PlanNode], name: str) -> bool:
    """Return whether the node that quantizes a tensor limits it to 0 to 127."""
    node = makers.get(name)
    while node is not None and node.op in _MOVES:
        node = next((makers[each] for each in node.reads if each in makers), None)
    if node is None or tuple(node.attrs.get("code", ()))[-2:] != ("MINIMUM", "CAST:uint8"):
        return False
    bound = node.attrs["args"][-2]
    return bool(bound < 0 and node.attrs["scalars"][-1 - bound] <= _SEVEN_BITS)


def _is_depthwise(weight: Shape, attrs: Attrs) -> bool:
    """Return whether each output channel reads one input channel: all bytes are widened."""
    return bool(attrs.get("groups", 1) == weight[-1])


def _has_tiles(attrs: Attrs) -> bool:
    """Return whether Winograd's algorithm can compute a convolution."""
    return (
        tuple(attrs["kernel"]) == (3, 3)
        and tuple(attrs["stride"]) == tuple(attrs["dilation"]) == (1, 1)
        and attrs.get("groups", 1) == 1
    )
