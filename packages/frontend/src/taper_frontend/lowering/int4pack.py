"""Lower products with the int4 weights that torch packs for CPUs.

torch's packing depends on the vector size of the CPU, which the packed tensor does not record. So
the lowering assumes the packing of this process. If the weights of a module or ``.pt2`` file were
packed on a CPU with other vectors (or under another ``ATEN_CPU_CAPABILITY``), torch computes wrong
results here, and so does the export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering

_ZERO = 8  # the int4 value that represents a group's zero point


@lowers("aten._weight_int4pack_mm_for_cpu.default")
def weight_int4pack_mm(
    ctx: Lowering, x: str, weight: str, group: int, scales_and_zeros: str
) -> str:
    """Compute ``x @ w.T`` with ``w = (q - 8) * scale + zero`` per group, from packed q."""
    rows, k = ctx.shape(weight)[0], 2 * ctx.shape(weight)[1]
    dtype = ctx.dtype(x)
    q = ctx.reshape(_unpack(ctx, weight), (rows, k // group, group))
    scales, zeros = (
        ctx.permute(ctx.slice(scales_and_zeros, 2, i, i + 1), (1, 0, 2)) for i in range(2)
    )
    w = ctx.apply("SUB", ctx.cast(q, dtype), _ZERO, dtype=dtype)
    w = ctx.apply("ADD", ctx.apply("MUL", w, scales, dtype=dtype), zeros, dtype=dtype)
    w = ctx.permute(ctx.reshape(w, (rows, k)), (1, 0))
    return ctx.emit("MATMUL", [x, w])


def _unpack(ctx: Lowering, weight: str) -> str:
    """Unpack ``[N, K/2]`` bytes to the integers ``[N, K]``, uint8.

    Blocks of rows follow each other; the last one has the remaining rows. A block has ``[K,
    rows/2]`` bytes.
    """
    rows = ctx.shape(weight)[0]
    block, are_halves = _packing()
    whole = rows // block * block
    parts = [
        _unpack_blocks(ctx, ctx.slice(weight, 0, start, stop), size, are_halves and size == block)
        for start, stop, size in ((0, whole, block), (whole, rows, rows - whole))
        if start < stop
    ]
    return ctx.emit("CAT", parts, axis=0) if len(parts) > 1 else parts[0]


def _unpack_blocks(ctx: Lowering, weight: str, size: int, are_halves: bool) -> str:
    rows, half = ctx.shape(weight)
    pairs = ctx.reshape(weight, (rows // size, 2 * half, size // 2, 1))
    low = ctx.apply("BITWISE_AND", pairs, 15, dtype="uint8")
    high = ctx.emit("RIGHT_SHIFT", [pairs, ctx.full((), 4, "uint8")])
    apart = ctx.emit("CAT", [low, high], axis=2 if are_halves else 3)
    apart = ctx.reshape(apart, (rows // size, 2 * half, size))
    return ctx.reshape(ctx.permute(apart, (0, 2, 1)), (rows, 2 * half))


def _packing() -> tuple[int, bool]:
    """Find how torch packs on this CPU, by packing an example.

    Returns
    -------
    tuple of int and bool
        The rows of a block, and whether a byte holds one row of the block's first half and one of
        its second half, instead of two neighbouring rows.
    """
    rows, k = 128, 32
    digits = [
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            digit.to(torch.int32)[:, None].expand(rows, k).contiguous(), 1
        ).flatten()
        for digit in (torch.arange(rows) % 16, torch.arange(rows) // 16)
    ]
    low, high = (
        [int(row) for row in digits[0] // place % 16 + digits[1] // place % 16 * 16]
        for place in (1, 16)
    )
    return 2 * low.index(0, 1), high[0] != 1
