"""Test the mutants of verification: one that an export never uses is an error, not a miss."""

import pytest

from tools.zoo.mutants import Mutant, outcome


@pytest.mark.parametrize("kind", ["handler", "rule"])
def test_a_mutant_that_is_never_used_is_an_error(kind):
    name = {"handler": "aten.erfinv.default", "rule": "of a name that no rule has"}[kind]
    with pytest.raises(ValueError, match=f"nn.LSTM: expected a use of {kind} '{name}'"):
        outcome(Mutant(kind, name, "scaled", "nn.LSTM"))
