"""Test the fuzzer's own parts, for a moment: seeds, and files that are changed a few times."""

import random
from collections import Counter
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.fuzz.targets import find

#: How often a seed is changed here: plans take longer, and there are more of them. Checking these
#: loads them, as the target "loader" does.
TIMES = {"plans": 1, "oinf": 40, "programs": 100, "checkpoints": 40}

#: Of so many seeds one runs here; `nox -s fuzz` begins with all.
STEPS = {"plans": 4}

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.parametrize("name", TIMES),
]


@cache
def files(name):
    return list(find(name).seeds())


def test_seeds_run(name):
    chosen = files(name)[:: STEPS.get(name, 1)]
    assert {find(name).check(blob) for blob in chosen} == {"ran"}


def test_changed_files_are_refused_or_run(name):
    target, rng = find(name), random.Random(0)
    results = Counter()
    for blob in files(name) * TIMES[name]:
        try:
            changed = target.mutate(blob, rng, files(name))
        except target.strange:
            continue
        results[target.check(changed)] += 1
    assert results["refused"] > 50
    assert results["ran"] > 50


def test_files_that_the_fuzzer_kept(name):
    """One for each way in which a file was refused in a long run of the fuzzer."""
    with ZipFile(Path(__file__).parent / "corpus" / f"{name}.zip") as kept:
        assert len(kept.namelist()) > 50
        for file in kept.namelist():
            find(name).check(kept.read(file))
