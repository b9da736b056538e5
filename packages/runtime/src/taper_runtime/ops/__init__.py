"""The op registry: every op Taper knows, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops import attention, elementwise, gather, map, matmul, norm, reduce, shape

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef

REGISTRY: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add ``op`` to the registry; a user's own ops come in the same way.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered already")
    REGISTRY[op.name] = op
    return op


for _op in (
    *elementwise.ELEMENTWISE,
    elementwise.CAST,
    map.MAP,
    matmul.MATMUL,
    attention.ATTENTION,
    norm.SOFTMAX,
    norm.LAYER_NORM,
    norm.RMS_NORM,
    *reduce.REDUCTIONS,
    *shape.MOVEMENT,
    shape.COPY,
    shape.CAT,
    gather.EMBEDDING,
    gather.INDEX_SELECT,
    gather.GATHER,
    gather.SCATTER,
    gather.ARGSORT,
):
    register(_op)
