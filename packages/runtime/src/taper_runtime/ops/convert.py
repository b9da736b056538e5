"""Define CAST, and the dtypes that it converts natively."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.dtypes import cast as cast
from taper_runtime.base.dtypes import from_bfloat16 as from_bfloat16
from taper_runtime.base.dtypes import to_bfloat16 as to_bfloat16
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import elementwise
from taper_runtime.ops.type_rules import FLOATS, check_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Dtypes of half the size of float32, which are computed in float32.
FLOATS_16_BIT = ("float16", "bfloat16")

#: Dtypes that weights may be stored in; products widen them exactly when they read them.
NARROW = (*FLOATS_16_BIT, "int8")


def is_native_cast(source: str, target: str) -> bool:
    """Return whether a native kernel casts ``source`` to ``target``.

    16-bit floats are cast only to and from float32.
    """
    return "float32" in (source, target) or not {source, target} & {*FLOATS_16_BIT}


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(check_dtype("CAST", "dtype", attrs["dtype"], tuple(DTYPES)), inputs[0].shape)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    x = inputs[0]
    return Cost(
        output.size,
        x.nbytes + output.nbytes,
        functions=((f"CAST:{attrs['dtype']}", x.dtype, output.size),),
    )


CAST = OpDef(
    name="CAST",
    doc="Convert to another dtype. Floats truncate toward zero to integers (the result is "
    "unspecified where it does not fit) and round to nearest even to smaller floats; as bool, "
    "all values except 0 are true.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=lambda inputs, attrs: cast(inputs[0], attrs["dtype"]),
    attrs={"dtype": Attr("string")},
    region=elementwise,
    decodes=lambda inputs, output: inputs[0].dtype in NARROW and output.dtype in FLOATS,
    strided=(ALL_INPUTS,),
    cost=_cost,
)

OPS = (CAST,)
