"""Make a plan's choices by a database of measured times: ``export(tuned=)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.tuned_splits import TunedSplits
from taper_frontend.errors import ExportError
from taper_frontend.quantized_plan import has_samples
from taper_frontend.request.options import machine_of_export
from taper_runtime.base.errors import InputError, OptionError
from taper_runtime.executor.tuned_choice import TunedChoice
from taper_runtime.file.measurements import read_measurements
from taper_runtime.plan.replaceable import completed, stored_packed, without_packed
from taper_runtime.plan.rows import batch_of_states
from taper_runtime.session.tuned_formats import check_tuned, with_tuned_formats

if TYPE_CHECKING:
    from taper_frontend.request.options import Options
    from taper_runtime.file.measurements import Measurements
    from taper_runtime.plan.plan import Plan


def measurements_of(options: Options) -> Measurements:
    """Return the measured times of this machine.

    Raises
    ------
    ExportError
        If the database cannot be read.
    """
    assert options.tuned is not None
    try:
        return read_measurements(options.tuned, machine_of_export())
    except (OSError, InputError) as error:
        raise ExportError(f"tuned: {error}") from error


def tuned_splits(options: Options) -> TunedSplits:
    """Return the object that chooses by measured times how chains are split."""
    return TunedSplits(measurements_of(options), required=options.require_tuned)


def with_tuned_weights(plan: Plan, options: Options) -> Plan:
    """Return a plan with weights in the formats that were measured to be fastest.

    Parameters
    ----------
    plan : Plan
        With recipes of its packed weights.
    options : Options

    Raises
    ------
    ExportError
        If times are required and missing, or the results differ from those before by more than is
        allowed.
    """
    measured, other_bits = measurements_of(options), options.other_bits
    choice = TunedChoice(measured, other_bits=other_bits, required=options.require_tuned)
    plan = completed(plan)
    try:
        tuned = with_tuned_formats(plan, choice)
        if tuned.tensors != plan.tensors and has_samples(plan) and not batch_of_states(plan):
            check_tuned(plan, tuned, plan.samples, other_bits=other_bits)
    except (InputError, OptionError) as error:
        raise ExportError(str(error)) from error
    told = {**tuned.metadata.get("tuned", {}), "skipped": list(measured.skipped)}
    tuned = tuned._replace(metadata={**tuned.metadata, "tuned": told})
    return without_packed(tuned) if options.packs_at_open else stored_packed(tuned)
