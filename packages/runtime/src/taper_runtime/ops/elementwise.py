"""Define the elementwise ops, one line each in :data:`MICROOPS`.

The table defines both the ops, as nodes, and the micro-ops of a tile program
(:mod:`taper_runtime.ops.map`). A micro-op has operands and no attrs, so a program is a list of
names. An attr of the op becomes a suffix of the name: ``"CAST:float32"`` has the dtype of a CAST,
and ``"FLOOR_DIV:nonzero"`` raises an error for a division of integers by 0.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats import PLAIN, find
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops import functions
from taper_runtime.ops.convert import cast
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import elementwise
from taper_runtime.ops.type_rules import (
    COMPUTED,
    FLOATS,
    INTS,
    REALS,
    broadcast,
    check_dtype,
    check_scalar,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BITS = (*INTS, "bool")


class MicroOp(NamedTuple):
    """One elementwise function.

    Attributes
    ----------
    function : callable
        Computes an array from arrays of one dtype; defines the op.
    arity : int
        The number of operands. The only op of arity 3 is WHERE, whose first is a bool condition.
    dtypes : tuple of str
        The dtypes that the operands, except a condition, may have; all must be equal.
    doc : str
        The formula, with operands named as in ``function``.
    result : str, optional
        The result's dtype, if it differs from the operands'.
    wide : bool
        Whether ``function`` takes and returns float64.
    commutes : bool
        Whether the operands may be swapped.
    """

    function: Callable[..., Any]
    arity: int
    dtypes: tuple[str, ...]
    doc: str
    result: str | None = None
    wide: bool = False
    commutes: bool = False


MICROOPS: dict[str, MicroOp] = {
    "NEG": MicroOp(np.negative, 1, REALS, "-x"),
    "ABS": MicroOp(np.abs, 1, REALS, "|x|"),
    "SIGN": MicroOp(functions.sign, 1, REALS, "-1, 0 or 1; 0 for NaN"),
    "CEIL": MicroOp(np.ceil, 1, FLOATS, "x rounded up"),
    "FLOOR": MicroOp(np.floor, 1, FLOATS, "x rounded down"),
    "ROUND": MicroOp(np.rint, 1, FLOATS, "x rounded to the nearest integer, halves to even"),
    "TRUNC": MicroOp(np.trunc, 1, FLOATS, "x rounded toward zero"),
    "SQRT": MicroOp(np.sqrt, 1, FLOATS, "sqrt(x)"),
    "RSQRT": MicroOp(functions.rsqrt, 1, FLOATS, "1 / sqrt(x)", wide=True),
    "RECIPROCAL": MicroOp(functions.reciprocal, 1, FLOATS, "1 / x"),
    "EXP": MicroOp(np.exp, 1, FLOATS, "exp(x)"),
    "EXPM1": MicroOp(np.expm1, 1, FLOATS, "exp(x) - 1"),
    "LOG": MicroOp(np.log, 1, FLOATS, "log(x)"),
    "LOG2": MicroOp(np.log2, 1, FLOATS, "log2(x)"),
    "LOG10": MicroOp(np.log10, 1, FLOATS, "log10(x)"),
    "LOG1P": MicroOp(np.log1p, 1, FLOATS, "log(1 + x)"),
    "SIN": MicroOp(np.sin, 1, FLOATS, "sin(x)"),
    "COS": MicroOp(np.cos, 1, FLOATS, "cos(x)"),
    "TAN": MicroOp(np.tan, 1, FLOATS, "tan(x)"),
    "ASIN": MicroOp(np.arcsin, 1, FLOATS, "asin(x)"),
    "ACOS": MicroOp(np.arccos, 1, FLOATS, "acos(x)"),
    "ATAN": MicroOp(np.arctan, 1, FLOATS, "atan(x)"),
    "SINH": MicroOp(np.sinh, 1, FLOATS, "sinh(x)"),
    "COSH": MicroOp(np.cosh, 1, FLOATS, "cosh(x)"),
    "TANH": MicroOp(np.tanh, 1, FLOATS, "tanh(x)"),
    "ASINH": MicroOp(np.arcsinh, 1, FLOATS, "asinh(x)"),
    "ACOSH": MicroOp(np.arccosh, 1, FLOATS, "acosh(x)"),
    "ATANH": MicroOp(np.arctanh, 1, FLOATS, "atanh(x)"),
    "ERF": MicroOp(functions.erf, 1, FLOATS, "erf(x)", wide=True),
    "ERFC": MicroOp(functions.erfc, 1, FLOATS, "1 - erf(x)", wide=True),
    "ERFCX": MicroOp(functions.erfcx, 1, FLOATS, "exp(x^2) (1 - erf(x))", wide=True),
    "SIGMOID": MicroOp(functions.sigmoid, 1, FLOATS, "1 / (1 + exp(-x))", wide=True),
    "RELU": MicroOp(functions.relu, 1, REALS, "max(x, 0)"),
    "GELU": MicroOp(functions.gelu, 1, FLOATS, "x * (1 + erf(x / sqrt(2))) / 2", wide=True),
    "GELU_TANH": MicroOp(
        functions.gelu_tanh,
        1,
        FLOATS,
        "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2",
        wide=True,
    ),
    "SILU": MicroOp(functions.silu, 1, FLOATS, "x * sigmoid(x)", wide=True),
    "HARDSWISH": MicroOp(
        functions.hardswish, 1, FLOATS, "x * min(max(x + 3, 0), 6) / 6", wide=True
    ),
    "HARDSIGMOID": MicroOp(
        functions.hardsigmoid, 1, FLOATS, "min(max(x + 3, 0), 6) / 6", wide=True
    ),
    "MISH": MicroOp(functions.mish, 1, FLOATS, "x * tanh(softplus(x))", wide=True),
    "SOFTPLUS": MicroOp(
        functions.softplus, 1, FLOATS, "log(1 + exp(x)) up to x = 20, x beyond", wide=True
    ),
    "LOGICAL_NOT": MicroOp(np.logical_not, 1, COMPUTED, "x == 0", "bool"),
    "BITWISE_NOT": MicroOp(np.invert, 1, _BITS, "~x"),
    "ISNAN": MicroOp(np.isnan, 1, FLOATS, "whether x is NaN", "bool"),
    "ISINF": MicroOp(np.isinf, 1, FLOATS, "whether x is an infinity", "bool"),
    "SQUARE": MicroOp(np.square, 1, REALS, "x * x"),
    "ADD": MicroOp(np.add, 2, COMPUTED, "a + b; for bools, or", commutes=True),
    "SUB": MicroOp(np.subtract, 2, REALS, "a - b"),
    "MUL": MicroOp(np.multiply, 2, COMPUTED, "a * b; for bools, and", commutes=True),
    "DIV": MicroOp(np.divide, 2, FLOATS, "a / b"),
    "FLOOR_DIV": MicroOp(
        np.floor_divide, 2, REALS, "a / b rounded down; 0 for an integer divided by 0"
    ),
    "TRUNC_DIV": MicroOp(
        functions.trunc_div, 2, REALS, "a / b rounded toward zero; 0 for an integer divided by 0"
    ),
    "REMAINDER": MicroOp(
        functions.remainder,
        2,
        REALS,
        "a - b * floor(a / b), with the sign of b; 0 for an integer divided by 0",
    ),
    "FMOD": MicroOp(
        np.fmod, 2, REALS, "a - b * trunc(a / b), with the sign of a; 0 for an integer divided by 0"
    ),
    "POW": MicroOp(
        functions.power, 2, REALS, "a ** b; of an integer to a negative power, truncated"
    ),
    "MAXIMUM": MicroOp(
        np.maximum,
        2,
        COMPUTED,
        "the larger; NaN if one is NaN",
        commutes=True,
    ),
    "MINIMUM": MicroOp(
        np.minimum,
        2,
        COMPUTED,
        "the smaller; NaN if one is NaN",
        commutes=True,
    ),
    "ATAN2": MicroOp(np.arctan2, 2, FLOATS, "angle of the point (b, a)"),
    "LEAKY_RELU": MicroOp(functions.leaky_relu, 2, FLOATS, "x if x > 0, else slope * x"),
    "ELU": MicroOp(functions.elu, 2, FLOATS, "x if x > 0, else alpha * (exp(x) - 1)", wide=True),
    "EQ": MicroOp(np.equal, 2, COMPUTED, "a == b", "bool", commutes=True),
    "NE": MicroOp(np.not_equal, 2, COMPUTED, "a != b", "bool", commutes=True),
    "LT": MicroOp(np.less, 2, COMPUTED, "a < b", "bool"),
    "LE": MicroOp(np.less_equal, 2, COMPUTED, "a <= b", "bool"),
    "GT": MicroOp(np.greater, 2, COMPUTED, "a > b", "bool"),
    "GE": MicroOp(np.greater_equal, 2, COMPUTED, "a >= b", "bool"),
    "LOGICAL_AND": MicroOp(np.logical_and, 2, COMPUTED, "a != 0 and b != 0", "bool", commutes=True),
    "LOGICAL_OR": MicroOp(np.logical_or, 2, COMPUTED, "a != 0 or b != 0", "bool", commutes=True),
    "LOGICAL_XOR": MicroOp(
        np.logical_xor, 2, COMPUTED, "(a != 0) != (b != 0)", "bool", commutes=True
    ),
    "BITWISE_AND": MicroOp(np.bitwise_and, 2, _BITS, "a & b", commutes=True),
    "BITWISE_OR": MicroOp(np.bitwise_or, 2, _BITS, "a | b", commutes=True),
    "BITWISE_XOR": MicroOp(np.bitwise_xor, 2, _BITS, "a ^ b", commutes=True),
    "LEFT_SHIFT": MicroOp(functions.left_shift, 2, INTS, "a * 2^b; 0 where b is no place of a bit"),
    "RIGHT_SHIFT": MicroOp(
        functions.right_shift,
        2,
        INTS,
        "a / 2^b rounded down; -1 or 0 where b is no place of a bit",
    ),
    "GCD": MicroOp(np.gcd, 2, INTS, "greatest common divisor", commutes=True),
    "WHERE": MicroOp(np.where, 3, COMPUTED, "a where the condition holds, else b"),
}

#: The ops that divide. Integers divided by 0 give 0 or an error, according to ``by_zero``.
DIVISIONS = ("FLOOR_DIV", "TRUNC_DIV", "REMAINDER", "FMOD")

#: Their micro-ops that raise an error for a division of integers by 0.
_REFUSING = {f"{name}:nonzero": name for name in DIVISIONS}

# -- a micro-op on its own -------------------------------------------------------------------------


def _cast_target(code: str) -> str | None:
    """Return the dtype in ``"CAST:<dtype>"``, or None for any other micro-op."""
    name, _, dtype = code.partition(":")
    return dtype if name == "CAST" and dtype in DTYPES else None


def refuses(code: str) -> bool:
    """Return whether a micro-op raises an error for some values: an integer divided by 0."""
    return code in _REFUSING


def refusing(division: str) -> str:
    """Return the micro-op of a division that raises an error for integers divided by 0."""
    return f"{division}:nonzero"


def arity(code: str) -> int:
    """Return the number of operands of a micro-op.

    Parameters
    ----------
    code : str
        The micro-op in a tile program: a name of :data:`MICROOPS`, a name with ``":nonzero"``, or
        ``"CAST:<dtype>"``.

    Raises
    ------
    OpError
        If there is no such micro-op.
    """
    micro = MICROOPS.get(_REFUSING.get(code, code))
    if micro is not None:
        return micro.arity
    if _cast_target(code) is None:
        fail("a tile program", "a micro-op", repr(code))
    return 1


def infer_micro(code: str, operands: Sequence[str | float]) -> str:
    """Return the dtype of a micro-op's result.

    Parameters
    ----------
    code : str
        A micro-op that :func:`arity` accepts.
    operands : sequence of str or number
        For an array its dtype; for a scalar its value. A scalar takes the dtype of the arrays; as
        the condition of WHERE it is a bool.

    Raises
    ------
    OpError
    """
    micro = MICROOPS.get(_REFUSING.get(code, code))
    if micro is None:
        target = _cast_target(code)
        assert target is not None  # arity() refuses all others
        return target if type(operands[0]) is str else fail(code, "an array", operands[0])
    conditions = 1 if micro.arity == 3 else 0
    dtype = next((x for x in operands[conditions:] if type(x) is str), None)
    if dtype is None:
        fail(code, "an array among the operands that decide the dtype", list(operands))
    check_dtype(code, "operands", dtype, INTS if refuses(code) else micro.dtypes)
    for i, operand in enumerate(operands):
        expected = "bool" if i < conditions else dtype
        if not isinstance(operand, str):
            check_scalar(code, operand, expected)
        elif operand != expected:
            fail(code, f"operand {i} of {expected}", operand)
    return micro.result or dtype


def operand_dtype(operands: Sequence[str | float]) -> str:
    """Return the dtype of a micro-op's operands, a condition aside; as for :func:`infer_micro`."""
    return next(x for x in operands[len(operands) == 3 :] if type(x) is str)


def _check_nonzero(op: str, operands: Sequence[np.ndarray | float]) -> None:
    """Check that no divisor is 0."""
    if all(np.size(x) for x in operands) and not np.all(operands[1]):
        raise InputError(f"{op}: expected integers other than 0 as divisors, got 0")


def evaluate_micro(code: str, operands: Sequence[np.ndarray | float]) -> np.ndarray:
    """Compute a micro-op on operands that :func:`infer_micro` accepts.

    Raises
    ------
    InputError
        If a micro-op with ``":nonzero"`` divides by 0.
    """
    target = _cast_target(code)
    if target is not None:
        return cast(np.asarray(operands[0]), target)
    name = _REFUSING.get(code, code)
    if refuses(code):
        _check_nonzero(name, operands)
    micro = MICROOPS[name]
    conditions = 1 if micro.arity == 3 else 0
    storage = next(x.dtype for x in operands[conditions:] if isinstance(x, np.ndarray))
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values
        arrays = [
            np.asarray(x, np.bool_ if i < conditions else storage) for i, x in enumerate(operands)
        ]
        if micro.wide:
            arrays = [x.astype(np.float64) for x in arrays]
        return np.asarray(micro.function(*arrays), micro.result or storage)


# -- the ops as nodes of their own -----------------------------------------------------------------


def _operands(op: str, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Return ``inputs`` with the scalar of the attrs, if there is one, in its position."""
    operands = list(inputs)
    index, count = attrs["scalar_index"], MICROOPS[op].arity
    if index != -1:
        if not 0 <= index < count:
            fail(op, f"a scalar_index of -1 or in [0, {count})", index)
        operands.insert(index, attrs["scalar"])
    if len(operands) != count:
        fail(op, f"{count} operands, including the scalar", len(operands))
    return operands


def _infer(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype = infer_micro(op, _operands(op, [t.dtype for t in inputs], attrs))
    return TensorType(dtype, broadcast(op, [t.shape for t in inputs]))


def _infer_mul(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Return the product's type; a matrix in panels keeps its format if its rows are scaled."""
    product, x = _infer("MUL", inputs, attrs), inputs[0]
    if x.format == PLAIN:
        return product
    per_row = product.shape == x.shape and all(t.shape[-1:] in ((), (1,)) for t in inputs[1:])
    if not (per_row and find(x.format).scales_rows):
        fail("MUL", "x in format plain, or in panels.1 with one factor for each row", list(inputs))
    return product._replace(format=x.format)


def _check_divisor(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    """Check, at run time, that no integer is divided by 0 if ``by_zero`` forbids it."""
    if not attrs["by_zero"] and inputs[0].dtype.name in INTS:
        _check_nonzero(op, _operands(op, inputs, attrs))


def _cost(op: str, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of the micro-op on each element; of panels, also that of each row."""
    dtype = operand_dtype(_operands(op, [t.dtype for t in inputs], attrs))
    elements, rows = output.size, 0
    if inputs[0].format != PLAIN:
        elements = inputs[0].storage.size
        rows = elements // PANEL  # each has its factor
    return Cost(
        output.size,
        output.nbytes + sum(t.nbytes for t in inputs),
        functions=((op, dtype, elements),),
        rows=rows,
    )


def _evaluate_division(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    _check_divisor(op, inputs, attrs)
    return _evaluate(op, inputs, attrs)


def _evaluate(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.asarray(evaluate_micro(op, _operands(op, inputs, attrs)), order="C")


def _define(op: str, micro: MicroOp) -> OpDef:
    """Define the op of a micro-op."""
    # MethodType binds a first argument with one object; functools.partial needs three.
    divides = op in DIVISIONS
    return OpDef(
        name=op,
        doc=f"Elementwise: {micro.doc}{'; an error without `by_zero`' if divides else ''}.",
        inputs=_COUNTS[micro.arity],
        infer=_infer_mul if op == "MUL" else MethodType(_infer, op),
        evaluate=MethodType(_evaluate_division if divides else _evaluate, op),
        check=MethodType(_check_divisor, op) if divides else None,
        attrs=_DIVISION_ATTRS if divides else _ATTRS,
        region=elementwise,
        commutes=micro.commutes,
        inplace=_INPLACE[micro.arity],
        strided=(ALL_INPUTS,),
        formatted=(0,) if op == "MUL" else (),
        cost=MethodType(_cost, op),
    )


_ATTRS = {"scalar": Attr("scalar", 0), "scalar_index": Attr("int", -1)}
_DIVISION_ATTRS = {**_ATTRS, "by_zero": Attr("bool", True)}
#: By arity: the fewest and the most inputs, since one may be the scalar; the inputs for in-place.
_COUNTS = {1: (1, 1), 2: (1, 2), 3: (2, 3)}
_INPLACE = {1: (0,), 2: (0, 1), 3: (0, 1, 2)}

OPS = tuple(_define(op, micro) for op, micro in MICROOPS.items())
