"""Move permutations and reshapes to places where they cost least."""
