"""Move permutations and reshapes to where they cost least."""
