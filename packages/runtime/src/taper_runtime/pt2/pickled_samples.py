"""Read the sample inputs of an archive, which torch pickles, without running a pickle.

A pickle is a program for a stack machine. This machine has the instructions that plain data and
tensors need, and calls nothing: what rebuilds a tensor is known by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import aligned_array
from taper_runtime.base.checks import MAX_DEPTH, fail, is_size
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.file_limits import refuse_beyond
from taper_runtime.base.records import NamedTuple
from taper_runtime.pt2.dense_tensors import view_tensor
from taper_runtime.pt2.zipped import parse_members, read_member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.base.file_limits import Limits

#: The classes of storages in torch's pickles, and the dtypes of tensors in them.
_STORAGES = {
    "torch BoolStorage": "bool",
    "torch ByteStorage": "uint8",
    "torch CharStorage": "int8",
    "torch ShortStorage": "int16",
    "torch IntStorage": "int32",
    "torch LongStorage": "int64",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
    "torch FloatStorage": "float32",
    "torch DoubleStorage": "float64",
    "torch ComplexFloatStorage": "complex64",
    "torch ComplexDoubleStorage": "complex128",
}
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_DICT = "collections OrderedDict"

_VALUES = frozenset(
    ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
#: Types of a dict's keys. Tuples that hold each other twice take for ever to be hashed.
_KEYS = frozenset((str, int, float, bool, type(None)))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(NamedTuple):
    """The name of a class or function, as the pickle spells it."""

    name: str


class _StorageBytes(NamedTuple):
    """The bytes of a storage, and the dtype of the tensors in it."""

    record: np.ndarray
    dtype: str


class _Mark(NamedTuple):
    """The place on the stack where the items of a container begin."""


def read_samples(
    content: bytes, limits: Limits, field: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, positional and by name, in a file that ``torch.save`` wrote.

    Parameters
    ----------
    content : bytes
        A zip archive with ``data.pkl``, and a member for each storage.
    limits : Limits
        ``members``, and ``header_bytes`` and ``objects`` of the pickle.
    field : str
        The file's path in errors.

    Raises
    ------
    PlanFormatError
        If it is damaged, exceeds a limit, or holds anything but numbers, texts, None, tensors, and
        lists, tuples and dicts of these.
    """
    members = {
        name.partition("/")[2]: member for name, member in parse_members(content, limits).items()
    }
    if "data.pkl" not in members:
        fail(field, "expected a file of torch.save, with data.pkl", sorted(members)[:5])
    records = {name: read_member(content, member) for name, member in members.items()}
    if bytes(records.get("byteorder", b"little")) != b"little":
        fail(f"{field}.byteorder", "expected 'little'", bytes(records["byteorder"]))
    refuse_beyond(field, "header_bytes", len(records["data.pkl"]), limits.header_bytes)
    try:
        found = _Machine(records, field).run(limits.objects)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, PlanFormatError):
            raise
        raise PlanFormatError(field, f"its pickle is damaged: {error}") from error
    _check_values(found, field, limits)
    if (
        type(found) is not tuple
        or [type(part) for part in found] != [tuple, dict]
        or not all(type(key) is str for key in found[1])
    ):
        fail(field, "expected a tuple of arguments and a dict of named ones", type(found).__name__)
    return found[0], found[1]


class _Machine:
    """The machine that a pickle is a program for.

    Parameters
    ----------
    records : mapping of str to buffer
        The members of the file by name; ``data/0`` and so on are storages.
    field : str
    """

    def __init__(self, records: Mapping[str, memoryview], field: str) -> None:
        self._records = records
        self._field = field
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, most: int) -> Any:
        """Return what the pickle holds; at most so many instructions are read."""
        from pickletools import genops

        for count, (code, argument, _) in enumerate(genops(bytes(self._records["data.pkl"]))):
            refuse_beyond(self._field, "objects", count, most)
            if code.name == "STOP":
                break
            self._step(code.name, argument)
        (found,) = self._stack
        return found

    def _step(self, code: str, argument: Any) -> None:
        """Run one instruction, named as in the module pickletools."""
        stack = self._stack
        if code in _VALUES:
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == "MARK":
            stack.append(_Mark())
        elif code in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif code in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif code == "GLOBAL":
            if argument not in (_TENSOR, _PARAMETER, _DICT, *_STORAGES):
                fail(self._field, "expected plain data and tensors", argument)
            stack.append(_Name(argument))
        elif code in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if code == "EMPTY_LIST" else {})
        elif code in _TUPLES:
            stack[-_TUPLES[code] :] = [tuple(stack[-_TUPLES[code] :])]
        elif code == "TUPLE":
            stack.append(tuple(self._marked()))
        elif code in ("APPEND", "APPENDS"):
            items = [stack.pop()] if code == "APPEND" else self._marked()
            self._container(list).extend(items)
        elif code in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if code == "SETITEM" else self._marked()
            container = self._container(dict)
            if not all(type(key) in _KEYS for key in items[::2]):
                raise TypeError("a key that is no number or text")
            container.update(zip(items[::2], items[1::2], strict=True))
        elif code == "BINPERSID":
            stack.append(self._storage(*stack.pop()))
        elif code == "REDUCE":
            arguments = stack.pop()
            stack.append(self._made(stack.pop(), arguments))
        elif code != "PROTO":
            fail(self._field, "expected plain data and tensors", f"the instruction {code}")

    def _marked(self) -> list[Any]:
        """Take the items after the last mark, and the mark."""
        at = len(self._stack) - 1
        while at >= 0 and type(self._stack[at]) is not _Mark:
            at -= 1
        if at < 0:
            raise ValueError("a container without a beginning")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _container(self, kind: type[Any]) -> Any:
        if type(self._stack[-1]) is not kind:
            raise TypeError(f"items for no {kind.__name__}")
        return self._stack[-1]

    def _storage(self, what: Any, kind: Any, key: Any, place: Any, _: Any) -> _StorageBytes:
        """Return the storage of a member; it lies on a device, ``place``, which is not used."""
        texts = type(what) is type(key) is type(place) is str
        if not texts or what != "storage" or type(kind) is not _Name:
            raise ValueError("a storage of an unknown kind")
        record = np.frombuffer(self._records[f"data/{key}"], np.uint8)
        return _StorageBytes(aligned_array(record), _STORAGES[kind.name])

    def _made(self, function: Any, arguments: Any) -> Any:
        """Return what a known function makes of arguments."""
        if function == _Name(_DICT) and arguments == ():
            return {}
        if function == _Name(_PARAMETER):
            return arguments[0]
        if function != _Name(_TENSOR):
            raise TypeError("a call of no function")
        storage, offset, shape, strides = arguments[:4]
        sizes = (offset, *shape, *strides)
        if type(storage) is not _StorageBytes or not all(map(is_size, sizes)):
            fail(self._field, "expected a dense tensor", arguments[:4])
        field = f"{self._field}.tensor"
        array = view_tensor(storage.record, storage.dtype, shape, strides, offset, field)
        if storage.dtype == "bool" and storage.record.max(initial=0) > 1:
            fail(field, "expected only bytes 0 and 1 in a bool tensor", "others")
        return array


def _check_values(found: Any, field: str, limits: Limits) -> None:
    """Check that nothing but values is nested in a result, which may hold itself."""
    waiting, count = [(found, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        refuse_beyond(field, "objects", count, limits.objects)
        if depth > MAX_DEPTH:
            fail(field, f"expected at most {MAX_DEPTH} levels of nesting", "more")
        if isinstance(value, (list, dict)) or type(value) is tuple:
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            waiting += [(each, depth + 1) for each in inner]
        elif not isinstance(value, (np.ndarray, str, int, float, type(None))):
            fail(field, "expected plain data and tensors", value)
