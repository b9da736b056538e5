"""Check the objects and arrays of a file's JSON."""

from __future__ import annotations

from typing import Any

from taper_runtime.base.checks import fail
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.file import FORMAT_VERSION


def check_object(
    value: Any, keys: frozenset[str], field: str, options: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return ``value`` if it is an object with exactly these keys, and any of ``options``."""
    if type(value) is not dict:
        fail(field, "expected an object", value)
    if value.keys() != keys and (wrong := (value.keys() - options) ^ keys):
        key = min(wrong)
        problem = (
            f"is not a key of format version {FORMAT_VERSION}" if key in value else "is missing"
        )
        raise PlanFormatError(f"{field}.{key}", problem)
    return value


def object_of(item: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key of an object."""
    if type(item[key]) is not dict:
        fail(f"plan.{key}", "expected an object", item[key])
    value: dict[str, Any] = item[key]
    return value


def items_of(item: dict[str, Any], key: str) -> tuple[Any, ...]:
    """Return the items of the array under a key of an object."""
    value = item[key]
    if type(value) is not list:
        fail(f"plan.{key}", "expected an array", value)
    return tuple(value)


def items_or_none(item: dict[str, Any], key: str) -> tuple[Any, ...]:
    """Return the items of an array; its key is left out if the array is empty."""
    value = items_of(item, key)
    if not value:
        fail(f"plan.{key}", f"expected no key {key!r} for an empty array", item[key])
    return value
