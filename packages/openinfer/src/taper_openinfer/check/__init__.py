"""Check a whole program before anything runs."""
