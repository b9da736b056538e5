"""Export modules whose states have a row for each sequence of a batch, as decoders have."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.errors import ExportError, ExportWarning
from taper_frontend.exporter import export

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from taper_runtime.plan.plan import Plan

#: Rows of an example. torch takes 1 for a case of its own.
ROWS = 2

#: The name of a dim that counts rows.
ROW = {0: "rows"}

#: The largest relative error, in the L2 norm, of logits in float32, and in 16 bits.
_ERROR, _COARSE_ERROR = 1e-4, 3e-2


def export_rows(
    module: torch.nn.Module,
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any],
    *,
    input_names: Sequence[str],
    shared: Collection[str] = (),
    **options: Any,
) -> Plan:
    """Export a module without warnings about its states, which are intended.

    Parameters
    ----------
    module : torch.nn.Module
    kwargs, dynamic_shapes, input_names
        As for :func:`taper_frontend.export`.
    shared : collection of str
        The inputs that have no rows.
    **options
        As for :func:`taper_frontend.export`.

    Returns
    -------
    Plan
        Its samples are of one row, as the session's own state has.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExportWarning)
        plan = export(
            module,
            kwargs=kwargs,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            **options,
        )
    for each in caught:
        if getattr(each.message, "kind", "") != "state":
            warnings.warn(each.message, stacklevel=3)
    notes = [note for note in plan.metadata["warnings"] if note["kind"] != "state"]
    return plan._replace(
        metadata={**plan.metadata, "warnings": notes},
        samples={
            name: plan.samples[name] if name in shared else plan.samples[name][:1]
            for name in plan.inputs
        },
    )


def check_close(model: Any, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that the logits of rows at different positions are those of whole texts.

    Raises
    ------
    ExportError
        If they differ by more than rounding errors.
    """
    limit = _ERROR if expected.dtype == torch.float32 else _COARSE_ERROR
    error = float((got - expected).float().norm() / expected.float().norm())
    if not error <= limit:
        raise ExportError(
            f"{type(model).__name__}: expected the logits of whole texts from a cache whose rows "
            f"are at positions of their own, within {limit:g}, got a relative error of {error:.2g}"
            "; its forward does not take the positions from position_ids and the mask alone"
        )
