"""Test the judge of PyTorch's samples, which `nox -s opinfo` runs over all ops."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tools.opinfo.judge import RIGHT, cases_of, judge


@pytest.mark.parametrize("name", ["abs", "add", "cumsum"])
def test_samples_that_are_right_are_judged_so(name):
    op = next(op for op in op_db if op.full_name == name)
    cases = cases_of(op, torch.float32, 3)
    assert cases
    verdicts = judge(cases, torch.float32)
    assert [verdict.verdict for verdict in verdicts] == [RIGHT] * len(cases), verdicts
