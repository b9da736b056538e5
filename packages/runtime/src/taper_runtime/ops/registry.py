"""A dict of ops that grows when somebody asks for more than it has."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
    from types import ModuleType

    from taper_runtime.ops.opdef import OpDef


class Registry(dict[str, "OpDef"]):
    """Ops by name.

    Parameters
    ----------
    modules : sequence of module
        Whose ``OPS`` are there from the start.
    others : sequence of str
        Names of modules beside this one. They are imported, all at once, before anything else is
        said than what an op that is there already is.
    """

    def __init__(self, modules: Sequence[ModuleType], others: Sequence[str]) -> None:
        super().__init__({op.name: op for module in modules for op in module.OPS})
        self._others = tuple(others)

    def load(self) -> Registry:
        """Import the other modules, and return the registry."""
        if self._others:
            package = __name__.rpartition(".")[0]
            for name in self._others:
                module = import_module(f"{package}.{name}")
                self.update({op.name: op for op in module.OPS})
            self._others = ()
        return self

    def __missing__(self, name: str) -> OpDef:
        if name in self:
            return self[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or dict.__contains__(self.load(), name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the op of this name, or ``default``."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self.load())

    def __len__(self) -> int:
        return dict.__len__(self.load())

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Return the names."""
        return dict.keys(self.load())

    def values(self) -> ValuesView[OpDef]:  # type: ignore[override]
        """Return the ops."""
        return dict.values(self.load())

    def items(self) -> ItemsView[str, OpDef]:  # type: ignore[override]
        """Return the names with their ops."""
        return dict.items(self.load())
