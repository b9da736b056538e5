"""A few seconds of the soak: no answer is wrong."""

import sys

import pytest

from tests.soak.jobs import jobs
from tests.soak.measure import Histogram, soak


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_answer_is_wrong(tmp_path):
    result = soak(jobs(tmp_path), 3, threads=8)
    assert not result.errors, result.errors
    assert all(sum(times.counts) > 0 for times in result.times.values())


def test_percentiles():
    times = Histogram()
    for milliseconds in range(1, 101):
        times.add(milliseconds / 1e3)
    for share in (0.5, 0.95, 0.99):
        assert times.percentile(share) == pytest.approx(share / 10, rel=0.05)
