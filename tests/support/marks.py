"""Marks for tests of models that warn at export of what the test is not about."""

import pytest

#: Which nodes numpy computes is not what the test is about.
NUMPY = pytest.mark.filterwarnings(
    r"ignore:\d+ nodes? (is|are) without a native kernel:taper_frontend.ExportWarning"
)

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
