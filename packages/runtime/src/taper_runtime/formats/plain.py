"""Store the elements as they are, row-major: the format ``plain``."""

from __future__ import annotations

from taper_runtime.formats.format import Family, Format

PLAIN = Format(
    name="plain",
    storage=lambda dtype, shape: (dtype, shape),
    encode=lambda array: array,
    decode=lambda stored, dtype, shape: stored,
    scales_rows=True,
    is_for_kernels=False,
)

FAMILY = Family("plain", lambda: PLAIN, (), "plain", ("plain",))
