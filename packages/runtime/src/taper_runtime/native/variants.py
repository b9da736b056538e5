"""Describe the ways in which kernels compute nodes."""

from __future__ import annotations

from taper_runtime.base.records import NamedTuple


class Variant(NamedTuple):
    """One way in which a kernel computes nodes, as its row says.

    Attributes
    ----------
    name : str
    other_bits : bool
        Whether some node gets other bits than from the kernel's own choice.
    tile : (int, int) or None
        Rows and columns of the output that registers hold at a time.
    """

    name: str
    other_bits: bool
    tile: tuple[int, int] | None


class Offer(NamedTuple):
    """A way to compute one node: a kernel that serves it, as one of its variants.

    Attributes
    ----------
    kernel : str
    variant : str or None
        None where the kernel has one way only.
    other_bits : bool
        Whether results may have other bits than those of the first offer.
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Of memory, for each thread.
    extra_flops : int
        Operations beyond those of the op: on lanes of no use, and on sums over lanes.
    scratch_traffic : int
        Bytes that are written to scratch and read there.
    """

    kernel: str
    variant: str | None
    other_bits: bool
    tasks: int
    scratch_bytes: int
    extra_flops: int
    scratch_traffic: int
