"""A moment of `nox -s kernel_fuzz`: a few nodes for every kernel of every ISA level."""

import numpy as np
import pytest

from taper_runtime.native import _kernels
from tests.fuzz.kernels import bits, examine, rows

#: Seeds for each row of tensors that hold data, and of those whose shapes are only looked at. More
#: are tried for a row that none of them reaches.
SEEDS, HUGE_SEEDS, MOST = range(2), range(1), 400

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_every_kernel_computes_what_its_op_says(isa):
    missed = []
    for row in [row for row in rows() if row.isa == isa]:
        reached = [examine(row, seed) for seed in SEEDS]
        more = (examine(row, seed) for seed in range(len(SEEDS), MOST))
        if "compared" not in reached and "compared" not in more:
            missed.append(row.name)
    assert not missed


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_no_kernel_stumbles_over_shapes(isa):
    """Dims of up to 2**46: most are refused or prepared alone; those of empty tensors run."""
    outcomes = {examine(row, s, huge=True) for row in rows() if row.isa == isa for s in HUGE_SEEDS}
    assert {"prepared", "ran"} <= outcomes


def test_bits_tell_zeros_apart_but_not_nans():
    nan = np.array([np.nan, 1], np.float32)
    assert bits(nan) == bits(np.negative(nan) * np.array([1, -1], np.float32))
    assert bits(np.array([0.0])) != bits(np.array([-0.0]))
