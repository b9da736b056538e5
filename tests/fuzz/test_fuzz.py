"""The fuzzer's own parts, for a moment: seeds, and what becomes of each a few times changed."""

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.fuzz.mutation import STRANGE, mutate
from tests.fuzz.seeds import seeds
from tests.fuzz.target import check


@pytest.fixture(scope="module")
def files():
    return list(seeds())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_seeds_run(files):
    assert {check(blob) for blob in files} == {"ran"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_files_are_refused_or_run(files):
    rng = random.Random(0)
    results = Counter()
    for blob in files:
        try:
            changed = mutate(blob, rng, files)
        except STRANGE:
            continue
        results[check(changed)] += 1
    assert results["refused"] > 50
    assert results["ran"] > 50


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_files_that_the_fuzzer_kept():
    """One for each way in which a file was refused in a long run of the fuzzer."""
    files = list((Path(__file__).parent / "corpus").iterdir())
    assert len(files) > 50
    for path in files:
        check(path.read_bytes())
