"""Call a plan as its module is called: with nested arguments, returning nested results."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.plan.trees import TENSORS, children
from taper_runtime.session.ends import to_user

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from taper_runtime.plan.plan import Plan
    from taper_runtime.plan.trees import Tree


#: How many characters of a call an error shows.
_LONGEST_CALL = 300


class CallAdapter:
    """Converter between the nested arguments and results of a module and an entry's arrays.

    Parameters
    ----------
    plan : Plan
        Of one entry.
    bfloat16 : str
        The form in which users get bfloat16; see :attr:`taper_runtime.SessionOptions.bfloat16`.

    Raises
    ------
    InputError
        If the plan does not record how its inputs or outputs are nested.
    """

    def __init__(self, plan: Plan, bfloat16: str) -> None:
        """Note the names of the positional arguments."""
        if plan.input_tree is None or plan.output_tree is None:
            raise InputError(
                "the plan does not record how arguments and results are nested; "
                "run takes the inputs by name"
            )
        self._plan = plan
        self._bfloat16 = bfloat16
        (_, self._args), (_, self._kwargs) = children(plan.input_tree)
        own = {key for key, _ in children(self._kwargs)}
        # of each positional argument that is an input, the name; None of another
        self._names = [
            child[1] if child[0] in TENSORS and child[1] not in own else None
            for _, child in children(self._args)
        ]

    def feed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the input arrays of a call's arguments, by name.

        They include inputs that no node reads: the captured program may depend on their sizes, so a
        run checks them. The last positional arguments may be given by the names of their inputs.

        Raises
        ------
        InputError
            If the arguments are nested differently from those of the module, or differ in a value
            that became part of the plan. The message names the path.
        """
        found: dict[str, Any] = {}
        if kwargs and len(args) < len(self._names):
            args, kwargs = self._in_place(args, kwargs)
        for what, tree, value in (("args", self._args, args), ("kwargs", self._kwargs, kwargs)):
            try:
                self._take(tree, value, found)
            except _Unfit as unfit:
                path, call = "".join(reversed(unfit.path)), ""
                if not path:  # an argument is missing, or there is one more
                    call = f"; write session({self._call_text()})"
                raise InputError(f"{what}{path}: {unfit}{call}") from None
        return found

    def _in_place(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return a call with the positional arguments in place that it has by name."""
        names = self._names[len(args) :]
        if not all(name in kwargs for name in names):
            return args, kwargs
        rest = {name: value for name, value in kwargs.items() if name not in names}
        return (*args, *(kwargs[str(name)] for name in names)), rest

    def _call_text(self) -> str:
        """Return the arguments of a call, with the names of inputs in place of arrays."""
        parts = [_spelled(child) for _, child in children(self._args)]
        parts += [f"{key}={_spelled(child)}" for key, child in children(self._kwargs)]
        text = ", ".join(parts)
        return text if len(text) <= _LONGEST_CALL else f"{text[:_LONGEST_CALL]}..."

    def with_path(self, message: str) -> str:
        """Return the message of an error with the path of the argument whose input it names."""
        for what, tree in (("args", self._args), ("kwargs", self._kwargs)):
            for path, name in _paths(what, tree):
                if message.startswith(f"input {name!r}"):
                    return f"{path}: {message}"
        return message

    def result(self, outputs: Iterable[np.ndarray]) -> Any:
        """Nest the outputs of a run like the module's results."""
        arrays = dict(zip(self._plan.outputs, outputs, strict=True))
        return _nest(self._plan.output_tree, arrays)

    def samples(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the module was exported with.

        Raises
        ------
        InputError
            If the plan has no samples.
        """
        plan = self._plan
        arrays = {}
        for name in plan.inputs:
            if name not in plan.samples:
                raise InputError(f"the plan has no sample of input {name!r}")
            sample = plan.samples[name].copy()
            arrays[name] = to_user(plan.tensors[name], sample, self._bfloat16)
        args, kwargs = _nest(plan.input_tree, arrays)
        return tuple(args), kwargs

    def _take(self, tree: Tree, value: Any, found: dict[str, Any]) -> None:
        """Find the inputs in a value, which must be nested as ``tree`` says."""
        kind, content = tree
        if kind == "tensor":
            found[content] = _array(value)
        elif kind == "number":
            found[content] = _number(self._plan.tensors[content].dtype, value)
        elif kind == "value":
            if not _same(value, content):
                _fail(f"expected {_say(content)}, the value at export", _say(value))
        else:
            for step, child, item in _items(kind, tree, value):
                try:
                    self._take(child, item, found)
                except _Unfit as unfit:
                    unfit.path.append(step)
                    raise


def _spelled(tree: Tree) -> str:
    """Return a value that is nested as ``tree`` says, as it is written in Python."""
    kind, content = tree
    if kind in TENSORS:
        return str(content)
    if kind == "value":
        return _say(content)
    parts = [(key, _spelled(child)) for key, child in children(tree)]
    if kind == "dict":
        return f"{{{', '.join(f'{key!r}: {text}' for key, text in parts)}}}"
    if kind == "namedtuple":
        return f"{content[0]}({', '.join(f'{key}={text}' for key, text in parts)})"
    inside = ", ".join(text for _, text in parts)
    if kind == "list":
        return f"[{inside}]"
    return f"({inside},)" if len(parts) == 1 else f"({inside})"


def _paths(path: str, tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each input in a tree."""
    kind, content = tree
    if kind in TENSORS:
        yield path, content
    elif kind != "value":
        for index, (key, child) in enumerate(children(tree)):
            step = {"dict": f"[{key!r}]", "namedtuple": f".{key}"}.get(kind, f"[{index}]")
            yield from _paths(path + step, child)


class _Unfit(Exception):
    """Error of a value that does not fit; ``path`` leads to the value, innermost step first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path: list[str] = []


def _fail(expected: str, got: str) -> NoReturn:
    raise _Unfit(f"{expected}, got {got}")


def _items(kind: str, tree: Tree, value: Any) -> list[tuple[str, Tree, Any]]:
    """Return the step to each child, its tree and its value."""
    parts = children(tree)
    if kind == "dict":
        keys = [key for key, _ in parts]
        if not isinstance(value, Mapping):
            _fail(f"expected a dict with the keys {keys}", type(value).__name__)
        if value.keys() != set(keys):
            missing = [key for key in keys if key not in value]
            extra = [key for key in value if key not in keys]
            problems = [f"missing keys {missing}"] * bool(missing)
            problems += [f"unknown keys {extra}"] * bool(extra)
            _fail(f"expected the keys {keys}", " and ".join(problems))
        return [(f"[{key!r}]", child, value[key]) for key, child in parts]
    if kind == "namedtuple":
        fields = [field for field, _ in parts]
        if not isinstance(value, tuple) or getattr(value, "_fields", None) != tuple(fields):
            _fail(f"expected a named tuple {tree[1][0]}({', '.join(fields)})", _kind(value))
        return [
            (f".{field}", child, item) for (field, child), item in zip(parts, value, strict=True)
        ]
    if not isinstance(value, list if kind == "list" else tuple):
        _fail(f"expected a {kind} of {len(parts)}", _kind(value))
    if len(value) != len(parts):
        _fail(f"expected a {kind} of {len(parts)}", f"{len(value)}")
    return [(f"[{i}]", child, item) for (i, child), item in zip(parts, value, strict=True)]


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not isinstance(value, np.ndarray):
        _fail("expected a numpy array", _kind(value))
    return value


def _number(dtype: str, value: Any) -> np.ndarray:
    """Return a Python number as an array without dims."""
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == dtype:
        return value
    is_bool = isinstance(value, (bool, np.bool_))
    try:
        if dtype == "bool":
            number: Any = value if is_bool else None
        elif dtype == "int64":
            number = None if is_bool else index(value)
        else:
            number = float(value) if isinstance(value, (float, np.floating)) else None
        if number is not None:
            return np.array(number, dtype)
    except (TypeError, OverflowError):
        pass
    _fail(f"expected a number of {dtype}", _say(value))


def _same(value: Any, exported: Any) -> bool:
    """Return whether a value, or a scalar of numpy, equals the plan's own; NaN equals NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is not type(exported):
        return False
    return bool(value == exported) or (value != value and exported != exported)


def _nest(tree: Tree, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return arrays, numbers and values nested as ``tree`` says."""
    kind, content = tree
    if kind == "tensor":
        return arrays[content]
    if kind == "number":
        return arrays[content].item()
    if kind == "value":
        return content
    parts = [_nest(child, arrays) for _, child in children(tree)]
    if kind == "list":
        return parts
    if kind == "tuple":
        return tuple(parts)
    keys = [key for key, _ in children(tree)]
    if kind == "dict":
        return dict(zip(keys, parts, strict=True))
    return _named_tuple(content[0], tuple(keys))(*parts)


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return a class of named tuples, the same for all results of one kind."""
    return namedtuple(name, fields)


def _kind(value: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"a named tuple {type(value).__name__}({', '.join(map(str, value._fields))})"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _say(value: Any) -> str:
    """Describe a value for an error message: a plain value itself, otherwise its kind."""
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return _kind(value)
