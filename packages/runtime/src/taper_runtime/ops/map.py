"""Tile programs: elementwise DAGs, as a node (MAP) and as the epilogue of a product."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.elementwise import arity, evaluate_micro, infer_micro, refuses
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.region import (
    Region,
    Same,
    Window,
    broadcast_region,
    elementwise,
    output_axes,
)
from taper_runtime.ops.rules import broadcast, fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_INPUTS = 16
MAX_INSTRUCTIONS = 64
#: Most inputs of an epilogue beside the product.
MAX_EXTRAS = MAX_INPUTS - 1
#: Attrs of an epilogue.
EPILOGUE = {
    "code": Attr("strings", ()),
    "args": Attr("ints", ()),
    "scalars": Attr("scalars", ()),
}


def infer_program(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Type of a tile program's result.

    A program is in SSA form: values ``0..n-1`` are the inputs and instruction ``j`` makes value
    ``n + j``. The operands of each are the next entries of ``args``: ``v >= 0`` is a value made
    before, ``v < 0`` is ``scalars[-1 - v]``. The last instruction is the result.

    Parameters
    ----------
    op : str
        Named in errors.
    inputs : sequence of TensorType
        Of dtypes, and of shapes that broadcast against each other to that of the result.
    attrs : mapping
        With ``code``, ``args``, ``scalars``.

    Raises
    ------
    OpError
    """
    code, args, scalars = attrs["code"], attrs["args"], attrs["scalars"]
    if not 1 <= len(inputs) <= MAX_INPUTS:
        fail(op, f"a program of 1 to {MAX_INPUTS} inputs", len(inputs))
    if not 1 <= len(code) <= MAX_INSTRUCTIONS:
        fail(op, f"code of 1 to {MAX_INSTRUCTIONS} instructions", len(code))
    needed = sum(map(arity, code))
    if len(args) != needed:
        fail(op, f"args of {needed} entries, the operands of its code", len(args))
    values = [t.dtype for t in inputs]
    for name, operands in _instructions(attrs):
        for v in operands:
            if not -len(scalars) <= v < len(values):
                fail(op, f"args in [{-len(scalars)}, {len(values)}) for {name}", v)
        values.append(
            infer_micro(name, [values[v] if v >= 0 else scalars[-1 - v] for v in operands])
        )
    return TensorType(values[-1], broadcast(op, [t.shape for t in inputs]))


def evaluate_program(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute a tile program, one whole array after the other.

    Raises
    ------
    InputError
        On values that an instruction refuses.
    """
    values: list[np.ndarray] = list(inputs)
    for name, operands in _instructions(attrs):
        given = [values[v] if v >= 0 else attrs["scalars"][-1 - v] for v in operands]
        values.append(evaluate_micro(name, given))
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    return np.asarray(np.broadcast_to(values[-1], shape), order="C")


def _check(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    """Check, at run time, that no instruction refuses a value."""
    if any(map(refuses, attrs["code"])) and all(x.size for x in inputs):
        evaluate_program(inputs, attrs)


def infer_epilogue(
    op: str, product: TensorType, extras: Sequence[TensorType], attrs: Attrs
) -> TensorType:
    """Type of what an epilogue makes of ``product``, its value 0: that very type.

    Raises
    ------
    OpError
    """
    if not attrs["code"]:
        if extras or attrs["args"] or attrs["scalars"]:
            fail(op, "code, as there are extras, args or scalars", "none")
        return product
    result = infer_program(op, [product, *extras], attrs)
    if result != product:
        fail(op, f"an epilogue that keeps {product}", result)
    return result


def evaluate_epilogue(
    product: np.ndarray, extras: Sequence[np.ndarray], attrs: Attrs
) -> np.ndarray:
    """Compute an epilogue; without code it is ``product`` itself."""
    return evaluate_program([product, *extras], attrs) if attrs["code"] else product


def epilogue_regions(
    product: Sequence[Region], extras: Sequence[TensorType], output: TensorType
) -> list[Region]:
    """Regions of what a product reads, then those of its extras.

    These are cut only along axes that the product is cut along.
    """
    cut = {axis for region in product for relation in region for axis in output_axes(relation)}
    regions = [*product]
    for t in extras:
        region = broadcast_region(t.shape, output.shape)
        regions.append(
            tuple(
                Window(relation.axis)
                if isinstance(relation, Same) and relation.axis not in cut
                else relation
                for relation in region
            )
        )
    return regions


def _instructions(attrs: Attrs) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each instruction's code and operands."""
    start = 0
    for name in attrs["code"]:
        stop = start + arity(name)
        yield name, attrs["args"][start:stop]
        start = stop


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(output.size * len(attrs["code"]), output.nbytes + sum(t.nbytes for t in inputs))


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    for shapes in (
        ((4, 33), (33,)),
        ((2, 3, 5), (3, 1)),
        ((2, 1, 2, 1, 2, 3), (1, 2, 1, 3)),
        ((), ()),
        ((0, 5), (5,)),
        ((1,), (3, 600)),
    ):
        yield Sample([floats(*shape) for shape in shapes], bias_gelu)
    yield Sample([floats(9)], {"code": ["MUL", "ADD"], "args": [0, -1, 1, -2], "scalars": [2.0, 1]})
    reused: dict[str, Any] = {"code": ["MUL", "ADD", "TANH", "MUL"], "args": [0, 0, 1, 0, 2, 3, 1]}
    yield Sample([floats(700)], reused)
    yield Sample([floats(5, 70)], reused)
    ids = rng.integers(0, 5, (2, 6))
    mask = {"code": ["EQ", "CAST:float32", "SUB", "MUL"], "args": [0, -1, 1, -2, 2, 3, -3]}
    yield Sample([ids], {**mask, "scalars": [0, 1.0, -1e4]})
    select = {"code": ["LT", "WHERE"], "args": [0, 1, 2, 0, -1], "scalars": [0.0]}
    yield Sample([floats(4, 5), floats(4, 1)], select)
    # A result of fewer dims than the inputs', and an input nobody reads.
    yield Sample([floats(3, 4), floats(4)], {"code": ["NEG"], "args": [1]})
    most: dict[str, Any] = {"code": ["ADD"] * MAX_INSTRUCTIONS, "args": [0, 1]}
    for j in range(1, MAX_INSTRUCTIONS):
        most["args"] += [MAX_INPUTS + j - 1, j % MAX_INPUTS]
    yield Sample([floats(2, 3) for _ in range(MAX_INPUTS)], most)
    doubled = {"code": ["MUL", "SIN"], "args": [0, -1, 1], "scalars": [2.0]}
    yield Sample([np.linspace(-1, 1, 6)], doubled)
    refusing = {"code": ["ADD", "FLOOR_DIV:nonzero", "FMOD:nonzero"], "args": [0, -1, 2, 1, 3, -2]}
    for dtype in (np.int32, np.int64):
        divisors = rng.integers(1, 9, (3, 40)).astype(dtype)
        yield Sample([divisors.T, divisors[0, :1]], {**refusing, "scalars": [7, -5]})
    yield Sample(
        [np.arange(600, dtype=np.uint8).reshape(2, 300)],
        {"code": ["CAST:float32", "SQRT"], "args": [0, 1]},
    )


MAP = OpDef(
    name="MAP",
    doc="A tile program: elementwise ops over broadcast inputs, interpreted tile by tile. In SSA "
    "form: values 0..n-1 are the inputs and instruction j of `code` makes value n+j; the entries "
    "of `args` are the instructions' operands in order, v >= 0 a value, v < 0 scalars[-1-v]. The "
    "last instruction is the result.",
    inputs=(1, MAX_INPUTS),
    infer=partial(infer_program, "MAP"),
    evaluate=evaluate_program,
    check=_check,
    samples=_samples,
    attrs={"code": Attr("strings"), "args": Attr("ints"), "scalars": Attr("scalars", ())},
    region=elementwise,
    inplace=tuple(range(MAX_INPUTS)),
    strided=(ALL_INPUTS,),
    cost=_cost,
)

OPS = (MAP,)
