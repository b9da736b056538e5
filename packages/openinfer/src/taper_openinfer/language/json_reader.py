"""Read graphs from OpenInfer's JSON of any era; :mod:`.graph_json` writes it."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from taper_openinfer.dtypes import BY_JSON_NAME, DTYPES
from taper_openinfer.errors import OpenInferError, Problem, ProgramError, shown
from taper_openinfer.language import graph as g
from taper_openinfer.language.lexer import MAX_JSON, check_text
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

#: The most characters of the path to a field in a message.
_MAX_WHERE = 160

#: Memory kinds as JSON spells them.
_MEMORY = {kind.capitalize(): kind for kind in g.MEMORY}

#: The first era's spelling of its settings, by op.
FIRST_SETTINGS = {"relu": {"negative_slope": "alpha", "clamp_max": "clamp_max"}}


def graph_from_json(text: str, name: str = "<program>") -> g.Graph:
    """Return the graph in a JSON text of any era.

    Missing optional fields have their defaults.

    Raises
    ------
    ProgramError
        If the text is too long, or a field is unknown, missing or of the wrong type.
    """
    check_text(text)
    if len(text) > MAX_JSON:
        message = f"expected JSON of at most {MAX_JSON} characters, got {len(text)}"
        raise ProgramError([Problem(message)], name)
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProgramError([Problem(f"expected JSON: {reason}")], name) from None
    try:
        return _graph(document, name)
    except _FieldError as error:
        raise ProgramError([Problem(str(error))], name) from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"expected a number, got {word}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; raise _FieldError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"expected each key once, got {shown(key)} again")
        found[key] = value
    return found


class _FieldError(Exception):
    """A field is wrong."""

    def __init__(self, where: str, reason: str) -> None:
        where = f"...{where[-_MAX_WHERE:]}" if len(where) > _MAX_WHERE else where
        super().__init__(f"{where}: {reason}")


def _fail(where: str, expected: str, got: object) -> NoReturn:
    kind = shown(got) if isinstance(got, (str, int, float)) else type(got).__name__
    raise _FieldError(where, f"expected {expected}, got {kind}")


class _Fields(NamedTuple):
    """A JSON object whose fields are read by name."""

    where: str
    values: dict[str, Any]

    def get(self, key: str, read: Callable[[str, Any], Any], default: Any = ...) -> Any:
        """Read a field; without a default the field is required."""
        if key not in self.values and default is not ...:
            return default
        if key not in self.values:
            raise _FieldError(self.where, f"expected a field {shown(key)}, got none")
        return read(f"{self.where}.{key}", self.values[key])


def _object(where: str, value: Any, known: Sequence[str]) -> _Fields:
    if type(value) is not dict:
        _fail(where, "an object", value)
    for key in value:
        if key not in known:
            _fail(where, f"fields of {', '.join(known)}", key)
    return _Fields(where, value)


def _text(where: str, value: Any) -> str:
    if type(value) is not str:
        _fail(where, "a text", value)
    return value


def _uuid(where: str, value: Any) -> str:
    if type(value) is not str or not _UUID.fullmatch(value):
        _fail(where, "a UUID", value)
    return value


def _bool(where: str, value: Any) -> bool:
    if type(value) is not bool:
        _fail(where, "true or false", value)
    return value


def _integer(where: str, value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 64:
        _fail(where, "a whole number of 64 bits", value)
    return value


def _any_number(where: str, value: Any) -> int | float:
    if type(value) is float and math.isfinite(value):
        return value
    if value in ("inf", "-inf"):
        return float(value)
    return _integer(where, value)


def _optional(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda where, value: None if value is None else read(where, value)


def _list_of(read: Callable[[str, Any], Any]) -> Callable[[str, Any], list[Any]]:
    def read_list(where: str, value: Any) -> list[Any]:
        if type(value) is not list:
            _fail(where, "a list", value)
        return [read(f"{where}[{at}]", item) for at, item in enumerate(value)]

    return read_list


_texts = _list_of(_text)


def _one_of(where: str, value: Any) -> tuple[str, Any]:
    """Return the name of a kind, and its fields if it has any."""
    if type(value) is str:
        return value, None
    if type(value) is not dict or len(value) != 1:
        _fail(where, "an object of one field, which names the kind", value)
    return next(iter(value.items()))


def _graph(document: Any, name: str) -> g.Graph:
    """Build the graph of a JSON document, and check that its counters fit its nodes."""
    fields = _object("graph", document, ("blocks", "next_index", "vars"))
    graph = g.Graph(name=name)
    for key, value in fields.get("vars", _dict, {}).items():
        graph.vars[key] = _read_variable(f"vars[{shown(key)}]", value, key)
    for key, value in fields.get("blocks", _dict).items():
        where = f"blocks[{shown(key)}]"
        block = _object(where, value, ("name", "nodes"))
        if block.get("name", _text, key) != key:
            _fail(f"{where}.name", shown(key), block.values["name"])
        graph.add_block(key).nodes += block.get("nodes", _list_of(_read_node), [])
    least = max((node.index + 1 for node in graph.nodes()), default=0)
    next_index = fields.get("next_index", _integer, least)
    if next_index < least:
        _fail("graph.next_index", f"at least {least}, which no node has", next_index)
    graph.next_index = next_index
    return graph


def _dict(where: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        _fail(where, "an object", value)
    return value


def _read_variable(where: str, value: Any, name: str) -> g.Variable:
    """Read a variable's declaration; ``name`` is its key in the document."""
    known = (
        *("name", "kind", "dtype", "dims", "init", "ref_name", "pattern", "table_indices"),
        *("table", "auto_dim", "fixed"),
    )
    fields = _object(where, value, known)
    if fields.get("name", _text, name) != name:
        _fail(f"{where}.name", shown(name), fields.values["name"])
    kind = fields.get("kind", _text)
    if kind not in _MEMORY:
        _fail(f"{where}.kind", f"one of {', '.join(_MEMORY)}", kind)
    dtype = fields.get("dtype", _read_dtype)
    limits = fields.get("fixed", _list_of(_read_limit), [])
    if len(dict(limits)) < len(limits):
        raise _FieldError(f"{where}.fixed", "expected each index once")
    return g.Variable(
        name,
        _MEMORY[kind],
        dtype,
        tuple(fields.get("dims", _texts, [])),
        fields.get("init", _optional(lambda at, init: _read_init(at, init, dtype)), None),
        fields.get("ref_name", _optional(_text), None),
        fields.get("pattern", _optional(_text), None),
        tuple(fields.get("table_indices", _texts, [])),
        fields.get("table", _bool, False),
        tuple(fields.get("auto_dim", _texts, [])),
        dict(limits),
    )


def _read_limit(where: str, value: Any) -> tuple[str, int]:
    if type(value) is not list or len(value) != 2:
        _fail(where, "a pair of index and limit", value)
    return _text(where, value[0]), _integer(where, value[1])


def _read_dtype(where: str, value: Any) -> str:
    if type(value) is not str or value not in BY_JSON_NAME:
        _fail(where, f"an element type ({', '.join(BY_JSON_NAME)})", value)
    return BY_JSON_NAME[value].name


def _read_init(where: str, value: Any, dtype: str) -> int | float | bool:
    name, number = _one_of(where, value)
    if name != DTYPES[dtype].json_name:
        _fail(where, f"a value of {DTYPES[dtype].json_name}", name)
    return number if type(number) is bool else _any_number(where, number)


def _read_node(where: str, value: Any, depth: int = 0) -> g.Node:
    fields = _object(where, value, ("index", "kind", "uuid"))
    index = fields.get("index", _integer)
    kind: g.NodeKind = fields.get("kind", lambda at, item: _read_kind(at, item, depth))
    uuid = fields.get("uuid", _uuid, None)
    return g.Node(index, kind) if uuid is None else g.Node(index, kind, uuid)


def _read_kind(where: str, value: Any, depth: int) -> g.NodeKind:
    """Read the kind of a node; ``depth`` counts the enclosing loops."""
    name, fields = _one_of(where, value)
    if name not in _KINDS:
        _fail(where, f"a kind of node ({', '.join(_KINDS)})", name)
    if name == "Loop":
        return _read_loop(f"{where}.Loop", fields, depth)
    make, readers = _KINDS[name]
    kind: g.NodeKind
    if fields is None and not readers:
        kind = make()
        return kind
    given = _object(f"{where}.{name}", fields, [key for key, _, _ in readers])
    kind = make(*(given.get(key, read, default) for key, read, default in readers))
    return kind


def _read_loop(where: str, value: Any, depth: int) -> g.Loop:
    if depth >= g.MAX_DEPTH:
        raise _FieldError(where, f"expected at most {g.MAX_DEPTH} nested loops, got more")
    fields = _object(where, value, ("name", "index", "start", "end", "body"))
    body = fields.get("body", _list_of(lambda at, node: _read_node(at, node, depth + 1)), [])
    start, end = fields.get("start", _read_bound), fields.get("end", _read_bound)
    return g.Loop(fields.get("name", _text), fields.get("index", _text), start, end, body)


def _read_bound(where: str, value: Any) -> g.Value:
    text = _text(where, value)
    if not (text.isascii() and text.isdigit()):
        return text
    return _integer(where, int(text) if len(text) <= 20 else text)


def _read_access(where: str, value: Any) -> g.Access:
    fields = _object(where, value, ("base", "indices", "bracketed"))
    return g.Access(
        fields.get("base", _text),
        tuple(fields.get("indices", _list_of(_read_index), [])),
        fields.get("bracketed", _bool, bool(fields.values.get("indices"))),
    )


def _read_index(where: str, value: Any) -> g.Index:
    name, inner = _one_of(where, value)
    if name == "Single":
        return g.Single(_read_value(where, inner))
    if name != "Slice":
        _fail(where, "Single or Slice", name)
    fields = _object(where, inner, ("start", "end"))
    read = _optional(_read_value)
    return g.Slice(fields.get("start", read, None), fields.get("end", read, None))


def _read_value(where: str, value: Any) -> g.Value:
    name, inner = _one_of(where, value)
    if name not in ("Ident", "Lit"):
        _fail(where, "Ident or Lit", name)
    return _text(where, inner) if name == "Ident" else _integer(where, inner)


def _read_operand(where: str, value: Any) -> g.Access:
    """Read the text of a variable or of an entry of a prefix table."""
    try:
        return g.access(_text(where, value))
    except OpenInferError as error:
        raise _FieldError(where, str(error)) from None


def from_first_era(op: str) -> str:
    """Return the later name of a first-era op: ``"is_finite"`` for ``"IsFinite"``."""
    if not op[:1].isupper() or "." in op:
        return op
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in op)[1:]


def _read_op(
    op: str, attrs: tuple[bool, dict[str, Any]], inputs: list[g.Access], output: g.Access
) -> g.Op:
    """Build an op; ``attrs`` says whether it is of the first era, and holds the settings."""
    is_first, settings = attrs
    return g.Op(from_first_era(op) if is_first else op, tuple(inputs), settings, output)


def _read_attrs(where: str, value: Any) -> tuple[bool, dict[str, Any]]:
    """Read settings of any era; also return whether they are of the first."""
    if type(value) is dict and "items" in value:
        items = _object(where, value, ("items",)).get("items", _list_of(_read_item))
        if len(dict(items)) < len(items):
            raise _FieldError(f"{where}.items", "expected each setting once")
        return False, dict(items)
    name, fields = _one_of(where, value)
    if fields is None:
        if name != "None":
            _fail(where, "None or settings", name)
        return True, {}
    spelled = FIRST_SETTINGS.get(name.lower())
    if spelled is None:
        _fail(where, "settings of Relu, or a list of items", name)
    given = _object(f"{where}.{name}", fields, list(spelled))
    return True, {spelled[key]: given.get(key, _read_first_setting) for key in given.values}


def _read_first_setting(where: str, value: Any) -> g.Setting:
    name, inner = _one_of(where, value)
    if name not in ("Literal", "Var"):
        _fail(where, "Literal or Var", name)
    return g.Name(_text(where, inner)) if name == "Var" else _any_number(where, inner)


def _read_item(where: str, value: Any) -> tuple[str, g.Setting]:
    fields = _object(where, value, ("name", "value"))
    return fields.get("name", _text), fields.get("value", _read_setting)


def _read_setting(where: str, value: Any) -> g.Setting:
    name, inner = _one_of(where, value)
    if name not in _SETTINGS:
        _fail(where, f"a value of {', '.join(_SETTINGS)}", name)
    setting: g.Setting = _SETTINGS[name](where, inner)
    return setting


def _read_float(where: str, value: Any) -> float:
    return float(_any_number(where, value))


def _size(where: str, value: Any) -> int | str:
    return g.Name(value) if type(value) is str else _integer(where, value)


_SETTINGS: dict[str, Callable[[str, Any], Any]] = {
    "Float": _read_float,
    "Double": _read_float,
    "Int": _integer,
    "UInt": _integer,
    "Bool": _bool,
    "Str": _text,
    "IntList": lambda where, value: tuple(_list_of(_size)(where, value)),
    "Var": lambda where, value: g.Name(_text(where, value)),
    "DType": lambda where, value: g.Name(_read_dtype(where, value)),
}

_READ_SRC, _READ_DST = ("src", _read_operand, ...), ("dst", _read_operand, ...)
_COUNT = (("target", _text, ...), ("amount", _integer, 1))
_NAMES = (("vars", _texts, ...),)

#: For each kind of node its class, and its fields: name, reader, default.
_KINDS: dict[str, tuple[Callable[..., Any], Sequence[tuple[str, Callable[..., Any], Any]]]] = {
    "Assign": (
        g.Assign,
        (("name", _text, ...), ("dtype", _read_dtype, ...), ("dims", _texts, [])),
    ),
    "Op": (
        _read_op,
        (
            ("op", _text, ...),
            ("attrs", _read_attrs, (True, {})),
            ("inputs", _list_of(_read_operand), ...),
            ("output", _read_operand, ...),
        ),
    ),
    "Return": (g.Return, ()),
    "CacheRead": (g.CacheRead, (("src", _read_access, ...), _READ_DST)),
    "CacheWrite": (g.CacheWrite, (_READ_SRC, ("dst", _read_access, ...))),
    "CacheIncrement": (g.CacheIncrement, _COUNT),
    "CacheDecrement": (g.CacheDecrement, _COUNT),
    "CacheReset": (g.CacheReset, (("target", _read_access, ...),)),
    "Loop": (g.Loop, ()),
    "Branch": (
        g.Branch,
        (
            ("cond", _optional(_text), None),
            ("then_block", _text, ...),
            ("else_block", _optional(_text), None),
        ),
    ),
    "Barrier": (g.Barrier, ()),
    "Dep": (g.Dep, (("after", _text, ...), ("before", _text, ...))),
    "Transfer": (g.Transfer, (_READ_SRC, _READ_DST)),
    "Yield": (g.Yield, _NAMES),
    "Await": (g.Await, _NAMES),
}
