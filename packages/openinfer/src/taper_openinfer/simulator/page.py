"""Show recorded steps as one self-contained page, to step through node by node."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from taper_runtime.base.text import counted
from taper_runtime.reports.pages.viewer import make_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_openinfer.simulator.events import TraceEvent
    from taper_openinfer.simulator.recording import Recorder


def run_page(
    title: str, facts: Sequence[Sequence[str]], recorder: Recorder, events: Sequence[TraceEvent]
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    title : str
    facts : sequence of (str, str)
        Names and values about the program, the model and the device.
    recorder : Recorder
    events : sequence of TraceEvent
        The events of the same steps, timed.
    """
    data = recorder.data()
    steps = max((step["step"] for step in data["steps"]), default=0)
    nodes = sum(bool(step["block"]) for step in data["steps"])
    sections: list[dict[str, Any]] = [
        {"kind": "facts", "title": "Program", "rows": [list(row) for row in facts]},
        {"kind": "run", "title": "Steps", **data},
        _times(events),
    ]
    if recorder.is_cut:
        items = [f"The page has the first {nodes} nodes only; the program ran on."]
        sections.insert(0, {"kind": "warnings", "title": "Cut", "items": items})
    folder = files("taper_openinfer.simulator")
    return make_page(
        title,
        f"{counted(steps, 'step')}, {counted(nodes, 'node')}",
        sections,
        script=folder.joinpath("run.js").read_text("utf-8"),
        style=folder.joinpath("run.css").read_text("utf-8"),
    )


def _times(events: Sequence[TraceEvent]) -> dict[str, Any]:
    """Return a table of the nodes: the number of runs, and the time of their ops."""
    runs: Counter[str] = Counter()
    times: Counter[str] = Counter()
    found: dict[str, TraceEvent] = {}
    for event in events:
        runs[event.node_uuid] += 1
        times[event.node_uuid] += event.duration_ns
        found.setdefault(event.node_uuid, event)
    rows = [
        [found[uuid].node_index, found[uuid].block_name, found[uuid].node_desc, runs[uuid],
         round(times[uuid] / 1000, 1)]
        for uuid in sorted(found, key=lambda uuid: -times[uuid])
    ]  # fmt: skip
    columns = [
        {"name": "node", "kind": "number"},
        {"name": "block", "kind": "text"},
        {"name": "what it does", "kind": "text"},
        {"name": "runs", "kind": "number"},
        {"name": "microseconds in all", "kind": "number"},
    ]
    return {"kind": "table", "title": "Nodes", "columns": columns, "rows": rows}
