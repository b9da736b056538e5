"""Benchmarks across commits: `nox -s bench -- continuous HEAD~1 HEAD`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))  # models
