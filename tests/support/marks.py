"""Marks of tests: those that another session runs, and those whose models warn at export."""

import itertools

import pytest

#: The session `references` runs it, not `tests`: it judges more models or samples of a kind that
#: `tests` has one of.
REFERENCE = pytest.mark.reference


def some(cases, more):
    """Return parameters of a test: all cases, with those in `more` left to `references`."""
    unknown = {*more} - {*cases}
    assert not unknown, unknown
    rows = {case: case if isinstance(case, tuple) else (case,) for case in cases}
    marks = {True: REFERENCE, False: ()}
    return [pytest.param(*row, marks=marks[case in more]) for case, row in rows.items()]


def thinned(share, *axes):
    """Return all combinations of values; `tests` runs one of `share`, `references` the others.

    Where another axis has `share` values or more, each value stays in `tests`.
    """
    places = itertools.product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(*values, marks=REFERENCE if sum(place) % share else ())
        for place, values in zip(places, itertools.product(*axes), strict=True)
    ]


#: Which nodes numpy computes is not what the test is about.
NUMPY = pytest.mark.filterwarnings(
    r"ignore:\d+ nodes? (is|are) without a native kernel:taper_frontend.ExportWarning"
)

#: Values that depend only on weights are larger than these.
LARGER = pytest.mark.filterwarnings("ignore:the plan's weights take:taper_frontend.ExportWarning")

#: The model keeps state on purpose.
STATE = pytest.mark.filterwarnings("ignore:the module writes to:taper_frontend.ExportWarning")

#: Arguments that are no tensors are given on purpose.
ARGUMENTS = pytest.mark.filterwarnings(
    r"ignore:\d+ arguments? (is|are) not a tensor:taper_frontend.ExportWarning"
)

#: Models that take no size of 1, or not all that torch takes for cases of their own.
NARROWED = pytest.mark.filterwarnings(
    "ignore:dimension .* varies only from:taper_frontend.ExportWarning"
)
