"""List OpenInfer's ops in one table, for checks, lookup, documentation and tests.

Programs can call the ops of this table, and Taper's ops as ``taper.NAME``
(:mod:`taper_openinfer.ops.taper`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FLOATS = ("f8", "bf16", "f16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
PACKED_SIGNED = ("i1", "i2", "i4")
PACKED_UNSIGNED = ("u1", "u2", "u4")
INTS = (*SIGNED, *UNSIGNED)
PACKED = (*PACKED_SIGNED, *PACKED_UNSIGNED)
NUMBERS = (*FLOATS, *INTS, *PACKED)
ALL = (*NUMBERS, "bool", "bitset")
#: The element types that ``cast`` converts to.
UNPACKED = (*FLOATS, *INTS)

_SIGNED_NUMBERS = (*FLOATS, *SIGNED, *PACKED_SIGNED)
_DIVIDED = (*INTS, "i4", "u4")
_SHIFTED = (*INTS, "i2", "i4", "u2", "u4")


def _accumulators() -> dict[str, tuple[str, ...]]:
    """Map each dtype to those that ``acc`` may name: wider integers of the same signedness."""
    found: dict[str, tuple[str, ...]] = {}
    for packed, whole in ((PACKED_SIGNED, SIGNED), (PACKED_UNSIGNED, UNSIGNED)):
        found.update(dict.fromkeys(packed, whole))
        found.update({dtype: whole[index + 1 :] for index, dtype in enumerate(whole[:-1])})
    return found


ACCUMULATORS: Mapping[str, tuple[str, ...]] = MappingProxyType(_accumulators())

REQUIRED: Any = object()


class Setting(NamedTuple):
    """A setting of an op.

    Attributes
    ----------
    type : str
        "value", a number of the element type of the op's inputs; "bound", such a number, or a
        number outside the type's range, which has no effect (the default is an infinity); "dtype";
        "bool"; "count", an integer from 0 to 255; "axis" and "axes", integers that count from the
        end if negative; "word".
    doc : str
    default : object
    words : tuple of str
        The words that a setting of type "word" may have.
    spellings : tuple of str
        Other names that programs may use.
    """

    type: Literal["value", "bound", "dtype", "bool", "count", "axis", "axes", "word"]
    doc: str
    default: Any = REQUIRED
    words: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()


class OpSpec(NamedTuple):
    """The definition of an op.

    Attributes
    ----------
    operands : tuple of str
        Names of the inputs, which ``doc`` uses. All have the same element type, except ``cond``,
        which may also be bool.
    doc : str
        The formula and its special cases.
    dtypes : tuple of str
        The element types that the inputs may have.
    settings : mapping of str to Setting
    shape : str
        "same": all inputs and the result have one shape; "broadcast": the inputs broadcast to the
        result's shape by NumPy's rule; "matmul": a matrix product, whose leading axes broadcast;
        "axes" and "axis": the input's shape without the axes that the setting names, which have
        size 1 with ``keepdims``; "one": a single value.
    in_place : bool
        Whether the result may overwrite an input of its type.
    result : str
        Element type of the result: "input" for that of the inputs, "to" for that of the setting,
        else a name.
    """

    operands: tuple[str, ...]
    doc: str
    dtypes: tuple[str, ...]
    settings: Mapping[str, Setting] = MappingProxyType({})
    shape: Literal["same", "broadcast", "matmul", "axes", "axis", "one"] = "same"
    in_place: bool = True
    result: str = "input"

    @property
    def arity(self) -> int:
        """Return the number of inputs."""
        return len(self.operands)

    @property
    def broadcast(self) -> bool:
        """Return whether the shapes of the inputs may differ by NumPy's rule."""
        return self.shape in ("broadcast", "matmul")

    @property
    def acc(self) -> bool:
        """Return whether the op may compute in a wider integer type, which the result then has."""
        return "acc" in self.settings


_ACC = Setting(
    "dtype",
    "a wider integer type of the same sign, in which the op computes and which the result has",
    None,
)
_MASK = Setting("value", "the result where the divisor is 0", None)
_AXES = Setting("axes", "the axes to reduce")
_AXIS = Setting("axis", "the axis to search along")
_KEEPDIMS = Setting("bool", "keep the axes with size 1", False)
_FIRST = Setting("bool", "return the first of equal elements, not the last", True)


def _unary(doc: str, dtypes: tuple[str, ...], **rest: Any) -> OpSpec:
    return OpSpec(("x",), doc, dtypes, **rest)


def _binary(doc: str, dtypes: tuple[str, ...], **rest: Any) -> OpSpec:
    return OpSpec(("a", "b"), doc, dtypes, **rest)


def _compare(doc: str, dtypes: tuple[str, ...] = NUMBERS) -> OpSpec:
    return _binary(doc, dtypes, in_place=False, result="bool")


def _reduce(doc: str, **settings: Setting) -> OpSpec:
    settings = {"axes": _AXES, "keepdims": _KEEPDIMS, **settings}
    return _unary(doc, NUMBERS, settings=settings, shape="axes", in_place=False)


def _search(doc: str) -> OpSpec:
    settings = {"axis": _AXIS, "keepdims": _KEEPDIMS, "select_first": _FIRST}
    return _unary(doc, NUMBERS, settings=settings, shape="axis", in_place=False, result="i64")


def _arithmetic(doc: str, dtypes: tuple[str, ...], **settings: Setting) -> OpSpec:
    return _binary(doc, dtypes, settings=settings, shape="broadcast")


OPS: Mapping[str, OpSpec] = MappingProxyType(
    {
        "add": _arithmetic("a + b; for bools, or", ALL, acc=_ACC),
        "mul": _arithmetic("a * b; for bools, and", ALL, acc=_ACC),
        "sub": _arithmetic("a - b", NUMBERS, acc=_ACC),
        "div": _arithmetic(
            "a / b, for integers rounded toward zero; division by 0 gives NaN, for integers 0",
            (*FLOATS, *_DIVIDED),
            div_by_zero_mask=_MASK,
        ),
        "floor_div": _arithmetic(
            "a / b rounded down; division by 0 gives 0", _DIVIDED, div_by_zero_mask=_MASK
        ),
        "rem": _arithmetic("a - b * trunc(a / b), with the sign of a; 0 if b is 0", _DIVIDED),
        "fma": OpSpec(("a", "b", "c"), "a * b + c", FLOATS),
        "recip": _unary("1 / x; NaN if x is 0", FLOATS, settings={"div_by_zero_mask": _MASK}),
        "neg": _unary("-x", _SIGNED_NUMBERS),
        # OpenInfer first had abs and relu also for unsigned integers and bools, where they return
        # x.
        "abs": _unary(
            "|x|; the lowest integer stays itself",
            (*_SIGNED_NUMBERS, *UNSIGNED, "bool"),
            settings={"acc": _ACC},
        ),
        "matmul": _binary(
            "matrix product, as in NumPy; for bools, or of ands",
            ALL,
            settings={"acc": _ACC},
            shape="matmul",
        ),
        "relu": _unary(
            "min(x if x >= 0 else alpha * x, clamp_max); with alpha 0, 0 where x < 0",
            (*FLOATS, *INTS, "i4", "bool"),
            settings={
                "alpha": Setting("value", "slope below 0", 0, spellings=("negative_slope",)),
                "clamp_max": Setting("bound", "the largest result", float("inf")),
            },
        ),
        "floor": _unary("x rounded down", FLOATS),
        "ceil": _unary("x rounded up", FLOATS),
        "round": _unary("x rounded to the nearest integer, halves away from zero", FLOATS),
        "trunc": _unary("x rounded toward zero", FLOATS),
        "clamp": _unary(
            "min(max(x, min), max)",
            NUMBERS,
            settings={
                "min": Setting("bound", "the smallest result", -float("inf")),
                "max": Setting("bound", "the largest result", float("inf")),
            },
        ),
        "min": _binary("the smaller; NaN if one is NaN", NUMBERS),
        "max": _binary("the larger; NaN if one is NaN", NUMBERS),
        "sign": _unary("-1, 0 or 1; 0 for NaN", _SIGNED_NUMBERS, result="i8"),
        "and": _binary("a & b", (*INTS, *PACKED, "bool")),
        "or": _binary("a | b", (*INTS, *PACKED, "bool")),
        "xor": _binary("a ^ b", (*INTS, *PACKED, "bool")),
        "not": _unary("every bit inverted; for bools, not", (*INTS, *PACKED, "bool")),
        "shl": _unary(
            "x shifted left, filled with zeros",
            _SHIFTED,
            settings={"bits": Setting("count", "by how many bits")},
        ),
        "shr": _unary(
            "x shifted right, filled with the sign bit, for unsigned integers with zeros",
            _SHIFTED,
            settings={"bits": Setting("count", "by how many bits")},
        ),
        "popcount": _unary("number of bits that are 1", _SHIFTED, in_place=False, result="u8"),
        "eq": _compare("a == b", (*NUMBERS, "bool")),
        "ne": _compare("a != b", (*NUMBERS, "bool")),
        "lt": _compare("a < b"),
        "le": _compare("a <= b"),
        "gt": _compare("a > b"),
        "ge": _compare("a >= b"),
        "is_finite": _unary(
            "whether no element is NaN or an infinity",
            FLOATS,
            shape="one",
            in_place=False,
            result="bool",
        ),
        "is_nan": _unary("whether x is NaN", FLOATS, in_place=False, result="bool"),
        "is_inf": _unary("whether x is an infinity", FLOATS, in_place=False, result="bool"),
        "is_neg": _unary("x < 0", (*FLOATS, *INTS, *PACKED_SIGNED), in_place=False, result="bool"),
        "filter": OpSpec(
            ("a", "b", "cond"), "a where cond != 0, else b", (*NUMBERS, "bool"), in_place=False
        ),
        "sum_axis": _reduce("sum", acc=_ACC),
        "mean_axis": _reduce(
            "mean; NaN for no elements. For integers it is the exact mean rounded toward zero, "
            "and 0 for no elements",
            acc=_ACC,
        ),
        "prod_axis": _reduce("product", acc=_ACC),
        "max_axis": _reduce("largest element, NaN if there is one"),
        "min_axis": _reduce("smallest element, NaN if there is one"),
        "argmax_axis": _search("index of the largest element; NaN is larger than all numbers"),
        "argmin_axis": _search("index of the smallest element; NaN is smaller than all numbers"),
        "cast": _unary(
            "x in another type: any type to floats, floats to integers, integers to wider "
            "integers of the same sign",
            NUMBERS,
            settings={
                "to": Setting("dtype", "the type to convert to"),
                "rounding_mode": Setting(
                    "word",
                    "how floats become integers; nearest takes halves away from zero",
                    "trunc",
                    words=("trunc", "floor", "ceil", "nearest"),
                ),
                "saturate": Setting(
                    "bool",
                    "a float beyond all integers of the type gives the last one, NaN gives 0; if "
                    "false, it gives its lowest bits, infinities give 0",
                    True,
                ),
            },
            in_place=False,
            result="to",
        ),
        "fill": _unary(
            "value in the shape of x",
            ALL,
            settings={"value": Setting("value", "the value of all elements")},
        ),
    }
)
