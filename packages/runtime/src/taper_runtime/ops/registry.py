"""Look up ops by name, importing the module of an op when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from taper_runtime.ops.opdef import OpDef


class Registry(dict[str, "OpDef"]):
    """A mapping of names to ops.

    Parameters
    ----------
    modules : mapping of str to str
        Modules of this package, and the names of the ops in each one's ``OPS``, separated by
        spaces.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        super().__init__()
        #: The module of each op whose module is not imported yet.
        self._pending = {op: module for module, ops in modules.items() for op in ops.split()}

    def _load(self, module: str) -> None:
        """Import a module and register its ops; several threads may do so at once."""
        ops = import_module(f"{__name__.rpartition('.')[0]}.{module}").OPS
        self.update({op.name: op for op in ops if op.name in self._pending})
        for op in ops:
            self._pending.pop(op.name, None)

    def _whole(self) -> Registry:
        """Return the registry after loading all ops."""
        for module in dict.fromkeys(self._pending.copy().values()):
            self._load(module)
        return self

    def __missing__(self, name: str) -> OpDef:
        module = self._pending.get(name)
        if module is not None:
            self._load(module)
        if dict.__contains__(self, name):
            return self[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        # look in this order: another thread may load the op between the two lookups
        return name in self._pending or dict.__contains__(self, name)

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
