"""Replace groups of nodes by the single ops that they compute."""
