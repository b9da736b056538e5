"""Show a trace as one self-contained page."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from typing import Any

from taper_runtime.base.decisions import Decision
from taper_runtime.base.text import counted
from taper_runtime.reports.pages.viewer import make_page

#: The files of the page's script in addition to the viewer's; each uses those before it.
_SCRIPTS = ("recording.js", "trace.js")


#: The characters of a call that a table shows; the JSON of a trace has more.
_COLUMN = 72


def trace_page(trace: dict[str, Any]) -> str:
    """Return the page about a trace: what :func:`.writing.tracing` writes as JSON."""
    lowered, final = _node_counts(trace)
    subtitle = (
        f"{counted(lowered, 'node')} as lowered, {final} after "
        f"{counted(len(trace['steps']), 'step')} of the compiler"
    )
    sections = [
        *(
            [{"kind": "warnings", "title": "Error", "items": [trace["error"]]}]
            * bool(trace["error"])
        ),
        *_program(trace),
        {"kind": "trace", "title": "Steps", **_recording(trace)},
        *_decisions(trace),
        *_node_ways(trace),
        _rules(trace),
        _passes(trace),
    ]
    folder = files("taper_frontend.compiler.trace")
    return make_page(
        trace["title"],
        subtitle,
        sections,
        script="\n".join(folder.joinpath(name).read_text("utf-8") for name in _SCRIPTS),
        style=folder.joinpath("trace.css").read_text("utf-8"),
    )


def _program(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a table of the calls that torch captured, and what decomposition made of each.

    A call that became several has a row for each of them. There is no table of a graph that was
    made by hand.
    """
    rows = []
    for number, call in enumerate(trace["program"]):
        became = [(_assignment(each), each["type"]) for each in call["became"]]
        if [each["call"] for each in call["became"]] == [call["call"]]:
            became = [("the same", call["type"])]
        nothing = [("nothing that a result needs", call["type"])]
        rows += [
            [number, _assignment(call), text, type_, call["source"]]
            for text, type_ in became or nothing
        ]
    columns = [{"name": "#", "kind": "number"}]
    names = ("as torch gave it", "decomposed into", "type", "source")
    columns += [{"name": name, "kind": "text"} for name in names]
    return [{"kind": "table", "title": "Program", "columns": columns, "rows": rows}] if rows else []


def _assignment(call: dict[str, str]) -> str:
    """Return a call with its result, cut to the width of a column."""
    text = f"{call['name']} = {call['call']}"
    return text if len(text) <= _COLUMN else f"{text[: _COLUMN - 1]}\u2026"


def _recording(trace: dict[str, Any]) -> dict[str, Any]:
    return {name: trace[name] for name in ("sources", "records", "lowered", "passes", "steps")}


def _node_counts(trace: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of nodes of the lowered graph and of the last one."""
    lowered = _nodes(trace, trace["lowered"]["tensors"])
    return lowered, lowered + sum(_growth(trace, step) for step in trace["steps"])


def _nodes(trace: dict[str, Any], tensors: dict[str, int]) -> int:
    records = (trace["records"][place] for place in tensors.values())
    return sum("op" in record and "part" not in record for record in records)


def _growth(trace: dict[str, Any], step: dict[str, Any]) -> int:
    return _nodes(trace, step["after"]) - _nodes(trace, step["before"])


def _decisions(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a table of what passes chose, and the candidates with their estimated times."""
    names = ("pass", "what", "tensor", "chosen", "candidates", "reason")
    rows = []
    for each in trace["decisions"]:
        told = Decision(**{name: each[name] for name in Decision._fields})
        row = (each["pass"], told.about, told.name, told.chosen, told.candidates(), told.reason)
        rows.append(list(row))
    columns = [{"name": name, "kind": "text"} for name in names]
    return [{"kind": "table", "title": "Choices", "columns": columns, "rows": rows}] if rows else []


def _node_ways(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a table of the ways to compute each node, with their times."""
    rows = []
    for each in trace["nodes"]:
        more = len(each["nodes"]) - 1
        name = each["nodes"][0] + (f" and {more} more" if more else "")
        for place, way in enumerate(each["ways"]):
            way_name = way["name"] if place else f"{way['name']} (default)"
            rows.append([name, way_name, way["estimated_ns"], way["measured_ns"]])
    columns = [{"name": name, "kind": "text"} for name in ("node", "way")]
    columns += [{"name": name, "kind": "number"} for name in ("estimated ns", "measured ns")]
    table = {"kind": "table", "title": "Ways to compute nodes", "columns": columns, "rows": rows}
    return [table] if rows else []


def _rules(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a table of the rules of each pass: how often they fired, and the first step."""
    fired: Counter[tuple[str, str]] = Counter()
    growth: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for run in trace["passes"]:
        for number in range(*run["steps"]):
            step = trace["steps"][number]
            key = step["rule"], run["name"]
            fired[key] += 1
            growth[key] += _growth(trace, step)
            first.setdefault(key, number + 1)
    columns = [
        {"name": "rule", "kind": "text"},
        {"name": "pass", "kind": "text"},
        {"name": "fired", "kind": "number"},
        {"name": "nodes more or fewer", "kind": "number"},
        {"name": "first at step", "kind": "step"},
    ]
    rows = [[*key, count, growth[key], first[key]] for key, count in fired.most_common()]
    return {"kind": "table", "title": "Rules", "columns": columns, "rows": rows}


def _passes(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a table of the passes that ran, including those that changed nothing."""
    columns = [
        {"name": "stage", "kind": "text"},
        {"name": "pass", "kind": "text"},
        {"name": "steps", "kind": "number"},
        {"name": "nodes after it", "kind": "number"},
        {"name": "last step", "kind": "step"},
    ]
    rows = [
        [
            run["stage"],
            run["name"],
            run["steps"][1] - run["steps"][0],
            run["nodes"],
            run["steps"][1],
        ]
        for run in trace["passes"]
    ]
    return {"kind": "table", "title": "Passes", "columns": columns, "rows": rows}
