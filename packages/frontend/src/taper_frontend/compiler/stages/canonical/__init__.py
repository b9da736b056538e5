"""Rewrite graphs to canonical form: one spelling for each computation."""
