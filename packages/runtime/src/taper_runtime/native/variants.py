"""Describe variants, the different ways in which a kernel can compute a node."""

from __future__ import annotations

from taper_runtime.base.records import NamedTuple


class Variant(NamedTuple):
    """One way in which a kernel computes nodes, as declared in its row.

    Attributes
    ----------
    name : str
    other_bits : bool
        Whether results may differ in bits from those of the kernel's default.
    tile : (int, int) or None
        The rows and columns of the output tile that registers hold.
    """

    name: str
    other_bits: bool
    tile: tuple[int, int] | None


class KernelName(NamedTuple):
    """The name of what computes a node.

    Attributes
    ----------
    name : str
        A kernel's; "numpy" where none serves the node.
    variant : str or None
        Which of the kernel's variants; None where it has one way only.
    """

    name: str
    variant: str | None = None

    def __str__(self) -> str:
        """Write it as ``taper kernels`` lists it: ``f32_matmul dot``."""
        return f"{self.name} {self.variant}" if self.variant else self.name


class Offer(NamedTuple):
    """A way to compute one node: a kernel that supports it, and one of the kernel's variants.

    Attributes
    ----------
    kernel : str
    variant : str or None
        None if the kernel has no variants.
    other_bits : bool
        Whether results may differ in bits from those of the first offer.
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Bytes of scratch memory for each thread.
    extra_flops : int
        Operations beyond those of the op, on unused lanes and on sums over lanes, less those that
        are left out.
    scratch_traffic : int
        Bytes that are written to scratch memory and read from it.
    """

    kernel: str
    variant: str | None
    other_bits: bool
    tasks: int
    scratch_bytes: int
    extra_flops: int
    scratch_traffic: int
