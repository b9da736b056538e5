"""Convert plain data to and from JSON: None, bool, 64-bit int, float, str, lists, dicts.

JSON has no Infinity and no NaN; such a float is written as an object with the single key "float".
"""

from __future__ import annotations

import math
from typing import Any

from taper_runtime.base.checks import MAX_DEPTH, check_text, fail, is_integer
from taper_runtime.base.loading import watched

_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_FLOAT_KEYS = {"float"}
#: The types of JSON values that are plain data; an int may be too large.
_SCALARS = frozenset({str, float, bool, type(None)})


def to_json(value: Any, field: str, depth: int = 0) -> Any:
    """Return the JSON from which :func:`from_json` restores ``value``; tuples become lists.

    Raises
    ------
    PlanFormatError
        If a part is not plain data; the message names it within ``field``.
    """
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple, dict)):
        if depth == MAX_DEPTH:
            fail(field, f"expected at most {MAX_DEPTH} levels of nesting", value)
        if not isinstance(value, dict):
            return [to_json(v, f"{field}[{i}]", depth + 1) for i, v in enumerate(value)]
        for key in value:
            check_text(key, f"{field}.{key}")
        if value.keys() == _FLOAT_KEYS:
            fail(field, "expected another key than 'float' alone, which stands for a number", value)
        return {key: to_json(value[key], f"{field}.{key}", depth + 1) for key in sorted(value)}
    _check_scalar(value, field)
    return value


def from_json(value: Any, field: str, depth: int = 0) -> Any:
    """Return the plain data of a value from :func:`.parse_json`, which may be changed.

    Raises
    ------
    PlanFormatError
        If a part exceeds a limit; the message names it within ``field``.
    """
    if type(value) not in (list, dict):
        if type(value) is int and not is_integer(value):
            fail(field, "expected a signed 64-bit integer", value)
        return value
    if depth == MAX_DEPTH:
        fail(field, f"expected at most {MAX_DEPTH} levels of nesting", value)
    is_dict = type(value) is dict
    if is_dict and value.keys() == _FLOAT_KEYS:
        return _parse_float(value["float"], f"{field}.float")
    for key, item in watched(value.items() if is_dict else enumerate(value)):
        if type(item) not in _SCALARS and not is_integer(item):
            inside = f"{field}.{key}" if is_dict else f"{field}[{key}]"
            value[key] = from_json(item, inside, depth + 1)
    return value


def _parse_float(text: Any, field: str) -> float:
    if type(text) is not str or text not in _FLOATS:
        fail(field, f"expected one of {', '.join(_FLOATS)}", text)
    return _FLOATS[text]


def _check_scalar(value: object, field: str) -> None:
    if type(value) is int:
        if not is_integer(value):
            fail(field, "expected a signed 64-bit integer", value)
    elif type(value) is str:
        check_text(value, field)
    elif value is not None and type(value) is not bool:
        fail(field, "expected plain data", value)
