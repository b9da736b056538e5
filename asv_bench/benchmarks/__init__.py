"""Benchmarks across commits: `nox -s bench -- continuous HEAD~1 HEAD`."""
