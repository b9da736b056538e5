"""Read the fields of a JSON object; a field that nobody reads is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe, parse_object
from taper_runtime.base.text import nearest
from taper_runtime.serving.request_error import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_REQUIRED: Any = object()


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises
    ------
    RequestError
        If it is none.
    """
    try:
        found = parse_object(body.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise RequestError(400, "body: expected a JSON object in UTF-8", code="invalid_json")
    return found


class BodyFields:
    """Reads an object's fields.

    Parameters
    ----------
    data : object
        What should be an object.
    place : str
        Where it is, for errors; empty for the body itself.
    """

    def __init__(self, data: Any, place: str = "") -> None:
        if not isinstance(data, dict):
            raise RequestError(400, f"{place or 'body'}: expected an object, got {describe(data)}")
        self._data: Mapping[str, Any] = data
        self._place = place
        self._taken: list[str] = []

    def take(
        self,
        name: str,
        expected: str,
        is_right: Callable[[Any], object],
        default: Any = _REQUIRED,
    ) -> Any:
        """Return the value of a field; null counts as absent.

        Raises
        ------
        RequestError
            If it is missing and has no default, or is not right.
        """
        self._taken.append(name)
        value = self._data.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if not is_right(value):
            got = "nothing" if name not in self._data else describe(value)
            raise self.error(name, f"expected {expected}, got {got}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return the value of a string field."""
        return self.take(name, "a string", lambda value: isinstance(value, str), default)

    def flag(self, name: str, default: bool) -> bool:
        """Return the value of a boolean field."""
        found: bool = self.take(name, "true or false", lambda value: type(value) is bool, default)
        return found

    def whole(self, name: str, least: int, most: int | None, default: Any) -> Any:
        """Return the value of an integer field."""
        limits = f"from {least}" if most is None else f"from {least} to {most}"
        return self.take(
            name,
            f"a whole number {limits}",
            lambda value: type(value) is int and least <= value and (most is None or value <= most),
            default,
        )

    def error(self, name: str, message: str, code: str | None = None) -> RequestError:
        """Return an error that names a field."""
        where = f"{self._place}.{name}" if self._place else name
        return RequestError(400, f"{where}: {message}", param=where, code=code)

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Check that no field is left but those ``ignored``, which have no effect here.

        Raises
        ------
        RequestError
            If one is left that is not null.
        """
        left = {name for name, value in self._data.items() if value is not None}
        for name in sorted(left - {*self._taken, *ignored}):
            near = nearest(name, self._taken)
            hint = f"; did you mean {near!r}?" if near else ""
            raise self.error(name, f"this server has no such field{hint}", "unknown_field")
