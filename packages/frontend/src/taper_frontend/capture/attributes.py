"""Find tensors in plain attributes that a run of a module replaces, and make them buffers.

torch.export treats only buffers as state. So these tensors are buffers while a module is exported,
and the module gets its attributes back afterwards. Values that cannot be buffers, such as a number
or a tensor whose shape changes, are reported.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from taper_frontend.capture.module_state import (
    LAZY,
    ModuleState,
    PathStep,
    attribute_leaves,
    is_object,
    put,
    steps,
)
from taper_frontend.capture.torch_lock import TORCH
from taper_frontend.request.notes import Note, of_attributes, of_first_call
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

#: For a module that is being exported, the names of the buffers that are attributes.
_ATTRIBUTES: WeakKeyDictionary[torch.nn.Module, frozenset[str]] = WeakKeyDictionary()

_NOTHING = object()

#: Types other than tensors that are compared by value.
_NUMBERS = bool | int | float | complex | str | None


class AttributePlace(NamedTuple):
    """The path of a value in a module's plain attributes.

    Attributes
    ----------
    part : torch.nn.Module
        The module whose attribute it is.
    attribute : str
    path : tuple of PathStep
        The path inside the attribute's value; empty for the value itself.
    """

    part: torch.nn.Module
    attribute: str
    path: tuple[PathStep, ...]

    @property
    def tail(self) -> str:
        """Return the place in words, without the path to the module."""
        return self.attribute + "".join(text for _, text in self.path)


class Leaf(NamedTuple):
    """A value in an attribute at some time.

    Attributes
    ----------
    value : object
    version : int
        For a tensor, how often it has been written to.
    """

    value: Any
    version: int


@contextmanager
def attributes_as_buffers(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[list[Note]]:
    """Make buffers of the tensors in attributes that a run of a module replaces.

    They are found by a run with the example's arguments, after which the module is restored. If the
    module cannot run, the capture reports why.

    A first call may change the module permanently, such as by making a parameter or rescaling a
    buffer. The module is captured after that call. If the call changes parameters, its changes
    remain: a copy of the parameters would take too much memory, and if only the attributes were
    restored, including a flag, the next call would rescale again. Other changes that every first
    call makes are undone at the end.

    Parameters
    ----------
    module : torch.nn.Module
    args, kwargs
        The example's arguments, which the run does not change.

    Yields
    ------
    list of Note
        Notes on attributes that later runs depend on and that a plan cannot keep as state.
    """
    with _empty_buffers_as_attributes(module):
        yield from _tensors_as_buffers(module, _Example(module, args, kwargs))


@contextmanager
def _empty_buffers_as_attributes(module: torch.nn.Module) -> Iterator[None]:
    """Make plain attributes of the buffers that are None.

    torch.export confuses the results of a program that assigns a tensor to such a buffer. One that
    ``forward`` registers again is assigned.
    """
    empty = [
        (part, [*part._buffers], {name for name, own in part._buffers.items() if own is None})
        for part in module.modules()
    ]
    for part, _, names in empty:
        for name in names:
            vars(part)[name] = part._buffers.pop(name)
    made = {id(part): names for part, _, names in empty}

    def register(part: torch.nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
        if name in made.get(id(part), ()):
            setattr(part, name, tensor)
        else:
            plain(part, name, tensor, persistent)

    plain = torch.nn.Module.register_buffer
    try:
        with mock.patch.object(torch.nn.Module, "register_buffer", register):
            yield
    finally:
        for part, order, names in empty:
            own = {**part._buffers, **{name: vars(part).pop(name, None) for name in names}}
            first = {name: own[name] for name in order if name in own}
            part._buffers.clear()
            part._buffers.update(first | own)


def _tensors_as_buffers(module: torch.nn.Module, example: _Example) -> Iterator[list[Note]]:
    """Yield the notes of :func:`attributes_as_buffers`, while the tensors are buffers."""
    state = ModuleState(module)
    call = _ExampleCall(module, example)
    notes: list[Note] = []
    told: dict[str, tuple[str, str]] = {}
    if call.parameters:
        # their old values are gone: with the old attributes they would be changed a second time
        notes += of_first_call(list(call.parameters))
        first, state = state, ModuleState(module)
        call = _ExampleCall(module, example)
        if call.parameters:  # every call does so
            notes, told, state = [], call.parameters, first
        state.restore()
    else:
        state.restore()
        if call.matters() and _only_prepares(module, state, example):
            with TORCH:
                example.run(1.0)
            prepared = ModuleState(module)
            call = _ExampleCall(module, example)
            prepared.restore()
    registered = None
    try:
        if call.matters():
            told = told | _told(module, call.others, call.before, call.after)
        registered = _TensorAttributes(module, call)
        yield [*notes, *of_attributes(told)]
    finally:
        if registered is not None:
            registered.remove()
        state.restore()


def drop_unread(module: torch.nn.Module, program: ExportedProgram) -> None:
    """Remove writes to attributes that the program never reads.

    A value that a module only stores in an attribute for others to read is not state.
    """
    names = _ATTRIBUTES.get(module, frozenset())
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if buffers.get(node.name) not in names or not all(
            _only_writes(user, node) for user in node.users
        ):
            continue
        for user in list(node.users):
            program.graph.erase_node(user)
    program.graph_module.recompile()


def _only_writes(user: torch.fx.Node, to: torch.fx.Node) -> bool:
    """Return whether a call writes to a buffer, or is the copy for a call that does not read it."""
    if user.users:
        return False
    is_copy = user.target is torch.ops.aten.copy_.default
    is_unread = user.target is torch.ops.aten.clone.default
    return is_unread or (is_copy and user.args[0] is to and user.args[1] is not to)


class _Example:
    """The runs of a module on its example's arguments."""

    def __init__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._module = module
        self._arguments = (args, dict(kwargs))

    def run(self, factor: float) -> list[Any]:
        """Run once and return the leaves of the results.

        Parameters
        ----------
        factor : float
            1 for the example itself. Any other factor scales the floats, and reverses other tensors
            along their last axis.
        """

        def own(x: torch.Tensor) -> torch.Tensor:
            x = x.detach().clone()
            if factor == 1 or not x.dim():
                return x
            return x * factor if x.is_floating_point() or x.is_complex() else x.flip(-1)

        args, kwargs = tree_map_only(torch.Tensor, own, self._arguments)
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            redirect_stderr(StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return tree_leaves(self._module(*args, **kwargs))


class _ExampleCall:
    """A call of a module with its example's arguments, and the changes that it makes.

    Attributes
    ----------
    before, after : dict of AttributePlace to Leaf
        The values in attributes.
    kept : dict of AttributePlace to torch.Tensor
        The changed attributes that can be buffers, with their values before.
    replaced : set of AttributePlace
        Those of ``kept`` whose tensors the call replaces, and does not write to. Places that had
        one tensor have different ones afterwards, at the latest after some calls: so all places of
        such a tensor are kept.
    others : list of AttributePlace
        The other changed attributes.
    assigned : list of AttributePlace
        The buffers that it assigns to.
    parameters : dict of str to tuple
        The parameters that it makes, replaces or writes to, by name, with descriptions of each
        before and after.
    """

    def __init__(self, module: torch.nn.Module, example: _Example) -> None:
        """Run the example once and compare the module before and after."""
        self._module, self._example = module, example
        self.before = self.after = _leaves(module)
        self.assigned: list[AttributePlace] = []
        buffers, parameters = _buffers(module), _parameters(module)
        try:
            with TORCH:
                example.run(1.0)
            self.after = _leaves(module)
            self.assigned = [
                p for p, own in _buffers(module).items() if _stays(buffers.get(p), own)
            ]
        except Exception:  # a user's code may raise anything; the capture reports it better
            pass
        changed = [
            place
            for place in {**self.before, **self.after}
            if _differs(place, self.before, self.after)
        ]
        self.kept = {
            place: self.before[place].value
            for place in changed
            if _can_be_state(place, self.before, self.after)
        }
        moved = {
            id(tensor)
            for place, tensor in self.kept.items()
            if self.after[place].value is not tensor
            and _version(tensor) == self.before[place].version
        }
        self.replaced = {
            place
            for place, leaf in self.before.items()
            if id(leaf.value) in moved and _can_be_state(place, self.before, self.after)
        }
        self.kept |= {place: self.before[place].value for place in self.replaced}
        self.others = [place for place in changed if place not in self.kept]
        now = _parameters(module)
        nothing = "nothing", 0, 0
        self.parameters = {
            name: (parameters.get(name, nothing)[0], now.get(name, nothing)[0])
            for name in {**parameters, **now}
            if parameters.get(name) != now.get(name)
        }

    def matters(self) -> bool:
        """Return whether later calls depend on values that cannot be buffers."""
        return bool(self.others) and _matters(self._module, self._example, self)


class _TensorAttributes:
    """The tensors of a module that are buffers meanwhile, from attributes or assigned buffers.

    A call of the module finds them at their original places, as plain attributes and in lists,
    dicts and objects. After the call, the values at these places are copied into the buffers, which
    remain the same tensors: torch.export supports writes to all buffers, but assignments only to
    some. A call that replaces a tensor finds a copy of the buffer, because it may return the old
    tensor, or move it to another place.
    """

    def __init__(self, module: torch.nn.Module, call: _ExampleCall) -> None:
        """Make buffers of the tensors that the call changes, and hook the module's calls."""
        self._module = module
        self._groups: dict[tuple[int, str], _Attribute] = {}
        copies: dict[int, torch.Tensor] = {}  # one tensor in two places stays one tensor
        for place, tensor in call.kept.items():
            own = tensor.detach().clone()
            if place not in call.replaced:
                own = copies.setdefault(id(tensor), own)
            replaced = place in call.replaced or call.after[place].value is not tensor
            self._group(place).add(place.path, own, replaced=replaced)
        for place in call.assigned:
            self._group(place).assign()
        self._hooks: list[Any] = []
        if self._groups:
            self._hooks.append(module.register_forward_pre_hook(self._before, prepend=True))
            self._hooks.append(module.register_forward_hook(self._after, always_call=True))
            prefixes = {id(part): f"{n}." if n else "" for n, part in module.named_modules()}
            _ATTRIBUTES[module] = frozenset(
                prefixes[id(group.part)] + name
                for group in self._groups.values()
                for name in group.made
            )

    def remove(self) -> None:
        """Restore the attributes of the module."""
        _ATTRIBUTES.pop(self._module, None)
        for hook in self._hooks:
            hook.remove()
        for group in self._groups.values():
            group.remove()

    def _group(self, place: AttributePlace) -> _Attribute:
        key = id(place.part), place.attribute
        if key not in self._groups:
            self._groups[key] = _Attribute(place.part, place.attribute)
        return self._groups[key]

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        for group in self._groups.values():
            group.show()

    def _after(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        for group in self._groups.values():
            group.take()


class _Attribute:
    """An attribute of a module whose tensors are buffers meanwhile.

    Attributes
    ----------
    buffers : dict of tuple of PathStep to str
        The names of the buffers, by their tensors' paths in the attribute's value.
    replaced : set of str
        The buffers of tensors that a call replaces by others.
    made : list of str
        The buffers that the module did not have before.
    """

    def __init__(self, part: torch.nn.Module, attribute: str) -> None:
        self.part = part
        self.buffers: dict[tuple[PathStep, ...], str] = {}
        self.replaced: set[str] = set()
        self.made: list[str] = []
        self._attribute = attribute
        self._value = vars(part).pop(attribute, None)  # None if it already is a buffer
        self._own: dict[str, torch.Tensor | None] = {}  # all buffers of the part, during a call

    def add(self, path: tuple[PathStep, ...], tensor: torch.Tensor, *, replaced: bool) -> None:
        """Make a buffer for a tensor in the value."""
        name = _identifier(self._attribute + "".join(text for _, text in path))
        while hasattr(self.part, name):
            name += "_"
        self.part.register_buffer(name, tensor, persistent=False)
        self.buffers[path] = name
        self.made.append(name)
        if replaced:
            self.replaced.add(name)

    def assign(self) -> None:
        """Note that the attribute is a buffer of the module, which a call replaces."""
        self.buffers[()] = self._attribute
        self.replaced.add(self._attribute)

    def remove(self) -> None:
        """Restore the value."""
        for name in self.made:
            del self.part._buffers[name]
            self.part._non_persistent_buffers_set.discard(name)
        if self.made:
            vars(self.part)[self._attribute] = self._value

    def show(self) -> None:
        """Make it a plain attribute for a call, which may assign to it."""
        self._own = {**self.part._buffers}
        value = self._value
        for path, name in self.buffers.items():
            tensor = self.part._buffers.pop(name)
            if tensor is not None and name in self.replaced:
                tensor = tensor.clone()
            value = put(value, path, tensor)
        vars(self.part)[self._attribute] = value

    def take(self) -> None:
        """Copy the values after the call into the buffers."""
        left = vars(self.part).pop(self._attribute)
        own, self._own = self._own, {}
        buffers = {**own, **self.part._buffers}  # in their original order
        self.part._buffers.clear()
        self.part._buffers.update(buffers)
        for path, name in self.buffers.items():
            value = left
            for key, _ in path:
                value = vars(value)[key] if is_object(value) else value[key]
            buffer = own[name]
            if value is not buffer and buffer is not None:
                buffer.copy_(value)


def _leaves(module: torch.nn.Module) -> dict[AttributePlace, Leaf]:
    """Return the values in the plain attributes of a module, without parameters and buffers."""
    own = {id(x) for x in (*module.parameters(), *module.buffers())}
    return {
        AttributePlace(part, attribute, path): Leaf(value, _version(value))
        for part, attribute, path, value in attribute_leaves(module)
        if id(value) not in own
    }


def _buffers(module: torch.nn.Module) -> dict[AttributePlace, torch.Tensor]:
    return {
        AttributePlace(part, name, ()): tensor
        for part in module.modules()
        for name, tensor in part._buffers.items()
        if tensor is not None
    }


def _parameters(module: torch.nn.Module) -> dict[str, tuple[str, int, int]]:
    """Return, by name, data that show whether a parameter has changed.

    These are its dtype and shape in words; its version, because torch.export also counts writes
    that change nothing; and a checksum, because writes to ``parameter.data`` do not change the
    version.
    """
    return {
        name: (_words(own), _version(own), _checksum(own))
        for name, own in module.named_parameters()
    }


def _checksum(parameter: torch.nn.Parameter) -> int:
    """Return a number that almost every write changes; 0 for a tensor without memory."""
    if isinstance(parameter, LAZY):
        return 0
    is_plain = type(parameter.data) is torch.Tensor and parameter.layout == torch.strided
    if not is_plain or parameter.device.type != "cpu":
        return 0
    own = parameter.detach().resolve_conj().resolve_neg().contiguous()
    return crc32(own.reshape(-1).view(torch.uint8).numpy().data)


def _version(value: Any) -> int:
    """Return how often a tensor has been written to, as far as it counts writes."""
    if not isinstance(value, torch.Tensor) or isinstance(value, LAZY) or value.is_inference():
        return 0
    return value._version


def _differs(
    place: AttributePlace,
    before: Mapping[AttributePlace, Leaf],
    after: Mapping[AttributePlace, Leaf],
) -> bool:
    """Return whether a run has changed a place; objects that are not values are ignored."""
    old, new = (leaves.get(place, Leaf(_NOTHING, 0)) for leaves in (before, after))
    if old.value is new.value:
        return old.version != new.version
    if any(isinstance(leaf.value, torch.Tensor | np.ndarray) for leaf in (old, new)):
        return True
    if not any(isinstance(leaf.value, _NUMBERS) for leaf in (old, new)):
        return False
    return not _same_value(old.value, new.value)


def _same_value(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new or (old != old and new != new))


def _can_be_state(
    place: AttributePlace,
    before: Mapping[AttributePlace, Leaf],
    after: Mapping[AttributePlace, Leaf],
) -> bool:
    """Return whether a place holds a tensor of the same shape and dtype before and after a run."""
    if place not in before or place not in after:
        return False
    old, new = before[place].value, after[place].value
    return old is new or _stays(old, new)


def _stays(old: Any, new: Any) -> bool:
    """Return whether one tensor has replaced another of the same shape and dtype."""
    return (
        type(old) is torch.Tensor
        and type(new) is torch.Tensor
        and old is not new
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )


def _matters(module: torch.nn.Module, example: _Example, call: _ExampleCall) -> bool:
    """Return whether the values that a run leaves in attributes affect the next run.

    The second of two runs is compared with a second run before which the attributes that cannot be
    buffers were restored. A mask, a table of positions or a result that is stored for others to
    read is the same in both.
    """

    def second(factor: float, *, alone: bool) -> tuple[list[Any], list[Any]]:
        """Run once more after a first call; return the results and the values left."""
        state = ModuleState(module)
        try:
            example.run(1.0)
            if alone:
                left = _leaves(module)
                state.restore_attributes()
                for place in call.kept.keys() & left.keys():
                    own = vars(place.part)
                    own[place.attribute] = put(own[place.attribute], place.path, left[place].value)
            results = example.run(factor)
            left = _leaves(module)
            return results, [left.get(place, Leaf(_NOTHING, 0)).value for place in call.others]
        finally:
            state.restore()

    with TORCH:
        try:
            factor = 0.75
            alone = second(factor, alone=True)
        except Exception:  # the module takes its own example alone, perhaps
            factor = 1.0
            alone = second(factor, alone=True)
        try:
            behind = second(factor, alone=False)
        except Exception:
            return True
    return not all(_equal(*pair) for pair in zip(alone, behind, strict=True))


def _only_prepares(module: torch.nn.Module, state: ModuleState, example: _Example) -> bool:
    """Return whether a first call changes the module once, as every other first call does.

    Then the results and effects of a call do not depend on the calls before it.

    Parameters
    ----------
    module : torch.nn.Module
    state : ModuleState
        The state before the first call, to which the module is restored.
    example : _Example
    """

    def last(*factors: float) -> list[Any]:
        try:
            for factor in factors[:-1]:
                example.run(factor)
            results = example.run(factors[-1])
            left = [leaf.value for leaf in _leaves(module).values()]
            every = [*results, *left, *_buffers(module).values()]
            return [x.clone() if isinstance(x, torch.Tensor) else x for x in every]
        finally:
            state.restore()

    other = 0.75
    with TORCH:
        try:
            first = last(other)
            return all(
                _equal(first, last(*before, other)) for before in ([1.0], [other], [1.0, other])
            )
        except Exception:  # the module takes its own example alone, perhaps
            return False


def _equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two lists hold equal values; NaNs are equal."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if (x.shape, x.dtype) != (y.shape, y.dtype):
                return False
            if not torch.allclose(x, y, rtol=0, atol=0, equal_nan=True):
                return False
        elif isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            if x.dtype != y.dtype or x.tobytes() != y.tobytes():
                return False
        elif isinstance(x, torch.Tensor | np.ndarray | _NUMBERS) and not _same_value(x, y):
            return False
    return True


def _told(
    module: torch.nn.Module,
    places: Sequence[AttributePlace],
    before: Mapping[AttributePlace, Leaf],
    after: Mapping[AttributePlace, Leaf],
) -> dict[str, tuple[str, str]]:
    """Return descriptions of values before and after a run, by place."""
    names = {id(part): f"{name}." if name else "" for name, part in module.named_modules()}
    return {
        names[id(place.part)] + place.tail: (_say(place, before), _say(place, after))
        for place in places
    }


def _say(place: AttributePlace, leaves: Mapping[AttributePlace, Leaf]) -> str:
    value = leaves.get(place, Leaf(_NOTHING, 0)).value
    if value is _NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor | np.ndarray):
        return _words(value)
    return f"{value!r:.40}" if steps(value) is None else f"a {type(value).__name__}"


def _words(array: torch.Tensor | np.ndarray) -> str:
    """Return dtype and shape of an array in words."""
    if isinstance(array, LAZY):
        return "uninitialized"
    return f"{str(array.dtype).removeprefix('torch.')}{list(array.shape)}"


def _identifier(text: str) -> str:
    """Return a place in words as a valid name of a buffer."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
