"""Measure Taper: beside its peers, without its parts, as work grows."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))  # models
