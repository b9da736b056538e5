"""Save and restore everything that a run of a module may change, including attributes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

#: Attributes that every module has, which are not the user's.
_INTERNAL = frozenset(vars(torch.nn.Module()))

#: Packages whose objects contain no state of a module apart from being tensors.
_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}

#: Parameters and buffers of a lazy module, which have no shape yet.
LAZY = (UninitializedParameter, UninitializedBuffer)

#: A key of a dict, an index of a list or a tuple, or the name of a field, with its spelling.
PathStep = tuple[Any, str]


class ModuleAttributes:
    """The attributes of a module and its parts, with their contents but no tensors' values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._attributes = [
            (
                vars(part),
                {name: (value, _all_contents(value)) for name, value in vars(part).items()},
            )
            for part in module.modules()
        ]

    def restore(self, keep: Sequence[str] = ()) -> None:
        """Restore all attributes except those of these names."""
        for variables, before in self._attributes:
            for name in variables.keys() - before.keys():
                del variables[name]
            for name, (value, contents) in before.items():
                if name in keep:
                    continue
                variables[name] = value
                for container, elements in contents:
                    _refill(container, elements)


class ModuleState:
    """The parts of a module that a run may change: attributes, and the values of tensors."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._attributes = ModuleAttributes(module)
        own = (leaf for _, _, _, leaf in attribute_leaves(module))
        every = (x for x in (*module.buffers(), *own) if isinstance(x, torch.Tensor))
        tensors = {id(x): x for x in every if not isinstance(x, LAZY)}
        for parameter in module.parameters():
            tensors.pop(id(parameter), None)
        self._values = [(tensor, tensor.clone()) for tensor in tensors.values()]
        self._requires_grad = [
            (p, p.requires_grad) for p in module.parameters() if not isinstance(p, LAZY)
        ]

    def restore_attributes(self) -> None:
        """Restore all attributes except the buffers."""
        self._attributes.restore(keep=("_buffers",))

    def restore(self) -> None:
        """Restore everything."""
        self._attributes.restore()
        for parameter, requires_grad in self._requires_grad:
            parameter.requires_grad_(requires_grad)
        for tensor, before in self._values:
            # not all writes increase a tensor's version
            if not tensor.is_meta and not torch.equal(tensor, before):
                with torch.no_grad():
                    tensor.copy_(before)


class TensorPlaces:
    """Places in a module, also in attributes, where some of its parameters and buffers are.

    Examples are a cache in an object beside the module's buffers, and the list of weights that a
    recurrent layer keeps.

    Parameters
    ----------
    module : torch.nn.Module
    names : collection of str
        Names of parameters and buffers.
    """

    def __init__(self, module: torch.nn.Module, names: Collection[str]) -> None:
        """Find every place of these parameters and buffers in the module."""
        every = (module.named_parameters, module.named_buffers)
        named = dict(pair for tensors in every for pair in tensors(remove_duplicate=False))
        wanted = {id(named[name]): name for name in names}
        self._module = module
        self._registered: list[tuple[dict[str, Any], str, str]] = [
            (store, key, wanted[id(tensor)])
            for part in module.modules()
            for store in (part._parameters, part._buffers)
            for key, tensor in store.items()
            if id(tensor) in wanted
        ]
        self._attributes = [
            (vars(part), attribute, path, wanted[id(leaf)])
            for part, attribute, path, leaf in attribute_leaves(module)
            if id(leaf) in wanted
        ]

    @contextmanager
    def holding(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Put tensors, given by name, in their places for a while; then restore all attributes."""
        before = ModuleAttributes(self._module)
        try:
            for store, key, name in self._registered:
                store[key] = tensors[name]
            for own, attribute, path, name in self._attributes:
                own[attribute] = put(own[attribute], path, tensors[name])
            yield
        finally:
            before.restore()


def attribute_leaves(
    module: torch.nn.Module,
) -> list[tuple[torch.nn.Module, str, tuple[PathStep, ...], Any]]:
    """Return the values in the plain attributes of a module and its parts.

    Returns
    -------
    list of (torch.nn.Module, str, tuple of PathStep, object)
        The part, its attribute, the path inside the attribute's value, and the value there, which
        is not a list, tuple, dict or object of a user's class.
    """
    seen: set[int] = set()
    return [
        (part, name, path, leaf)
        for part in module.modules()
        for name, value in list(vars(part).items())
        if name not in _INTERNAL
        for path, leaf in _leaves(value, (), seen)
    ]


def steps(value: Any) -> list[tuple[PathStep, Any]] | None:
    """Return the contents of a value, each with the step to it; None for a leaf."""
    if isinstance(value, dict):
        return [((key, f"[{key!r}]"), item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = enumerate(value._fields)
        return [((place, f".{name}"), value[place]) for place, name in names]
    if isinstance(value, list | tuple):
        return [((place, f"[{place}]"), item) for place, item in enumerate(value)]
    if _is_users(value):
        return [((name, f".{name}"), item) for name, item in vars(value).items()]
    return None


def is_object(value: Any) -> bool:
    """Return whether a container has fields: it is not a dict, list or tuple."""
    return not isinstance(value, dict | list | tuple)


def put(value: Any, path: tuple[PathStep, ...], tensor: torch.Tensor | None) -> Any:
    """Put a tensor in its place; its container, which may be shared, stays the same object."""
    if not path:
        return tensor
    (key, _), *rest = path
    if isinstance(value, tuple):
        items = [put(x, tuple(rest), tensor) if i == key else x for i, x in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    target = vars(value) if is_object(value) else value
    kind = dict if isinstance(target, dict) else list  # a class of the user's may refuse changes
    kind.__setitem__(target, key, put(target[key], tuple(rest), tensor))
    return value


def _is_users(value: Any) -> bool:
    """Return whether a value is an object of a user's class, such as a dataclass or a cache."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, torch.nn.Module | torch.Tensor | type | FunctionType | ModuleType)
        and str(kind.__module__).partition(".")[0] not in _FOREIGN
    )


def _leaves(
    value: Any, path: tuple[PathStep, ...], seen: set[int]
) -> Iterator[tuple[tuple[PathStep, ...], Any]]:
    inside = steps(value)
    if inside is None:
        yield path, value
    elif id(value) not in seen or not inside:
        seen.add(id(value))
        for step, item in inside:
            yield from _leaves(item, (*path, step), seen)


def _all_contents(value: Any, seen: set[int] | None = None) -> list[tuple[Any, Any]]:
    """Return the containers in a value, including itself, each with its contents."""
    seen = set() if seen is None else seen
    inside = steps(value)
    if id(value) in seen or not (inside is not None or isinstance(value, set)):
        return []
    seen.add(id(value))
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found.append((value, {**value}))
    elif isinstance(value, list):
        found.append((value, [*value]))
    elif isinstance(value, set):
        found.append((value, {*value}))
    elif not isinstance(value, tuple):
        found.append((vars(value), {**vars(value)}))
    for _, item in inside or ():
        found += _all_contents(item, seen)
    return found


def _refill(container: Any, elements: Any) -> None:
    if _elements(container) == _elements(elements):
        return  # a container's class may refuse changes
    if isinstance(container, list):
        container[:] = elements
    else:
        container.clear()
        container.update(elements)


def _elements(container: Any) -> list[int]:
    """Return the ids of the objects in a container, in order."""
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]
