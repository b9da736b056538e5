"""Permutations and reshapes stand where they cost least."""
