"""Define control flow: IF, WHILE and SCAN, whose blocks run once, in a loop, or per step.

A block reads only its own inputs and constants. So every tensor of the enclosing graph that a block
uses is an operand of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
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

#: The ops whose blocks run as part of the same run of the session.
CONTROL = ("IF", "WHILE", "SCAN")

_PREDICATE = TensorType("bool", ())


def check_types(
    op: str, what: str, of: str, expected: Sequence[TensorType], got: Sequence[TensorType]
) -> None:
    """Check the types of some of a block's inputs or results, one by one.

    Raises
    ------
    OpError
        If a type differs; the message names the first one.
    """
    if len(got) != len(expected):
        fail(op, f"{len(expected)} {what}s of {of}", len(got))
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        if want != have:
            fail(op, f"{_text(want)} for {what} {index} of {of}", _text(have))


def _text(type_: TensorType) -> str:
    format_ = "" if type_.format == "plain" else f" in {type_.format}"
    return f"{type_.dtype} [{', '.join(map(str, type_.shape))}]{format_}"


# -- IF --------------------------------------------------------------------------------------------


def _infer_if(
    inputs: Sequence[TensorType], attrs: Attrs, blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    predicate, *operands = inputs
    if predicate != _PREDICATE:
        fail("IF", "a predicate of bool []", _text(predicate))
    for name, block in zip(("then", "else"), blocks, strict=True):
        check_types("IF", "input", f"its block {name!r}", operands, block.inputs)
    then, otherwise = blocks
    if not then.outputs:
        fail("IF", "blocks with outputs", "none")
    check_types(
        "IF", "result", "its block 'else', to match 'then'", then.outputs, otherwise.outputs
    )
    return then.outputs


def _evaluate_if(
    inputs: Sequence[np.ndarray], attrs: Attrs, blocks: Sequence[BlockFunction]
) -> tuple[np.ndarray, ...]:
    predicate, *operands = inputs
    return own(blocks[0 if predicate else 1](operands))


# -- WHILE -----------------------------------------------------------------------------------------


def _infer_while(
    inputs: Sequence[TensorType], attrs: Attrs, blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    carries = _count("WHILE", "carries", attrs["carries"], 1, len(inputs))
    condition, body = blocks
    check_types("WHILE", "input", "its condition", inputs, condition.inputs)
    check_types("WHILE", "input", "its body", inputs, body.inputs)
    check_types("WHILE", "result", "its condition", [_PREDICATE], condition.outputs)
    check_types("WHILE", "result", "its body, to match its carries", inputs[:carries], body.outputs)
    return tuple(inputs[:carries])


def _evaluate_while(
    inputs: Sequence[np.ndarray], attrs: Attrs, blocks: Sequence[BlockFunction]
) -> tuple[np.ndarray, ...]:
    condition, body = blocks
    carries = list(inputs[: attrs["carries"]])
    others = inputs[attrs["carries"] :]
    while condition([*carries, *others])[0]:
        carries = list(body([*carries, *others]))
    return own(carries)


# -- SCAN ------------------------------------------------------------------------------------------


def _infer_scan(
    inputs: Sequence[TensorType], attrs: Attrs, blocks: Sequence[Signature]
) -> tuple[TensorType, ...]:
    """Return the types of the final carries, and of the outputs stacked along a first axis."""
    n = _count("SCAN", "carries", attrs["carries"], 0, len(inputs))
    m = _count("SCAN", "xs", attrs["xs"], 1, len(inputs) - n)
    carries, xs, others = inputs[:n], inputs[n : n + m], inputs[n + m :]
    if not all(x.shape for x in xs):
        fail("SCAN", "xs with an axis to step along", [_text(x) for x in xs])
    steps = xs[0].shape[0]
    if any(x.shape[0] != steps for x in xs):
        fail("SCAN", "xs with the same number of steps", [str(x.shape[0]) for x in xs])
    items = [x._replace(shape=x.shape[1:]) for x in xs]
    (body,) = blocks
    check_types("SCAN", "input", "its body", [*carries, *items, *others], body.inputs)
    check_types("SCAN", "result", "its body, to match its carries", carries, body.outputs[:n])
    if not body.outputs:
        fail("SCAN", "a body with outputs", "none")
    ys = [TensorType(y.dtype, (steps, *y.shape), y.format) for y in body.outputs[n:]]
    return (*carries, *ys)


def _evaluate_scan(
    inputs: Sequence[np.ndarray], attrs: Attrs, blocks: Sequence[BlockFunction]
) -> tuple[np.ndarray, ...]:
    """Run the block once per step; stack its outputs along a first axis."""
    n, m = attrs["carries"], attrs["xs"]
    carries, xs, others = list(inputs[:n]), inputs[n : n + m], inputs[n + m :]
    (body,) = blocks
    results: list[Sequence[np.ndarray]] = []
    for step in range(len(xs[0])):
        outputs = body([*carries, *(x[step] for x in xs), *others])
        carries = list(outputs[:n])
        results.append(own(outputs[n:]))
    if results:
        return (*own(carries), *map(np.stack, zip(*results, strict=True)))
    ys = body.types.outputs[n:]
    return (*own(carries), *(np.zeros((0, *y.shape), DTYPES[y.dtype].storage) for y in ys))


# -- what they share -------------------------------------------------------------------------------


def _count(op: str, what: str, count: int, least: int, most: int) -> int:
    """Check that the number of inputs of one kind is from ``least`` to ``most``; return it."""
    if not least <= count <= most:
        fail(op, f"{what} from {least} to {most}", count)
    return count


def own(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Copy the arrays, because a block may return one of its inputs."""
    return tuple(np.array(array, order="C") for array in arrays)


OPS = (
    OpDef(
        name="IF",
        doc="Runs its first block if the first input is true, else its second, on the other "
        "inputs; both blocks give the same types.",
        inputs=(1, MANY),
        blocks=2,
        infer=_infer_if,
        evaluate=_evaluate_if,
        native=False,
    ),
    OpDef(
        name="WHILE",
        doc="Repeats while its first block, the condition, gives true: the second block, the body, "
        "computes new carries; the first inputs are the first carries. Both blocks take the "
        "carries and the inputs after them; the outputs are the last carries.",
        inputs=(1, MANY),
        blocks=2,
        infer=_infer_while,
        evaluate=_evaluate_while,
        native=False,
        attrs={"carries": Attr("int")},
        carries=lambda attrs, block: attrs["carries"] if block else 0,
    ),
    OpDef(
        name="SCAN",
        doc="Runs its body for each step along the first axis of the xs, which follow the carries "
        "among the inputs. The body takes the carries, the step's slices of the xs and the "
        "inputs after them; it gives the next carries and the step's slices of the outputs "
        "that follow the last carries.",
        inputs=(1, MANY),
        blocks=1,
        infer=_infer_scan,
        evaluate=_evaluate_scan,
        native=False,
        attrs={"carries": Attr("int", 0), "xs": Attr("int")},
        carries=lambda attrs, block: attrs["carries"],
    ),
)
