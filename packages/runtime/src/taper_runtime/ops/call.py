"""Define CALL, an op whose block defines its result and that other code may compute instead.

Passes treat such a node as one op: they fuse nothing with the nodes of its block. If no kernel or
delegate computes the node, its block is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import parse_object
from taper_runtime.ops.control import check_types, own
from taper_runtime.ops.opdef import (
    Attr,
    Attrs,
    BlockFunction,
    OpDef,
    Signature,
    TensorType,
)
from taper_runtime.ops.type_rules import MANY, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


def arguments(attrs: Attrs) -> dict[str, Any]:
    """Return the arguments of a CALL that are not tensors, by name.

    Raises
    ------
    OpError
        If the attr is not a JSON object.
    """
    found = parse_object(attrs["arguments"])
    if found is None:
        fail("CALL", "arguments: the JSON of an object", attrs["arguments"])
    return found


def _infer_call(
    inputs: Sequence[TensorType], attrs: Attrs, blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    arguments(attrs)
    return _results("CALL", inputs, blocks)


def _infer_delegate(
    inputs: Sequence[TensorType], attrs: Attrs, blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    blob, *operands = inputs
    if blob.dtype != "uint8" or len(blob.shape) != 1:
        fail("CALL_DELEGATE", "a blob of uint8 [n]", f"{blob.dtype} {list(blob.shape)}")
    return _results("CALL_DELEGATE", operands, blocks)


def _results(
    op: str, operands: Sequence[TensorType], blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    (body,) = blocks
    check_types(op, "input", "its block", operands, body.inputs)
    if not body.outputs:
        fail(op, "a block with outputs", "none")
    return body.outputs


def _evaluate_call(
    inputs: Sequence[np.ndarray], attrs: Attrs, blocks: Sequence[BlockFunction]
) -> tuple[np.ndarray, ...]:
    return own(blocks[0](inputs))


def _evaluate_delegate(
    inputs: Sequence[np.ndarray], attrs: Attrs, blocks: Sequence[BlockFunction]
) -> tuple[np.ndarray, ...]:
    return own(blocks[0](inputs[1:]))


OPS = (
    OpDef(
        name="CALL",
        doc="A call of the ATen op that the node's target names, which no pass has changed: its "
        "inputs are the call's tensors in order, and its block computes the call. If it is not "
        "defined, the block only has the types, and a user's kernel must compute the call.",
        inputs=(0, MANY),
        blocks=1,
        infer=_infer_call,
        evaluate=_evaluate_call,
        native=False,
        attrs={"arguments": Attr("string", "{}"), "defined": Attr("bool", True)},
    ),
    OpDef(
        name="CALL_DELEGATE",
        doc="A subgraph that a delegate computes: its first input is the bytes that the backend "
        "has made from the subgraph at export; the others are the subgraph's inputs, weights "
        "included. Its block is the subgraph.",
        inputs=(1, MANY),
        blocks=1,
        infer=_infer_delegate,
        evaluate=_evaluate_delegate,
        native=False,
        attrs={"backend": Attr("string")},
    ),
)
