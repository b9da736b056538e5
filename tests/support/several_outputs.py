"""Ops of tests: of several outputs, of an input that may be absent, and of a block."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.ops import REGISTRY, register
from taper_runtime.ops.opdef import Attr, OpDef

if TYPE_CHECKING:
    from collections.abc import Iterator


def _infer_halves(inputs, attrs):
    if inputs[0].dtype != "float32":
        raise OpError(f"HALVES: x: expected float32, got {inputs[0].dtype}")
    return inputs[0], inputs[0]


def _halves(inputs, attrs):
    bound = np.float32(attrs["bound"])
    return np.maximum(inputs[0], bound), np.minimum(inputs[0], bound)


#: What of x lies above a bound, and what below.
HALVES = OpDef(
    name="HALVES",
    doc="max(x, bound) and min(x, bound).",
    inputs=(1, 1),
    infer=_infer_halves,
    evaluate=_halves,
    attrs={"bound": Attr("float", 0.0)},
    native=False,
)

#: x times a weight, if there is one, plus a bias.
AFFINE = OpDef(
    name="AFFINE",
    doc="x * weight + bias; each may be absent.",
    inputs=(1, 3),
    infer=lambda inputs, attrs: inputs[0],
    evaluate=lambda inputs, attrs: (
        inputs[0] * (1 if len(inputs) < 2 or inputs[1] is None else inputs[1])
        + (inputs[2] if len(inputs) == 3 else np.float32(0))
    ),
    optional=(1,),
    native=False,
)


def _infer_repeat(inputs, attrs, blocks):
    (body,) = blocks
    if body.inputs != tuple(inputs) or body.outputs != body.inputs:
        raise OpError(f"REPEAT: expected a block that gives what it takes, got {body}")
    return body.outputs


def _repeat(inputs, attrs, blocks):
    for _ in range(attrs["times"]):
        inputs = blocks[0](inputs)
    return tuple(inputs)


#: A block applied to its own results.
REPEAT = OpDef(
    name="REPEAT",
    doc="A block, again and again.",
    inputs=(1, 9),
    infer=_infer_repeat,
    evaluate=_repeat,
    attrs={"times": Attr("int")},
    blocks=1,
    native=False,
)


@contextmanager
def registered(*ops: OpDef) -> Iterator[None]:
    """Have these ops, as a user's code registers them, for a while."""
    for op in ops:
        register(op)
    try:
        yield
    finally:
        for op in ops:
            del REGISTRY[op.name]
