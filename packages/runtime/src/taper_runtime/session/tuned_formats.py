"""Store weights of a plan in the formats that were measured to be fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.decisions import Decision, read_decisions
from taper_runtime.base.errors import InputError
from taper_runtime.executor.packing import packed_for_machine
from taper_runtime.extend.providers import Dispatch
from taper_runtime.plan.compare import describe, difference, tolerance
from taper_runtime.plan.replaceable import completed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taper_runtime.executor.tuned_choice import TunedChoice
    from taper_runtime.plan.plan import Plan


def with_tuned_formats(plan: Plan, choice: TunedChoice) -> Plan:
    """Return a plan whose packed weights have the formats that were measured to be fastest.

    Parameters
    ----------
    plan : Plan
        With recipes of its packed weights, as ``export(packing="at_open")`` makes them; packed
        weights without one keep their formats.
    choice : TunedChoice
        Its ``other_bits`` says whether results may have other bits.

    Returns
    -------
    Plan
        With all its constants. The decisions in its metadata tell the changed formats.

    Raises
    ------
    OptionError
        If times are required and missing.
    """
    dispatch = Dispatch(isa=choice.measurements.machine.isa, choice=choice)
    tuned = completed(packed_for_machine(plan, dispatch, other_bits=choice.other_bits))
    changed = {
        name: spec.format
        for name, spec in tuned.tensors.items()
        if spec.format != plan.tensors[name].format
    }
    if not changed:
        return tuned
    known = {(each.about, each.name): each for each in read_decisions(plan.metadata)}
    for name, format in changed.items():
        among = dict.fromkeys((plan.tensors[name].format, format))
        known["format", name] = Decision("format", name, format, among, "measured times")
    decisions = [each.data() for each in known.values()]
    return tuned._replace(metadata={**plan.metadata, "decisions": decisions})


def check_tuned(
    plan: Plan, tuned: Plan, feed: Mapping[str, np.ndarray], *, other_bits: bool
) -> None:
    """Check that a tuned plan has the results of the plan that it was made from.

    Parameters
    ----------
    plan, tuned : Plan
    feed : mapping of str to numpy.ndarray
        The inputs.
    other_bits : bool
        Whether results may differ by rounding errors; else they must have the same bits.

    Raises
    ------
    InputError
        If a result differs.
    """
    from taper_runtime.session.inference_session import InferenceSession
    from taper_runtime.session.options import SessionOptions

    options = SessionOptions()
    options.bfloat16 = "bits"
    before, after = (InferenceSession(each, options).run(None, feed) for each in (plan, tuned))
    limit = tolerance(plan.tensors.values())
    for name, one, other in zip(plan.outputs, before, after, strict=True):
        same = one.tobytes() == other.tobytes()
        if not same and not (other_bits and difference(other, one).relative <= limit):
            raise InputError(
                f"output {name!r} of the tuned plan: expected "
                f"{'rounding errors' if other_bits else 'the same bits'}, got "
                f"{describe(other, one, limit)}"
            )
