"""Read and write recipes of constants; recipes that no run needs are parsed on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taper_runtime.file.container import parse_json
from taper_runtime.file.plain_data import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.plan.recipes import RecipeStep

#: The key in the header's metadata, and the field of :class:`.Plan`.
PROVENANCE = "provenance"

_FIELD = f"plan.{PROVENANCE}"


class StoredRecipes(Mapping[str, "tuple[RecipeStep, ...]"]):
    """Recipes of a file, which are parsed on the first access.

    Every access raises :class:`PlanFormatError` if the text is not the JSON of
    :func:`write_recipes`.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._recipes: dict[str, tuple[RecipeStep, ...]] | None = None

    def _parsed(self) -> dict[str, tuple[RecipeStep, ...]]:
        if self._recipes is None:
            self._recipes = read_recipes(parse_json(self._text, _FIELD), _FIELD)
        return self._recipes

    def __getitem__(self, name: str) -> tuple[RecipeStep, ...]:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __repr__(self) -> str:
        return repr(self._parsed())


def read_recipes(item: Any, field: str) -> dict[str, tuple[RecipeStep, ...]]:
    """Return the recipes in a JSON value; raise PlanFormatError if they are invalid."""
    from taper_runtime.plan.recipes import parse_recipes  # imported here because no run needs it

    return parse_recipes(from_json(item, field), field)


def write_recipes(recipes: Mapping[str, Sequence[RecipeStep]], field: str) -> dict[str, Any]:
    """Return recipes as JSON.

    Raises
    ------
    PlanFormatError
        If :func:`read_recipes` would not accept them.
    """
    from taper_runtime.plan.recipes import parse_recipes

    item = {
        name: [
            (op, inputs, to_json(dict(attrs), f"{field}[{name!r}]"))
            for op, inputs, attrs in recipes[name]
        ]
        for name in sorted(recipes)
    }
    parse_recipes(item, field)
    return item
