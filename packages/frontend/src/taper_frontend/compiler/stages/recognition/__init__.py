"""Replace groups of nodes by the one op that they compute."""
