"""Elementwise ops: one line each in :data:`MICROOPS`.

The same table serves the ops as nodes of their own and as the micro-ops of a tile program
(:mod:`taper_runtime.ops.map`). A micro-op takes operands and nothing else, so that a program is a
list of names; CAST alone carries a dtype, spelled ``"CAST:float32"`` in a program.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import OpError
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.rules import COMPUTED, FLOATS, INTS, REALS, broadcast, check_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: dtypes the native micro-ops serve.
NATIVE = ("float32", "int64", "int32", "bool")
INTEGRAL = (*INTS, "bool")


class MicroOp(NamedTuple):
    """One elementwise function.

    Attributes
    ----------
    function : callable
        numpy arrays of equal dtype to an array.
    arity : int
    dtypes : tuple of str
        Operand dtypes it takes.
    result : str or None
        Output dtype where it is not the operands'.
    low, high : float
        Range of the samples' values.
    """

    function: Callable[..., np.ndarray]
    arity: int
    dtypes: tuple[str, ...]
    result: str | None = None
    low: float = -3.0
    high: float = 3.0


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function; numpy has none."""
    return np.asarray(_erf(x.astype(np.float64)), np.float64).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number only, so that neither side overflows
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * x.dtype.type(0.5) * (1 + erf(x * x.dtype.type(math.sqrt(0.5))))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return (0.5 * x * (1 + np.tanh(inner))).astype(x.dtype)


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x + 3, 0), 6) / 6


def _elu(x: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _sign(x: np.ndarray) -> np.ndarray:
    # torch's sign of NaN is 0
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    floor = a // b
    return floor + ((floor < 0) & (floor * b != a))


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.power(a, b)
    # an integer to a negative power is 0 unless its absolute value is 1
    powers = np.power(a, np.maximum(b, 0))
    negative = np.where(np.abs(a) == 1, np.power(a, np.abs(b) % 2), 0)
    return np.where(b < 0, negative, powers)


def _square(x: np.ndarray) -> np.ndarray:
    return x * x


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, x.dtype.type(0))


MICROOPS: dict[str, MicroOp] = {
    "NEG": MicroOp(np.negative, 1, REALS),
    "ABS": MicroOp(np.abs, 1, REALS),
    "SIGN": MicroOp(_sign, 1, REALS),
    "CEIL": MicroOp(np.ceil, 1, FLOATS),
    "FLOOR": MicroOp(np.floor, 1, FLOATS),
    "ROUND": MicroOp(np.rint, 1, FLOATS),
    "TRUNC": MicroOp(np.trunc, 1, FLOATS),
    "SQRT": MicroOp(np.sqrt, 1, FLOATS, low=0.0),
    "RSQRT": MicroOp(lambda x: 1 / np.sqrt(x), 1, FLOATS, low=0.1),
    "RECIPROCAL": MicroOp(lambda x: 1 / x, 1, FLOATS, low=0.1),
    "EXP": MicroOp(np.exp, 1, FLOATS),
    "EXPM1": MicroOp(np.expm1, 1, FLOATS),
    "LOG": MicroOp(np.log, 1, FLOATS, low=0.01),
    "LOG2": MicroOp(np.log2, 1, FLOATS, low=0.01),
    "LOG10": MicroOp(np.log10, 1, FLOATS, low=0.01),
    "LOG1P": MicroOp(np.log1p, 1, FLOATS, low=-0.9),
    "SIN": MicroOp(np.sin, 1, FLOATS),
    "COS": MicroOp(np.cos, 1, FLOATS),
    "TAN": MicroOp(np.tan, 1, FLOATS, low=-1.4, high=1.4),
    "ASIN": MicroOp(np.arcsin, 1, FLOATS, low=-1.0, high=1.0),
    "ACOS": MicroOp(np.arccos, 1, FLOATS, low=-1.0, high=1.0),
    "ATAN": MicroOp(np.arctan, 1, FLOATS),
    "SINH": MicroOp(np.sinh, 1, FLOATS),
    "COSH": MicroOp(np.cosh, 1, FLOATS),
    "TANH": MicroOp(np.tanh, 1, FLOATS),
    "ASINH": MicroOp(np.arcsinh, 1, FLOATS),
    "ACOSH": MicroOp(np.arccosh, 1, FLOATS, low=1.0),
    "ATANH": MicroOp(np.arctanh, 1, FLOATS, low=-0.9, high=0.9),
    "ERF": MicroOp(erf, 1, FLOATS),
    "SIGMOID": MicroOp(_sigmoid, 1, FLOATS),
    "RELU": MicroOp(_relu, 1, REALS),
    "GELU": MicroOp(_gelu, 1, FLOATS),
    "GELU_TANH": MicroOp(_gelu_tanh, 1, FLOATS),
    "SILU": MicroOp(lambda x: x * _sigmoid(x), 1, FLOATS),
    "HARDSWISH": MicroOp(lambda x: x * _hardsigmoid(x), 1, FLOATS),
    "HARDSIGMOID": MicroOp(_hardsigmoid, 1, FLOATS),
    "MISH": MicroOp(lambda x: x * np.tanh(_softplus(x)), 1, FLOATS),
    "SOFTPLUS": MicroOp(_softplus, 1, FLOATS),
    "SQUARE": MicroOp(_square, 1, REALS),
    "LOGICAL_NOT": MicroOp(np.logical_not, 1, COMPUTED, "bool"),
    "BITWISE_NOT": MicroOp(np.invert, 1, INTEGRAL),
    "ISNAN": MicroOp(np.isnan, 1, FLOATS, "bool"),
    "ISINF": MicroOp(np.isinf, 1, FLOATS, "bool"),
    "ADD": MicroOp(np.add, 2, COMPUTED),
    "SUB": MicroOp(np.subtract, 2, REALS),
    "MUL": MicroOp(np.multiply, 2, COMPUTED),
    "DIV": MicroOp(np.divide, 2, FLOATS),
    "FLOOR_DIV": MicroOp(np.floor_divide, 2, REALS),
    "TRUNC_DIV": MicroOp(_trunc_div, 2, REALS),
    "REMAINDER": MicroOp(np.remainder, 2, REALS),
    "FMOD": MicroOp(np.fmod, 2, REALS),
    "POW": MicroOp(_pow, 2, REALS, low=0.1),
    "MAXIMUM": MicroOp(np.maximum, 2, COMPUTED),
    "MINIMUM": MicroOp(np.minimum, 2, COMPUTED),
    "ATAN2": MicroOp(np.arctan2, 2, FLOATS),
    "LEAKY_RELU": MicroOp(lambda x, slope: np.where(x > 0, x, x * slope), 2, FLOATS),
    "ELU": MicroOp(_elu, 2, FLOATS),
    "EQ": MicroOp(np.equal, 2, COMPUTED, "bool"),
    "NE": MicroOp(np.not_equal, 2, COMPUTED, "bool"),
    "LT": MicroOp(np.less, 2, COMPUTED, "bool"),
    "LE": MicroOp(np.less_equal, 2, COMPUTED, "bool"),
    "GT": MicroOp(np.greater, 2, COMPUTED, "bool"),
    "GE": MicroOp(np.greater_equal, 2, COMPUTED, "bool"),
    "LOGICAL_AND": MicroOp(np.logical_and, 2, COMPUTED, "bool"),
    "LOGICAL_OR": MicroOp(np.logical_or, 2, COMPUTED, "bool"),
    "LOGICAL_XOR": MicroOp(np.logical_xor, 2, COMPUTED, "bool"),
    "BITWISE_AND": MicroOp(np.bitwise_and, 2, INTEGRAL),
    "BITWISE_OR": MicroOp(np.bitwise_or, 2, INTEGRAL),
    "BITWISE_XOR": MicroOp(np.bitwise_xor, 2, INTEGRAL),
    "WHERE": MicroOp(np.where, 3, COMPUTED),
}


def split_code(code: str) -> tuple[str, str | None]:
    """Micro-op name and, of ``"CAST:<dtype>"``, the dtype.

    Raises
    ------
    OpError
        If there is no such micro-op.
    """
    if code in MICROOPS:
        return code, None
    name, _, dtype = code.partition(":")
    if name == "CAST" and dtype in DTYPES:
        return name, dtype
    raise OpError(f"expected a micro-op, got {code!r}")


def arity(code: str) -> int:
    """Number of operands of a micro-op."""
    return 1 if code.startswith("CAST:") else MICROOPS[code].arity


def infer_micro(code: str, operands: Sequence[str | None]) -> str:
    """Result dtype of one micro-op.

    Parameters
    ----------
    code : str
        As in a tile program.
    operands : sequence of str or None
        dtypes; None for a scalar, which takes the dtype of the tensors beside it.
    """
    name, target = split_code(code)
    if target is not None:
        if operands[0] is None:
            raise OpError(f"{name}: expected a tensor, got a scalar")
        return target
    micro = MICROOPS[name]
    if name == "WHERE":
        if operands[0] is not None:
            check_dtype(name, "condition", operands[0], ("bool",))
        operands = operands[1:]
    dtypes = [dtype for dtype in operands if dtype is not None]
    if not dtypes:
        raise OpError(f"{name}: expected a tensor among its operands, got scalars only")
    if len(set(dtypes)) > 1:
        raise OpError(f"{name}: expected operands of one dtype, got {dtypes}")
    check_dtype(name, "operand", dtypes[0], micro.dtypes)
    return micro.result or dtypes[0]


def evaluate_micro(code: str, operands: Sequence[np.ndarray | float]) -> np.ndarray:
    """Compute one micro-op; scalars are Python numbers."""
    name, target = split_code(code)
    if target is not None:
        return cast(np.asarray(operands[0]), target)
    first = 1 if name == "WHERE" else 0
    dtype = next(x.dtype for x in operands[first:] if isinstance(x, np.ndarray))
    arrays = [
        x if isinstance(x, np.ndarray) else np.asarray(x).astype(dtype if i >= first else np.bool_)
        for i, x in enumerate(operands)
    ]
    micro = MICROOPS[name]
    with np.errstate(all="ignore"):
        result = np.asarray(micro.function(*arrays))
    return result.astype(micro.result or dtype, copy=False)


def check_scalar(name: str, scalar: float, dtype: str) -> None:
    """Whether ``scalar`` has a value in ``dtype``: nothing is truncated silently."""
    storage = DTYPES[dtype].storage
    if storage.kind == "f":
        return
    whole = isinstance(scalar, int)
    low, high = (0, 1) if storage.kind == "b" else (np.iinfo(storage).min, np.iinfo(storage).max)
    if not whole or not low <= scalar <= high:
        raise OpError(f"{name}: expected a scalar with a value in {dtype}, got {scalar!r}")


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert; bfloat16 is its bits in uint16, rounded to nearest even."""
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return x != 0
        if dtype == "bfloat16":
            return _to_bfloat16(x.astype(np.float32))
        if x.dtype.kind == "f" and DTYPES[dtype].storage.kind in "iu":
            # by int64, as C converts: numpy's direct float to small int differs by platform
            return np.trunc(x).astype(np.int64).astype(DTYPES[dtype].storage)
        return x.astype(DTYPES[dtype].storage)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x).reshape(x.shape).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet_nan, rounded).astype(np.uint16)


def contiguous(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``x`` broadcast to ``shape``, C-contiguous (0-d stays 0-d)."""
    return np.array(np.broadcast_to(x, shape), order="C", copy=None)


# -- the ops as nodes of their own -----------------------------------------------------------------

_SCALAR_ATTRS = {"scalar": Attr("scalar", 0), "scalar_index": Attr("int", -1)}


def _operands(name: str, count: int, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """Inputs with the scalar (or None, for types) at its place."""
    index = attrs["scalar_index"]
    operands = list(inputs)
    if index != -1:
        if not 0 <= index < count or count == 1:
            raise OpError(
                f"{name}: scalar_index: expected -1 or a position of {count}, got {index}"
            )
        operands.insert(index, None)
    if len(operands) != count:
        raise OpError(f"{name}: expected {count} operands, got {len(operands)}")
    return operands


def _make(name: str, micro: MicroOp) -> OpDef:
    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        operands = _operands(name, micro.arity, inputs, attrs)
        dtype = infer_micro(name, [t.dtype if t is not None else None for t in operands])
        if attrs["scalar_index"] != -1:
            beside = "bool" if name == "WHERE" and attrs["scalar_index"] == 0 else inputs[-1].dtype
            check_scalar(name, attrs["scalar"], beside)
        return TensorType(dtype, broadcast(name, [t.shape for t in inputs]))

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        operands = _operands(name, micro.arity, inputs, attrs)
        operands = [attrs["scalar"] if x is None else x for x in operands]
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        return contiguous(evaluate_micro(name, operands), shape)

    return OpDef(
        name=name,
        doc=f"Elementwise {name.lower().replace('_', ' ')} of {micro.arity} broadcast operands.",
        inputs=(max(micro.arity - 1, 1), micro.arity),
        infer=infer,
        evaluate=evaluate,
        samples=lambda: _samples(name, micro),
        attrs=_SCALAR_ATTRS,
        inplace=tuple(range(micro.arity)),
        strided=(ALL_INPUTS,),
    )


#: Shapes that meet in the samples of an op of two or three operands.
_SHAPES = [
    ((), (), ()),
    ((7,), (7,), (7,)),
    ((3, 5), (5,), (3, 1)),
    ((2, 1, 4), (3, 1), (1,)),
    ((2, 3, 1, 2, 1, 3), (1, 4, 1, 1, 3), (3,)),
    ((0, 3), (1, 3), (3,)),
]
_SPECIALS = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40, 3.4e38, 0.5, 2.5]


def _array(rng: np.random.Generator, micro: MicroOp, shape: tuple[int, ...], dtype: str) -> Any:
    storage = DTYPES[dtype].storage
    if storage.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if storage.kind in "iu":
        return np.asarray(rng.integers(-6 if storage.kind == "i" else 0, 7, shape)).astype(storage)
    return np.asarray(rng.uniform(micro.low, micro.high, shape)).astype(storage)


def _samples(name: str, micro: MicroOp) -> Iterator[Sample]:
    rng = np.random.default_rng(len(name))
    for dtype in micro.dtypes:
        native = dtype in NATIVE
        for shapes in _SHAPES if dtype in ("float32", "int64") else _SHAPES[2:3]:
            arrays = [_array(rng, micro, shape, dtype) for shape in shapes[: micro.arity]]
            if name == "WHERE":
                arrays[0] = np.asarray(rng.random(shapes[0]) < 0.5)
            yield Sample(arrays, {}, native)
            for index in range(micro.arity if micro.arity > 1 else 0):
                rest = arrays[:index] + arrays[index + 1 :]
                scalar = {"f": 1.5, "i": 3, "u": 3, "b": True}[DTYPES[dtype].storage.kind]
                if name == "WHERE" and index == 0:
                    scalar = True
                yield Sample(rest, {"scalar": scalar, "scalar_index": index}, native)
    if "float32" in micro.dtypes:
        values = list(itertools.product(_SPECIALS, repeat=min(micro.arity, 2)))
        columns: list[np.ndarray] = [
            np.array(column, np.float32) for column in zip(*values, strict=True)
        ]
        if name == "WHERE":
            columns = [columns[0] > 0, *columns]
        yield Sample(columns, {})


def _infer_cast(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if attrs["dtype"] not in DTYPES:
        raise OpError(f"CAST: expected a dtype, got {attrs['dtype']!r}")
    return TensorType(attrs["dtype"], inputs[0].shape)


def _evaluate_cast(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return contiguous(cast(inputs[0], attrs["dtype"]), inputs[0].shape)


def _samples_cast() -> Iterator[Sample]:
    values = np.array([[0.0, -0.0, 1.0, -1.5, 2.5, 100.25, -100.75, 1e-9]])
    for source, target in itertools.product(COMPUTED, COMPUTED):
        array = values.astype(np.int64).astype(DTYPES[source].storage)
        if source in FLOATS:
            array = np.abs(values) if target == "uint8" else values
            array = array.astype(DTYPES[source].storage)
        yield Sample([array], {"dtype": target}, source in NATIVE and target in NATIVE)


ELEMENTWISE = [_make(name, micro) for name, micro in MICROOPS.items()]
CAST = OpDef(
    name="CAST",
    doc="Convert to another dtype; floats truncate toward zero, anything but 0 is True.",
    inputs=(1, 1),
    infer=_infer_cast,
    evaluate=_evaluate_cast,
    samples=_samples_cast,
    attrs={"dtype": Attr("string")},
    strided=(ALL_INPUTS,),
)
