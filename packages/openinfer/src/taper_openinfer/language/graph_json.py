"""Write programs as OpenInfer's JSON, in the spelling of its first, middle or later era.

All eras hold the same graphs. In the first era an op is ``"Add"``, its attrs have a kind of their
own (``"None"``, ``{"Relu": {...}}``), and fields of a variable that are not set are left out. From
the middle era on, every field of a variable is written. In the later era an op is ``"add"``, and
attrs are a list of names and values.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, get_args

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import OpenInferError, check_choice, check_kind, shown
from taper_openinfer.language import graph as g
from taper_openinfer.language.json_reader import FIRST_SETTINGS, from_first_era, graph_from_json

__all__ = ["Era", "graph_from_json", "graph_to_json"]

Era = Literal["first", "middle", "later"]


def graph_to_json(graph: g.Graph, era: Era = "later") -> str:
    """Return a graph as OpenInfer's JSON: keys sorted, indented by two, no final line break.

    Parameters
    ----------
    graph : Graph
    era : {"later", "middle", "first"}
        The first and the middle era have only the settings of ``relu``, and write an entry of a
        prefix table that is an operand as its text.

    Raises
    ------
    OpenInferError
        If it is no graph, there is no such era, or the era cannot hold a setting.
    """
    check_kind("graph", graph, g.Graph)
    check_choice("era", era, get_args(Era))
    document = {
        "blocks": {
            name: {"name": name, "nodes": [_node(node, era) for node in block.nodes]}
            for name, block in graph.blocks.items()
        },
        "next_index": graph.next_index,
        "vars": {name: _variable(variable, era) for name, variable in graph.vars.items()},
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _variable(variable: g.Variable, era: Era) -> dict[str, Any]:
    """Return the fields of a variable; the first era leaves out those that are not set."""
    written = {
        "name": variable.name,
        "kind": variable.kind.capitalize(),
        "dtype": _json_dtype(variable.dtype),
        "dims": list(variable.dims),
        "init": _init(variable),
    }
    others = {
        "ref_name": variable.ref_name,
        "pattern": variable.pattern,
        "table_indices": list(variable.table_indices),
        "table": variable.table,
        "auto_dim": list(variable.auto_dim),
        "fixed": [list(limit) for limit in variable.fixed.items()],
    }
    unsaid: tuple[Any, ...] = (None, [], False)
    return written | {
        key: value for key, value in others.items() if era != "first" or value not in unsaid
    }


def _json_dtype(name: str) -> str:
    if name not in DTYPES:
        raise OpenInferError(f"expected an element type, got {shown(name)}")
    return DTYPES[name].json_name


def _init(variable: g.Variable) -> dict[str, Any] | None:
    """Return an initial value as an object whose key is the element type."""
    if variable.init is None:
        return None
    is_float = DTYPES[variable.dtype].kind == "float" and type(variable.init) is int
    value: Any = variable.init
    if is_float and float(value) == value:  # an integer of more digits stays an integer
        value = float(value)
    if type(value) is float and not math.isfinite(value):
        raise OpenInferError(
            f"{shown(variable.name)}: expected an init that JSON can represent, got {value}"
        )
    return {_json_dtype(variable.dtype): value}


def _node(node: g.Node, era: Era) -> dict[str, Any]:
    return {"index": node.index, "kind": _kind(node.kind, era), "uuid": node.uuid}


def _kind(kind: g.NodeKind, era: Era) -> Any:
    """Return a node's kind as JSON: its name, or an object of its name and its fields.

    Fields have the names of OpenInfer's own enum. Bounds of loops are texts; indices of caches are
    ``{"Single": value}`` or ``{"Slice": {"start": value, "end": value}}``.
    """
    name = type(kind).__name__
    fields: dict[str, Any]
    match kind:
        case g.Return() | g.Barrier():
            return name
        case g.Assign():
            fields = {
                "name": kind.name,
                "dtype": _json_dtype(kind.dtype),
                "dims": list(kind.dims),
            }
        case g.Op():
            fields = {
                "op": kind.op if era == "later" else _first_op(kind.op),
                "attrs": _later_attrs(kind) if era == "later" else _first_attrs(kind),
                "inputs": [str(access) for access in kind.inputs],
                "output": str(kind.output),
            }
        case g.CacheRead():
            fields = {"src": _access(kind.src), "dst": str(kind.dst)}
        case g.CacheWrite():
            fields = {"src": str(kind.src), "dst": _access(kind.dst)}
        case g.CacheIncrement() | g.CacheDecrement():
            fields = {"target": kind.target, "amount": kind.amount}
        case g.CacheReset():
            fields = {"target": _access(kind.target)}
        case g.Loop():
            fields = {
                "name": kind.name,
                "index": kind.index,
                "start": str(kind.start),
                "end": str(kind.end),
                "body": [_node(node, era) for node in kind.body],
            }
        case g.Branch():
            fields = {
                "cond": kind.condition,
                "then_block": kind.then,
                "else_block": kind.otherwise,
            }
        case g.Dep():
            fields = {"after": kind.after, "before": kind.before}
        case g.Transfer():
            fields = {"src": str(kind.src), "dst": str(kind.dst)}
        case g.Yield() | g.Await():
            fields = {"vars": list(kind.names)}
    return {name: fields}


def _access(access: g.Access) -> dict[str, Any]:
    return {
        "base": access.base,
        "bracketed": access.bracketed,
        "indices": [_index(index) for index in access.indices],
    }


def _index(index: g.Index) -> dict[str, Any]:
    if isinstance(index, g.Single):
        return {"Single": _value(index.value)}
    return {"Slice": {"start": _value(index.start), "end": _value(index.end)}}


def _value(value: g.Value | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"Lit": value} if isinstance(value, int) else {"Ident": value}


def _first_op(op: str) -> str:
    """Return the first era's name of an op: ``"IsFinite"`` for ``"is_finite"``."""
    name = op if "." in op else "".join(word.capitalize() for word in op.split("_"))
    if from_first_era(name) != op:
        raise OpenInferError(
            f"op {shown(op)}: OpenInfer's earlier era has no name for it; write era 'later'"
        )
    return name


def _first_attrs(kind: g.Op) -> Any:
    """Return the first era's attrs of an op; raise OpenInferError if it has no such setting."""
    if not kind.settings:
        return "None"
    spelled = {setting: name for name, setting in FIRST_SETTINGS.get(kind.op, {}).items()}
    spelled |= {name: name for name in spelled.values()}
    attrs: dict[str, Any] = {}
    for name, value in kind.settings.items():
        if name not in spelled or isinstance(value, (bool, tuple)):
            raise OpenInferError(
                f"op {shown(kind.op)}: OpenInfer's earlier era has no such setting {shown(name)}; "
                "write era 'later'"
            )
        if isinstance(value, str):
            attrs[spelled[name]] = {"Var": value}
        else:
            attrs[spelled[name]] = {"Literal": _settings_number(value)}
    return {_first_op(kind.op): attrs}


def _later_attrs(kind: g.Op) -> dict[str, Any]:
    return {
        "items": [{"name": name, "value": _setting(value)} for name, value in kind.settings.items()]
    }


def _setting(value: g.Setting) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"Bool": value}
    if isinstance(value, int):
        return {"Int": value} if value < 1 << 63 else {"UInt": value}
    if isinstance(value, float):
        return {"Double": _settings_number(value)}
    if isinstance(value, tuple):
        return {"IntList": [str(item) if isinstance(item, str) else item for item in value]}
    if not isinstance(value, g.Name):
        return {"Str": value}
    return {"DType": DTYPES[value].json_name} if value in DTYPES else {"Var": str(value)}


def _settings_number(value: Any) -> Any:
    """Return a number as JSON; infinities, which JSON lacks, are written as texts."""
    return str(value) if type(value) is float and math.isinf(value) else value
