"""Describe plans and runs for people: reports, profiles and pages."""
