"""Read and write recipes of constants; those that no run needs are parsed on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taper_runtime.file.container import parse_json
from taper_runtime.file.plain_data import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.plan.recipes import RecipeStep

#: The string of a header's metadata, and the field of :class:`.Plan`.
PROVENANCE = "provenance"

_FIELD = f"plan.{PROVENANCE}"


class StoredRecipes(Mapping[str, "tuple[RecipeStep, ...]"]):
    """Recipes as a file has them.

    Every access raises :class:`PlanFormatError` where the text is not what :func:`write_recipes`
    gives, as JSON.
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
    """Return the recipes that JSON stands for; PlanFormatError where it stands for none."""
    from taper_runtime.plan.recipes import parse_recipes  # which no run needs

    return parse_recipes(from_json(item, field), field)


def write_recipes(recipes: Mapping[str, Sequence[RecipeStep]], field: str) -> dict[str, Any]:
    """Return recipes as JSON.

    Raises
    ------
    PlanFormatError
        If they are none that :func:`read_recipes` takes.
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
