"""Know the parameters of ATen ops without torch: a table that ``tools/schemas.py`` writes."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from taper_frontend.lowering.aten_program import SchemaArgument

#: The table beside this module: for each op whether it draws random numbers, and for each parameter
#: its name, whether it is a tensor, and its default.
TABLE = "schemas.json"


@cache
def schemas() -> dict[str, tuple[SchemaArgument, ...]]:
    """Return the parameters of each op that has a handler, by its name."""
    return {
        op: tuple(SchemaArgument(*each) for each in parameters)
        for op, parameters in _table()["parameters"].items()
    }


@cache
def drawing() -> frozenset[str]:
    """Return the ops that draw random numbers."""
    return frozenset(_table()["draws"])


@cache
def _table() -> dict[str, Any]:
    text = resources.files(__package__).joinpath(TABLE).read_text()
    table: dict[str, Any] = json.loads(text)
    return table
