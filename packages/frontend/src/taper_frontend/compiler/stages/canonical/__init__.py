"""Rewrite what can be written in several ways to one form."""
