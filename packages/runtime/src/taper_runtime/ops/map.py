"""Define tile programs: elementwise DAGs, as a node (MAP) and as the epilogue of a product."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.elementwise import (
    arity,
    evaluate_micro,
    infer_micro,
    operand_dtype,
    refuses,
)
from taper_runtime.ops.opdef import ALL_INPUTS, CHAINED, Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import (
    Region,
    Same,
    Window,
    broadcast_region,
    elementwise,
    output_axes,
)
from taper_runtime.ops.type_rules import broadcast, fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Limits of a tile program; kernels have the same, which tests/runtime/test_shared_constants.py
#: holds.
MAX_INPUTS = 16
MAX_INSTRUCTIONS = 64
#: The most inputs of an epilogue, not counting the product.
MAX_EXTRAS = MAX_INPUTS - 1
#: The inputs of a product that its epilogue reads. The output may take over the memory of one.
EXTRAS = tuple(range(2, 2 + MAX_EXTRAS))
#: The attrs of an epilogue.
EPILOGUE = {
    "code": Attr("strings", ()),
    "args": Attr("ints", ()),
    "scalars": Attr("scalars", ()),
}


def infer_program(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Return the type of a tile program's result.

    A program is in SSA form. Values ``0..n-1`` are the inputs; instruction ``j`` computes value
    ``n + j``. The operands of each instruction are the next entries of ``args``: ``v >= 0`` is an
    earlier value, ``v < 0`` is ``scalars[-1 - v]``. The last instruction computes the result.

    Parameters
    ----------
    op : str
        The op's name in errors.
    inputs : sequence of TensorType
        The types of the inputs, whose shapes broadcast to the result's shape.
    attrs : mapping
        The attrs ``code``, ``args`` and ``scalars``.

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
        fail(op, f"args of {needed} entries, one for each operand of its code", len(args))
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
    """Compute a tile program, one instruction after the other on whole arrays.

    Raises
    ------
    InputError
        If an instruction refuses a value.
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
    """Return the type of an epilogue's result, which has the shape of ``product``, value 0.

    Raises
    ------
    OpError
    """
    if not attrs["code"]:
        if extras or attrs["args"] or attrs["scalars"]:
            fail(op, "code for the extras, args or scalars", "none")
        return product
    result = infer_program(op, [product, *extras], attrs)
    if result.shape != product.shape:
        fail(op, f"an epilogue whose result is {list(product.shape)}", list(result.shape))
    return result


def evaluate_epilogue(
    product: np.ndarray, extras: Sequence[np.ndarray], attrs: Attrs
) -> np.ndarray:
    """Compute an epilogue; without code, return ``product``."""
    return evaluate_program([product, *extras], attrs) if attrs["code"] else product


def epilogue_regions(
    product: Sequence[Region], extras: Sequence[TensorType], output: TensorType
) -> list[Region]:
    """Return the regions of a product's inputs, followed by those of its extras.

    The extras are cut only along axes that the product is cut along.
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
    """Yield each instruction's code and operands."""
    start = 0
    for name in attrs["code"]:
        stop = start + arity(name)
        yield name, attrs["args"][start:stop]
        start = stop


#: The micro-ops that chains of kernels have, ``map/chain.inl``, by the dtype of their operands.
_CHAINS = {
    **dict.fromkeys(("ADD", "SUB"), ("float32", "int32")),
    **dict.fromkeys(("MUL", "MAXIMUM", "MINIMUM", "RELU", "ROUND"), ("float32",)),
    **dict.fromkeys(("CAST:int8", "CAST:uint8"), ("float32",)),
    "CAST:float32": ("int32", "int8", "uint8"),
}


def program_functions(
    inputs: Sequence[TensorType], attrs: Attrs, size: int
) -> tuple[tuple[str, str, int], ...]:
    """Return ``Cost.functions`` of a tile program that computes ``size`` elements.

    Chains that quantize, or follow sums of integers, are one pass.
    """
    dtypes: list[str] = [t.dtype for t in inputs]
    found: list[tuple[str, str, int]] = []
    chain: list[tuple[str, str, int]] = []
    for name, operands in _instructions(attrs):
        given = [dtypes[v] if v >= 0 else attrs["scalars"][-1 - v] for v in operands]
        dtype = operand_dtype(given)
        joins = dtype in _CHAINS.get(name, ())
        if chain and not (joins and len(dtypes) - 1 in operands):
            found += _passes(chain)
            chain = []
        (chain if joins else found).append((name, dtype, size))
        dtypes.append(infer_micro(name, given))
    return (*found, *_passes(chain))


def _passes(chain: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """Return the passes over the elements that a chain of micro-ops takes."""
    casts = any(name.startswith("CAST") for name, _, _ in chain)
    if len(chain) < 2 or not casts:
        return [*chain]
    return [(CHAINED, dtype, size) for _, dtype, size in chain]


def epilogue_functions(
    product: TensorType, extras: Sequence[TensorType], attrs: Attrs, size: int
) -> tuple[tuple[str, str, int], ...]:
    """Return ``Cost.functions`` of an epilogue that computes ``size`` elements."""
    return program_functions([product, *extras], attrs, size) if attrs["code"] else ()


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(
        output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        functions=program_functions(inputs, attrs, output.size),
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
    attrs={"code": Attr("strings"), "args": Attr("ints"), "scalars": Attr("scalars", ())},
    region=elementwise,
    inplace=tuple(range(MAX_INPUTS)),
    strided=(ALL_INPUTS,),
    cost=_cost,
)

OPS = (MAP,)
