"""List the numbers of 4-bit and 8-bit floats by their codes."""

from __future__ import annotations

import numpy as np

from taper_runtime.formats.blocks import floats

#: A code of no finite number is NaN.
E2M1, E4M3, E5M2 = floats(2, 1), floats(4, 3).copy(), floats(5, 2).copy()
E4M3[127::128] = np.nan
E5M2.reshape(2, 128)[:, 124:] = np.nan

#: Powers of 2 by their codes, from 2 ** -127 on.
E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))

_WITH_INFINITIES = E5M2.copy()
_WITH_INFINITIES[[124, 252]] = np.inf, -np.inf

#: The numbers of torch's dtypes of 8 bits.
TORCH_FLOATS = {
    "float8_e4m3fn": E4M3,
    "float8_e5m2": _WITH_INFINITIES,
    "float8_e8m0fnu": E8M0,
}
