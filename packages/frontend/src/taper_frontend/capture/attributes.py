"""Find tensors in plain attributes that a run of a module replaces: state, as buffers are.

torch.export knows state by its buffers alone. So these tensors are made buffers while a module is
exported, and the module gets its attributes back. What cannot be a buffer, a number or a tensor
whose shape changes, is told of.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any
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
from taper_frontend.capture.turns import TORCH
from taper_frontend.request.notes import Note, of_attributes, of_first_call
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.export import ExportedProgram

#: Of a module that is being exported, the names of the buffers that are attributes.
_ATTRIBUTES: WeakKeyDictionary[torch.nn.Module, frozenset[str]] = WeakKeyDictionary()

_NOTHING = object()

#: What else than tensors is compared by its value.
_NUMBERS = bool | int | float | complex | str | None


class AttributePlace(NamedTuple):
    """The path of a value in a module's plain attributes.

    Attributes
    ----------
    part : torch.nn.Module
        The module whose attribute it is.
    attribute : str
    path : tuple of PathStep
        Where in the attribute's value; empty if it is the value.
    """

    part: torch.nn.Module
    attribute: str
    path: tuple[PathStep, ...]

    @property
    def tail(self) -> str:
        """The place in words, but for the path to the module."""
        return self.attribute + "".join(text for _, text in self.path)


class Leaf(NamedTuple):
    """The content of an attribute at some time.

    Attributes
    ----------
    value : object
    version : int
        Of a tensor, how often it has been written to.
    """

    value: Any
    version: int


@contextmanager
def attributes_as_buffers(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[list[Note]]:
    """Let the tensors in attributes that a run of a module replaces be buffers meanwhile.

    They are found by a run with the example's arguments, after which the module is as it was. A
    module that cannot run them is left to the capture, which tells why.

    A first call may do something once for ever, such as to make a parameter or to rescale a buffer.
    It has done so when the module is captured. A call that changes parameters stays made: a copy of
    them takes too much memory, and if the attributes alone were put back, among them a flag, the
    next call would rescale again. What else every first call does alike is put back at the end.

    Parameters
    ----------
    module : torch.nn.Module
    args, kwargs
        The example's arguments, which the run does not change.

    Yields
    ------
    list of Note
        Of attributes that later runs depend on and that a plan cannot keep as state.
    """
    example = _Example(module, args, kwargs)
    state = ModuleState(module)
    call = _ExampleCall(module, example)
    notes: list[Note] = []
    told: dict[str, tuple[str, str]] = {}
    if call.parameters:
        # their values are gone: back with the old attributes, they would change a second time
        notes += of_first_call(list(call.parameters))
        first, state = state, ModuleState(module)
        call = _ExampleCall(module, example)
        if call.parameters:  # so does every call
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
        registered = _TensorAttributes(module, call.kept, call.assigned)
        yield [*notes, *of_attributes(told)]
    finally:
        if registered is not None:
            registered.remove()
        state.restore()


def drop_unread(module: torch.nn.Module, program: ExportedProgram) -> None:
    """Remove writes to attributes that the program never reads.

    What a module leaves in an attribute for others to see is not state.
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
    is_copy = user.target is torch.ops.aten.copy_.default
    return is_copy and user.args[0] is to and user.args[1] is not to and not user.users


class _Example:
    """Runs of a module on its example's arguments."""

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
            1 for the example itself; for another, the floats are multiplied by it and the others
            turned around along their last axis.
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
    """A call of a module with its example's arguments, and what it leaves in the module.

    Attributes
    ----------
    before, after : dict of AttributePlace to Leaf
        What stands in attributes.
    kept : dict of AttributePlace to torch.Tensor
        What can be a buffer of the attributes that it changes, as it was before.
    others : list of AttributePlace
        The rest of those.
    assigned : list of AttributePlace
        The buffers that it assigns to.
    parameters : dict of str to tuple
        The parameters that it makes, replaces or writes to, by name: what each was, in words, and
        what it has become.
    """

    def __init__(self, module: torch.nn.Module, example: _Example) -> None:
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
        except Exception:  # anyone's code may raise anything; the capture says it better
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
        self.others = [place for place in changed if place not in self.kept]
        now = _parameters(module)
        nothing = "nothing", 0, 0
        self.parameters = {
            name: (parameters.get(name, nothing)[0], now.get(name, nothing)[0])
            for name in {**parameters, **now}
            if parameters.get(name) != now.get(name)
        }

    def matters(self) -> bool:
        """Whether later calls depend on what cannot be a buffer; the module is as before it."""
        return bool(self.others) and _matters(self._module, self._example, self)


class _TensorAttributes:
    """Tensors of a module that lie in buffers: those in attributes, and buffers it assigns to.

    When the module is called it finds them where they were, as plain attributes and in the lists,
    dicts and objects that held them. What the call leaves there is copied into the buffers, which
    stay the same tensors: torch.export takes writes to all buffers, but assignments only to some.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        tensors: Mapping[AttributePlace, torch.Tensor],
        assigned: Sequence[AttributePlace],
    ) -> None:
        self._module = module
        self._groups: dict[tuple[int, str], _Attribute] = {}
        copies: dict[int, torch.Tensor] = {}  # one tensor in two places stays one
        for place, tensor in tensors.items():
            own = copies.setdefault(id(tensor), tensor.detach().clone())
            self._group(place).add(place.path, own)
        for place in assigned:
            self._group(place).buffers[()] = place.attribute
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
        """Give the module its attributes back."""
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
    """An attribute of a module whose tensors lie in buffers.

    Attributes
    ----------
    buffers : dict of tuple of PathStep to str
        The names of the buffers, by where their tensors stand in the attribute's value.
    made : list of str
        Those that the module did not have before.
    """

    def __init__(self, part: torch.nn.Module, attribute: str) -> None:
        self.part = part
        self.buffers: dict[tuple[PathStep, ...], str] = {}
        self.made: list[str] = []
        self._attribute = attribute
        self._value = vars(part).pop(attribute, None)  # None where it is a buffer already
        self._own: dict[str, torch.Tensor | None] = {}  # all buffers of the part, during a call

    def add(self, path: tuple[PathStep, ...], tensor: torch.Tensor) -> None:
        """Make a buffer for a tensor in the value."""
        name = _identifier(self._attribute + "".join(text for _, text in path))
        while hasattr(self.part, name):
            name += "_"
        self.part.register_buffer(name, tensor, persistent=False)
        self.buffers[path] = name
        self.made.append(name)

    def remove(self) -> None:
        """Restore the value."""
        for name in self.made:
            del self.part._buffers[name]
            self.part._non_persistent_buffers_set.discard(name)
        if self.made:
            vars(self.part)[self._attribute] = self._value

    def show(self) -> None:
        """Let a call find a plain attribute, which it may assign to."""
        self._own = {**self.part._buffers}
        value = self._value
        for path, name in self.buffers.items():
            value = put(value, path, self.part._buffers.pop(name))
        vars(self.part)[self._attribute] = value

    def take(self) -> None:
        """Copy what the call has left into the buffers."""
        left = vars(self.part).pop(self._attribute)
        own, self._own = self._own, {}
        buffers = {**own, **self.part._buffers}  # in their order
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
    """Return what stands in the plain attributes of a module, but for parameters and buffers."""
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
    """Return what shows that a parameter has changed, by name.

    That is its dtype and shape, in words, its version, for a write that changes nothing is one to
    torch.export too, and a checksum, for writes to ``parameter.data`` are in no version.
    """
    return {
        name: (_words(own), _version(own), _checksum(own))
        for name, own in module.named_parameters()
    }


def _checksum(parameter: torch.nn.Parameter) -> int:
    """Return a number that all writes change, almost surely; of what has no memory here, 0."""
    if isinstance(parameter, LAZY):
        return 0
    is_plain = type(parameter.data) is torch.Tensor and parameter.layout == torch.strided
    if not is_plain or parameter.device.type != "cpu":
        return 0
    own = parameter.detach().resolve_conj().resolve_neg().contiguous()
    return crc32(own.reshape(-1).view(torch.uint8).numpy().data)


def _version(value: Any) -> int:
    """Return how often a tensor has been written to, as far as it counts that."""
    if not isinstance(value, torch.Tensor) or isinstance(value, LAZY) or value.is_inference():
        return 0
    return value._version


def _differs(
    place: AttributePlace,
    before: Mapping[AttributePlace, Leaf],
    after: Mapping[AttributePlace, Leaf],
) -> bool:
    """Whether a run has left something else in a place; objects that are no values stay apart."""
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
    """Whether a tensor stands in a place before and after a run, of one shape and dtype."""
    if place not in before or place not in after:
        return False
    old, new = before[place].value, after[place].value
    return old is new or _stays(old, new)


def _stays(old: Any, new: Any) -> bool:
    """Whether one tensor has taken the place of another of its shape and dtype."""
    return (
        type(old) is torch.Tensor
        and type(new) is torch.Tensor
        and old is not new
        and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    )


def _matters(module: torch.nn.Module, example: _Example, call: _ExampleCall) -> bool:
    """Whether what a run leaves in attributes changes what the next run gives or leaves.

    The second of two runs is compared with one before which those attributes were put back that can
    be no buffers. A mask, a table of positions or a result that is kept for others to see is the
    same in both.
    """

    def second(factor: float, *, alone: bool) -> tuple[list[Any], list[Any]]:
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
    """Whether a first call changes the module once, as every other first call does.

    Then a call gives and leaves the same whatever calls came before it, or none.

    Parameters
    ----------
    module : torch.nn.Module
    state : ModuleState
        Before the first call; the module is left so.
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
    """Whether two lists hold the same values, NaN like NaN."""
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
    """Return what stands in places before and after a run, in words, by where they are."""
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
    """Return a place in words as the name of a buffer."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
