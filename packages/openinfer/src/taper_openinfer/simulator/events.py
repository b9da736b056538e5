"""Record a traced step's nodes as objects, JSON, printed lines, and a Perfetto trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


class TraceEvent(NamedTuple):
    """A node that ran.

    Attributes
    ----------
    block_name : str
    node_index : int
    node_uuid : str
    kind : str
        ``"OpExecute"``, else the kind of the node: ``"Assign"``, ``"CacheRead"``, ...
    params : list of str
        The operands of an op in the spelling of the program, with the values of loop variables:
        ``"W[l=3]"``.
    output : list of str
        The accesses that the op wrote.
    micros_parts : tuple of int
        An op's time in milliseconds, microseconds and nanoseconds; zeros without a timer.
    node_desc : str
        The node in the spelling of the program.
    op_name : str
        The op's name; empty if the node is not an op.
    start_ns : int
        The timer's value in nanoseconds when the node began; 0 without a timer.
    """

    block_name: str
    node_index: int
    node_uuid: str
    kind: str
    params: list[str]
    output: list[str]
    micros_parts: tuple[int, int, int]
    node_desc: str
    op_name: str
    start_ns: int = 0

    @property
    def micros(self) -> str:
        """Return the time as a text: ``"0ms 31us 788ns"``; empty without a timer."""
        if not any(self.micros_parts):
            return ""
        return "{}ms {}us {}ns".format(*self.micros_parts)

    @property
    def duration_ns(self) -> int:
        """Return the time in nanoseconds."""
        ms, us, ns = self.micros_parts
        return (ms * 1000 + us) * 1000 + ns

    def line(self) -> str:
        """Return the line that a traced step prints; safe for a terminal."""
        text = f"{self.node_index} {self.node_uuid} [{self.block_name}] -- {self.node_desc}"
        return printable(f"{text} -- ({self.micros})" if self.micros else text)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON form, in order."""
        return {
            "block_name": self.block_name,
            "node_index": self.node_index,
            "node_uuid": self.node_uuid,
            "kind": self.kind,
            "params": self.params,
            "output": self.output,
            "micros": list(self.micros_parts),
        }


def parts_of(nanoseconds: int) -> tuple[int, int, int]:
    """Split a duration into milliseconds, microseconds and nanoseconds."""
    microseconds, ns = divmod(nanoseconds, 1000)
    return (*divmod(microseconds, 1000), ns)


def to_json(events: Iterable[TraceEvent]) -> str:
    """Return events as JSON, indented by two spaces."""
    return json.dumps([event.as_dict() for event in events], indent=2)


def to_perfetto(events: Iterable[TraceEvent]) -> str:
    """Return a trace that Perfetto and chrome://tracing open; blocks appear as threads.

    Without a timer each node takes one microsecond; with a timer only ops take time.
    """
    events = list(events)
    first = min((event.start_ns for event in events), default=0)
    threads: dict[str, int] = {}
    spans = []
    for number, event in enumerate(events):
        thread = threads.setdefault(event.block_name, len(threads) + 1)
        is_timed = event.start_ns > 0
        span = {
            "name": event.node_desc,
            "cat": event.kind,
            "ph": "X",
            "ts": (event.start_ns - first) / 1000 if is_timed else float(number),
            "dur": event.duration_ns / 1000 if is_timed else 1.0,
            "pid": 1,
            "tid": thread,
            "args": {"node": event.node_index, "uuid": event.node_uuid, "kind": event.kind},
        }
        spans.append(span)
    names = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": block}}
        for block, thread in threads.items()
    ]
    return json.dumps({"traceEvents": [*names, *spans], "displayTimeUnit": "ns"})
