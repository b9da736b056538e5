"""Executors: a plan prepared for running."""
