"""Look up ops by name, importing their modules on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView

    from taper_runtime.ops.opdef import OpDef

#: Characters of a name that are looked at for words.
_LONGEST = 50


class Registry(dict[str, "OpDef"]):
    """Ops by name.

    Parameters
    ----------
    modules : sequence of str
        Names of the modules beside this one whose ``OPS`` it has. For an op that is not there yet
        they are imported one after the other: first one that a word of the op's name names, as
        ``pool`` for MAX_POOL, then in order, so that those that most models need come first.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self._modules = tuple(modules)

    def _grow(self, op: object = "") -> bool:
        """Import the next module for an op; returns False where all are there.

        Threads that come here at once do the same, or import one of them twice.
        """
        if not self._modules:
            return False
        words = str(op)[:_LONGEST].lower().split("_")  # a stranger's may have any length
        name = next((name for name in self._modules if name in words), self._modules[0])
        module = import_module(f"{__name__.rpartition('.')[0]}.{name}")
        self.update({op.name: op for op in module.OPS})
        self._modules = tuple(other for other in self._modules if other != name)
        return True

    def _whole(self) -> Registry:
        """Return the registry with all of its ops."""
        while self._grow():
            pass
        return self

    def __missing__(self, name: str) -> OpDef:
        if name in self:
            return self[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        while not dict.__contains__(self, name):
            if not self._grow(name):
                return False
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """Return the op of this name, or ``default``."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._whole())

    def __len__(self) -> int:
        return dict.__len__(self._whole())

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Return the names."""
        return dict.keys(self._whole())

    def values(self) -> ValuesView[OpDef]:  # type: ignore[override]
        """Return the ops."""
        return dict.values(self._whole())

    def items(self) -> ItemsView[str, OpDef]:  # type: ignore[override]
        """Return the names with their ops."""
        return dict.items(self._whole())
