"""Test the judge of PyTorch's samples, which `nox -s opinfo` runs over all ops."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tools.opinfo.doubts import is_nearer, is_rounded
from tools.opinfo.judge import RIGHT, cases_of, judge


@pytest.mark.parametrize("name", ["abs", "add", "cumsum"])
def test_samples_that_are_right_are_judged_so(name):
    op = next(op for op in op_db if op.full_name == name)
    cases = cases_of(op, torch.float32, 3)
    assert cases
    verdicts = judge(cases, torch.float32)
    assert [verdict.verdict for verdict in verdicts] == [RIGHT] * len(cases), verdicts


def test_a_result_of_another_shape_is_not_nearer():
    """The data decide the shapes of some results, such as those of ``unique``."""
    ours, theirs, exact = torch.zeros(2), torch.ones(2), torch.zeros(10)
    assert not is_nearer([ours], [theirs], [exact])
    assert not is_rounded([ours], [exact])


def test_numbers_among_the_results_shift_none_of_them():
    """``item`` gives a number, which a plan would give beside the other calls' tensors."""
    ops = [next(op for op in op_db if op.name == name) for name in ("item", "add")]
    cases = [case for op in ops for case in cases_of(op, torch.int64, 4)]
    assert [verdict[0] for verdict in judge(cases, torch.int64)] == [RIGHT] * len(cases)
