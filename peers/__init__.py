"""Taper measured: beside its peers, without its parts, as work grows: `python -m peers.compare`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # models
