"""The op registry: every op Taper knows, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops import (
    attention,
    call,
    complex_linalg,
    complex_mul,
    control,
    conv,
    convert,
    creation,
    decompositions,
    elementwise,
    fft,
    gather,
    grouped,
    linalg,
    map,
    matmul,
    nms,
    nonzero,
    norm,
    pack,
    pool,
    random,
    recurrent,
    reduce,
    resample,
    scan,
    scatter,
    search,
    shape,
    sort,
    special,
)

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef

REGISTRY: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add ``op`` to the registry; a user's own ops come in the same way.

    Raises
    ------
    ValueError
        If the name is taken.
    OpError
        If an attr is of no known type, or its default not of its type.
    """
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered already")
    op.check_attrs()
    REGISTRY[op.name] = op
    return op


# In the order of the documentation.
for _op in (
    *elementwise.OPS,
    convert.CAST,
    pack.PACK,
    pack.UNPACK,
    map.MAP,
    complex_mul.COMPLEX_MUL,
    matmul.MATMUL,
    grouped.GROUPED_MATMUL,
    attention.ATTENTION,
    *conv.OPS,
    *pool.OPS,
    resample.RESAMPLE,
    *norm.OPS,
    *reduce.OPS,
    *shape.OPS,
    *gather.OPS,
    nonzero.NONZERO,
    nms.NMS,
    creation.ARANGE,
    *random.OPS,
    *scatter.OPS,
    sort.ARGSORT,
    search.SEARCHSORTED,
    *scan.OPS,
    *fft.OPS,
    *special.OPS,
    *linalg.OPS,
    *decompositions.OPS,
    *complex_linalg.OPS,
    *recurrent.OPS,
    *control.OPS,
    *call.OPS,
):
    register(_op)
