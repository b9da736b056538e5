"""Tell what torch captured, and what decomposition made of each call, as plain data for a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from taper_frontend.capture.fx_nodes import CAPTURED, ORIGIN, origin, source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MAX_TEXT = 200  # characters of a call: a list of sizes may have any length


def describe_program(program: ExportedProgram) -> list[dict[str, Any]]:
    """Return the calls of a captured program in order, each with those that replaced it.

    Parameters
    ----------
    program : ExportedProgram
        What :func:`taper_frontend.capture.capture` returns.

    Returns
    -------
    list of dict
        ``name``, ``call`` and ``type`` of each call, and its ``source`` line. ``became`` has the
        same of the calls that decomposition put in its place: it alone if it stayed, none if
        nothing needs it.
    """
    captured = program.graph_module.meta[CAPTURED]
    became: dict[str, list[dict[str, str]]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            known = ORIGIN in node.meta
            name = origin(node).name if known else captured.name(node.name) or node.name
            became.setdefault(name, []).append(_describe(node))
    return [
        {**_describe(node), "source": source_of(node), "became": became.get(node.name, [])}
        for node in captured.graph.nodes
        if node.op == "call_function"
    ]


def _describe(node: Node) -> dict[str, str]:
    given = [_text(arg) for arg in node.args]
    given += [f"{name}={_text(arg)}" for name, arg in node.kwargs.items()]
    target = str(node._pretty_print_target(node.target)).removeprefix("torch.ops.")
    call = f"{target}({', '.join(given)})"
    return {"name": node.name, "call": _cut(call), "type": _cut(_type(node.meta.get("val")))}


def _text(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return ", ".join(map(_type, value))
    return "" if value is None else type(value).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
