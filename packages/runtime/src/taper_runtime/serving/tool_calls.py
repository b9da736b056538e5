"""Find the function calls that a model writes into its text.

Models whose templates describe tools are trained to write each call as
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen, SmolLM and others). What
another model writes stays text.
"""

from __future__ import annotations

import json

from taper_runtime.base.checks import parse_object
from taper_runtime.base.records import NamedTuple
from taper_runtime.text.piece_decoder import begun

_BEGIN, _END = "<tool_call>", "</tool_call>"


class ToolCall(NamedTuple):
    """A call that a model asks for: a function's name, and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallReader:
    """Separates calls from the other text, while the text comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> tuple[str, list[ToolCall]]:
        """Add a piece; return the text outside of calls, and complete calls; hold the rest."""
        self._held += piece
        text, calls = "", list[ToolCall]()
        while True:
            before, mark, rest = self._held.partition(_BEGIN)
            if not mark:
                kept = len(self._held) - begun(self._held, _BEGIN)
                text, self._held = text + self._held[:kept], self._held[kept:]
                return text, calls
            text += before
            inside, end, after = rest.partition(_END)
            if not end:
                self._held = mark + rest
                return text, calls
            call = _parse(inside)
            if call is None:
                text += mark + inside + end
            else:
                calls.append(call)
            self._held = after

    def finish(self) -> str:
        """Return the held text after the last piece; a call without an end is text."""
        text, self._held = self._held, ""
        return text


def _parse(text: str) -> ToolCall | None:
    found = parse_object(text)
    if found is None or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))
