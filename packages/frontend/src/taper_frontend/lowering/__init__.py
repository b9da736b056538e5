"""Lower ATen to ops: one handler per ATen op, registered with :func:`lowers`."""

from __future__ import annotations

from taper_frontend.lowering import (  # noqa: F401  (importing them registers their handlers)
    attention,
    complex_numbers,
    control_flow,
    conv,
    creation,
    data_dependent,
    deform_conv,
    distance,
    elementwise,
    fft,
    fold,
    grid_sample,
    indexing,
    linalg,
    matmul,
    norm,
    pad,
    pool,
    quant,
    random,
    recurrent,
    reduce,
    resample,
    roi_align,
    scatter,
    shape,
    sort,
    special,
)
from taper_frontend.lowering.context import Lowering
from taper_frontend.lowering.handlers import HANDLERS, lowers
from taper_frontend.lowering.lower import Lowered, lower

__all__ = ["HANDLERS", "Lowered", "Lowering", "lower", "lowers"]

elementwise.lower_other_unary_ops()  # after all other modules have registered theirs
