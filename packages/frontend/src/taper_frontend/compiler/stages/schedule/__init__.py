"""Decide which nodes are computed together, and in which parts."""
