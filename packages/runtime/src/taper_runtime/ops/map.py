"""Tile programs: fused elementwise DAGs, as a node (MAP) and as the epilogue of MATMUL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import OpError
from taper_runtime.ops.elementwise import (
    arity,
    check_scalar,
    contiguous,
    evaluate_micro,
    infer_micro,
    split_code,
)
from taper_runtime.ops.opdef import (
    ALL_INPUTS,
    Attr,
    Attrs,
    Cost,
    OpDef,
    Sample,
    TensorType,
)
from taper_runtime.ops.rules import broadcast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_INPUTS = 16
MAX_INSTRUCTIONS = 64


def infer_program(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Type of a tile program's result.

    The program is in SSA form: values ``0..n-1`` are the inputs and instruction ``j`` makes value
    ``n + j``. Each instruction takes its arity's next entries of ``args``: ``v >= 0`` is a value,
    ``v < 0`` is ``scalars[-1 - v]``.

    Parameters
    ----------
    op : str
        Named in errors.
    attrs : mapping
        With ``code``, ``args``, ``scalars``.

    Raises
    ------
    OpError
    """
    code, args, scalars = attrs["code"], attrs["args"], attrs["scalars"]
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise OpError(f"{op}: a program takes 1 to {MAX_INPUTS} inputs, got {len(inputs)}")
    if not 1 <= len(code) <= MAX_INSTRUCTIONS:
        raise OpError(f"{op}: code: expected 1 to {MAX_INSTRUCTIONS} instructions, got {len(code)}")
    values = [t.dtype for t in inputs]
    at = 0
    for name in code:
        split_code(name)
        operands = args[at : at + arity(name)]
        at += arity(name)
        if len(operands) != arity(name):
            raise OpError(f"{op}: args: expected {at} entries or more, got {len(args)}")
        for v in operands:
            if not -len(scalars) <= v < len(values):
                raise OpError(
                    f"{op}: args: expected a value in [0, {len(values)}) or one of {len(scalars)} "
                    f"scalars, got {v}"
                )
        dtypes = [values[v] if v >= 0 else None for v in operands]
        values.append(infer_micro(name, dtypes))
        for i, v in enumerate(operands):
            if v < 0:
                first = 1 if name == "WHERE" else 0
                beside = next(d for d in dtypes[first:] if d is not None)
                check_scalar(f"{op}: {name}", scalars[-1 - v], beside if i >= first else "bool")
    if at != len(args):
        raise OpError(f"{op}: args: expected {at} entries, got {len(args)}")
    return TensorType(values[-1], broadcast(op, [t.shape for t in inputs]))


def evaluate_program(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute a tile program whole array by whole array."""
    values = list(inputs)
    at = 0
    for name in attrs["code"]:
        operands = attrs["args"][at : at + arity(name)]
        at += arity(name)
        values.append(
            evaluate_micro(
                name, [values[v] if v >= 0 else attrs["scalars"][-1 - v] for v in operands]
            )
        )
    return contiguous(values[-1], np.broadcast_shapes(*(x.shape for x in inputs)))


def program_attrs(required: bool) -> dict[str, Attr]:
    """The attrs of an op that holds a program; an optional one is empty by default."""
    if required:
        return {"code": Attr("strings"), "args": Attr("ints"), "scalars": Attr("scalars", ())}
    return {
        "code": Attr("strings", ()),
        "args": Attr("ints", ()),
        "scalars": Attr("scalars", ()),
    }


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(output.size * len(attrs["code"]), output.nbytes + sum(t.nbytes for t in inputs))


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    yield Sample([floats(4, 33), floats(33)], bias_gelu)
    yield Sample([floats(2, 3, 5), floats(3, 1)], bias_gelu)
    yield Sample([floats(0, 5), floats(5)], bias_gelu)
    yield Sample([floats(9)], {"code": ["MUL", "ADD"], "args": [0, -1, 1, -2], "scalars": [2.0, 1]})
    reused = {"code": ["MUL", "ADD", "TANH", "MUL"], "args": [0, 0, 1, 0, 2, 3, 1]}
    yield Sample([floats(700)], reused)
    yield Sample([floats(3, 700)], reused)
    ids = rng.integers(0, 5, (2, 6))
    mask = {"code": ["EQ", "CAST:float32", "SUB", "MUL"], "args": [0, -1, 1, -2, 2, 3, -3]}
    yield Sample([ids], {**mask, "scalars": [0, 1.0, -1e4]})
    select = {"code": ["LT", "WHERE"], "args": [0, 1, 2, 0, -1], "scalars": [0.0]}
    yield Sample([floats(4, 5), floats(4, 1)], select)


MAP = OpDef(
    name="MAP",
    doc="A tile program: elementwise ops over broadcast inputs, interpreted tile by tile.",
    inputs=(1, MAX_INPUTS),
    infer=lambda inputs, attrs: infer_program("MAP", inputs, attrs),
    evaluate=evaluate_program,
    samples=_samples,
    attrs=program_attrs(required=True),
    inplace=tuple(range(MAX_INPUTS)),
    strided=(ALL_INPUTS,),
    cost=_cost,
)
