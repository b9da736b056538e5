"""Write a trace to a page or to JSON."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.trace.recorder import TraceRecorder
from taper_frontend.errors import ExportError
from taper_runtime.base.errors import InputError
from taper_runtime.file.mapping import check_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from taper_frontend.compiler.graph.graph import Graph

#: The environment variable with the path of traces, for exports without an explicit path.
VARIABLE = "TAPER_TRACE"

#: Counts the exports of this process that are traced because of :data:`VARIABLE`.
_numbers = count(1)


def trace_path(given: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of the trace of one export; None if it is not traced.

    If no path is ``given``, the first export of the process uses the path in ``TAPER_TRACE``, and
    later ones add ``-2``, ``-3`` before the suffix.

    Raises
    ------
    ExportError
        If the path cannot be written, or the suffix is neither ``.html`` nor ``.json``.
    """
    if given is not None:
        return _checked("trace", Path(given))
    if not (named := os.environ.get(VARIABLE)):
        return None
    path = _checked(VARIABLE, Path(named))
    number = next(_numbers)
    return path if number == 1 else path.with_stem(f"{path.stem}-{number}")


def _checked(what: str, path: Path) -> Path:
    if path.suffix not in (".html", ".json"):
        raise ExportError(f"{what}: expected a path that ends in .html or .json, got {str(path)!r}")
    try:
        check_path(path)
    except InputError as error:
        raise ExportError(f"{what}: {error}") from None
    if not path.parent.is_dir():
        raise ExportError(f"{what}: no directory {str(path.parent)!r} to write {path.name!r} to")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ExportError(f"{what}: {str(path)!r} cannot be written")
    return path


def tracing(
    graph: Graph,
    path: str | os.PathLike[str] | None,
    title: str = "graph",
    program: Callable[[], list[dict[str, Any]]] = list,
) -> AbstractContextManager[dict[str, Any]]:
    """Record the changes of ``graph`` in the context, and write them at its end.

    After an exception the changes before it are written, too, with the exception's text. The
    context's value is the trace, which is empty until it is written.

    Parameters
    ----------
    graph : Graph
        The lowered graph.
    path : str or os.PathLike, optional
        ``.html`` for a page; ``.json`` for the data of :meth:`TraceRecorder.data` with ``title``,
        after an exception ``error``, and ``nodes``, which is empty: see
        :func:`.node_ways.node_ways`. None records nothing.
    title : str
        The title of the graph.
    program : callable
        Returns the calls that the graph was lowered from, as plain data: ``name``, ``call``,
        ``type``, ``source`` and ``became``, the calls that replaced each. It is called where there
        is a trace.

    Raises
    ------
    ExportError
        If the path cannot be written.
    """
    if path is None:
        return nullcontext({})
    return _tracing(graph, _checked("trace", Path(path)), title, program())


@contextmanager
def _tracing(
    graph: Graph, path: Path, title: str, program: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Record and write; see :func:`tracing`."""
    listener = graph.listener
    recorder = TraceRecorder(graph)
    trace: dict[str, Any] = {}
    error = ""
    try:
        yield trace
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        graph.listener = listener
        trace |= {"title": title, "error": error, "program": program, **recorder.data()}
        trace["nodes"] = []
        write_trace(trace, path)


def write_trace(trace: dict[str, Any], path: Path) -> None:
    """Write a recording with its title and error, as a page or as JSON by its suffix."""
    if path.suffix == ".json":
        text = json.dumps(trace, allow_nan=False, separators=(",", ":"))
    else:
        from taper_frontend.compiler.trace.trace_page import trace_page

        text = trace_page(trace)
    path.write_text(text, encoding="utf-8")
