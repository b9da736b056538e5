"""Groups of nodes become the one op that they compute."""
