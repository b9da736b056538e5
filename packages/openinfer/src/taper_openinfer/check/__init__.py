"""Checks of a whole program before anything runs."""
