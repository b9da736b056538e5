"""Register passes of your own by name; torch is not needed.

>>> from taper_frontend.passes import register_pass
>>> register_pass("drop_dropouts", drop_dropouts, before="recognition")

The logger ``taper_frontend.passes`` logs each pass that runs: at level INFO whether it changed
anything, and the difference in nodes; at level DEBUG the graph before all passes, and after each
pass that changed it.
"""

from __future__ import annotations

from taper_frontend.compiler.from_plan import run_passes, to_graph
from taper_frontend.compiler.pass_registry import (
    default_pipeline,
    pass_names,
    register_pass,
    unregister_pass,
)

__all__ = [
    "default_pipeline",
    "pass_names",
    "register_pass",
    "run_passes",
    "to_graph",
    "unregister_pass",
]
