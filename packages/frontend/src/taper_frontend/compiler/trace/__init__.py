"""Record every rule that fired on a graph, with the nodes before and after it.

>>> with tracing(graph, "trace.html"):
...     run_pipeline(graph, PIPELINE)
"""

from __future__ import annotations

from taper_frontend.compiler.trace.recorder import TraceRecorder
from taper_frontend.compiler.trace.writing import VARIABLE, trace_path, tracing, write_trace

__all__ = ["VARIABLE", "TraceRecorder", "trace_path", "tracing", "write_trace"]
