"""Register every op Taper knows, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops.registry import Registry

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef

REGISTRY = Registry(
    (
        "elementwise",
        "map",
        "matmul",
        "shape",
        "gather",
        "reduce",
        "norm",
        "attention",
        "convert",
        "conv",
        "pool",
        "pack",
        "complex_mul",
        "grouped",
        "resample",
        "nonzero",
        "nms",
        "creation",
        "random",
        "scatter",
        "sort",
        "search",
        "scan",
        "fft",
        "special",
        "linalg",
        "decompositions",
        "complex_linalg",
        "recurrent",
        "control",
        "call",
    )
)


def register(op: OpDef) -> OpDef:
    """Add ``op`` to the registry, one of a user's own.

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
