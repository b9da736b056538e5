"""Keep measured times of kernels in a text file that several processes may write.

Each line is a JSON object: a node by its op, types and attrs; the machine it was measured on; and
the times of each kernel that was measured. Of several lines about one node on one machine the last
one holds. Lines that cannot be read, and those of other machines, are left out with a reason.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.file.mapping import check_path, open_regular
from taper_runtime.file.plain_data import to_json
from taper_runtime.file.replacing import replace_file
from taper_runtime.formats import PLAIN
from taper_runtime.ops.opdef import is_contiguous

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from taper_runtime.machine.choices import ChosenNode
    from taper_runtime.ops.opdef import TensorType

#: A file is written anew once more than this many lines, and more than half of all, are superseded.
_SUPERSEDED = 100

#: The most characters of a line that a reason shows, and the most reasons for damaged lines.
_SHOWN, _REASONS = 60, 10


class Quartiles(NamedTuple):
    """Times of several runs in nanoseconds: a quarter of them took less than ``low``.

    Half of them took less than ``median``, and a quarter more than ``high``.
    """

    low: float
    median: float
    high: float


class MachineSetting(NamedTuple):
    """Machine and settings on which times depend besides the node.

    Attributes
    ----------
    isa : str
        The ISA level.
    cpu : str
        The CPU's model.
    threads : int
        How many threads may compute a node.
    version : str
        Of this package, which has the kernels.
    """

    isa: str
    cpu: str
    threads: int
    version: str


class NodeKey(NamedTuple):
    """Key of a node: all that its kernels know of it.

    Attributes
    ----------
    op : str
    inputs : tuple of str or None
        Dtype, shape and format of each; strides too, where they are not row-major.
    outputs : tuple of str
    attrs : str
        As JSON.
    """

    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: str


class Measurement(NamedTuple):
    """The times of a node's kernels on one machine.

    Attributes
    ----------
    node : NodeKey
    machine : MachineSetting
    ns : mapping of str to Quartiles
        By kernel, or kernel and variant: ``"f32_matmul dot"``.
    """

    node: NodeKey
    machine: MachineSetting
    ns: Mapping[str, Quartiles]


class Measurements(NamedTuple):
    """The measurements of one machine in a file.

    Attributes
    ----------
    path : str
    machine : MachineSetting
    by_node : mapping of NodeKey to mapping of str to Quartiles
    skipped : tuple of str
        Why lines were left out.
    """

    path: str
    machine: MachineSetting
    by_node: Mapping[NodeKey, Mapping[str, Quartiles]]
    skipped: tuple[str, ...]

    def find(self, node: NodeKey, names: Sequence[str]) -> list[Quartiles] | None:
        """Return the times of kernels of a node by name; None unless each of them is known."""
        known = self.by_node.get(node)
        if known is None or not all(name in known for name in names):
            return None
        return [known[name] for name in names]


def node_key(node: ChosenNode) -> NodeKey:
    """Return the key of a node."""
    count = len(node.inputs)
    inputs = zip(node.inputs, node.strides[:count], strict=True)
    outputs = zip(node.outputs, node.strides[count:], strict=True)
    return NodeKey(
        node.op.name,
        tuple(None if type_ is None else type_text(type_, strides) for type_, strides in inputs),
        tuple(type_text(type_, strides) for type_, strides in outputs),
        _json(to_json(dict(node.attrs), "attrs")),
    )


def _json(data: object) -> str:
    """Return one spelling of plain data."""
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def type_text(type_: TensorType, strides: Sequence[int] | None = None) -> str:
    """Return dtype, shape and format, and the strides if they are not row-major."""
    text = f"{type_.dtype}{_numbers(type_.shape)}"
    if type_.format != PLAIN:
        text += f" {type_.format}"
    shape = type_.storage.shape
    if strides is not None and not is_contiguous(shape, tuple(strides)):
        # the stride of a dim of size 1 has no meaning
        text += (
            f" strides {_numbers(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))}"
        )
    return text


def _numbers(values: Iterable[int]) -> str:
    return f"[{','.join(map(str, values))}]"


# -- reading ---------------------------------------------------------------------------------------


def read_measurements(path: str | os.PathLike[str], machine: MachineSetting) -> Measurements:
    """Read the measurements of a machine from a file; a file that did not change is read once.

    Raises
    ------
    InputError
        If the file has lines, but not one that is a measurement, or the path cannot name a file.
    OSError
        If the file cannot be read, or is not a regular file.
    """
    check_path(path)
    path = os.path.abspath(path)
    status = os.stat(path)
    return _read(path, machine, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=8)
def _read(path: str, machine: MachineSetting, *_: int) -> Measurements:
    """Return the measurements of one state of a file."""
    measured, damaged = _parse_file(path)
    by_node, others = {}, Counter[str]()
    for each in measured:
        if each.machine == machine:
            by_node[each.node] = each.ns
        else:
            others[_difference(each.machine, machine)] += 1
    skipped = [*damaged[:_REASONS]]
    if len(damaged) > _REASONS:
        skipped.append(f"{counted(len(damaged) - _REASONS, 'further line')}: damaged")
    skipped += [f"{counted(count, 'line')}: {reason}" for reason, count in others.items()]
    return Measurements(path, machine, by_node, tuple(skipped))


def _difference(other: MachineSetting, own: MachineSetting) -> str:
    """Say in which fields another machine differs."""
    parts = [
        f"{field} {own_value!r}, got {value!r}"
        for field, own_value, value in zip(own._fields, own, other, strict=True)
        if own_value != value
    ]
    return f"expected {', and '.join(parts)}"


def _parse_file(path: str) -> tuple[list[Measurement], list[str]]:
    """Return a file's measurements in order, and a reason for each damaged line.

    Raises
    ------
    InputError
        If no line is a measurement.
    """
    with open(open_regular(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), "rb") as file:
        lines = file.read().split(b"\n")
    measured, damaged = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            measured.append(_parse(line))
        except (ValueError, TypeError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            damaged.append(f"line {number}: expected a measurement: {reason[:_SHOWN]}")
    if damaged and not measured:
        raise InputError(f"{path}: expected a database of `taper tune`; {damaged[0]}")
    return measured, damaged


def _parse(line: bytes) -> Measurement:
    """Return the measurement on a line; raise ValueError or TypeError if it is not one."""
    data = json.loads(line.decode())
    if not isinstance(data, dict) or data.keys() != _FIELDS.keys():
        raise ValueError(f"the fields are not {', '.join(_FIELDS)}")
    for field, kind in _FIELDS.items():
        if type(data[field]) is not kind:
            raise ValueError(f"{field}: got {data[field]!r}")
    inputs, outputs = tuple(data["inputs"]), tuple(data["outputs"])
    if not all(
        type(each) is str for each in (*(each for each in inputs if each is not None), *outputs)
    ):
        raise ValueError("inputs, outputs: a type is no text")
    node = NodeKey(data["op"], inputs, outputs, _json(data["attrs"]))
    machine = MachineSetting(*(data[field] for field in MachineSetting._fields))
    return Measurement(node, machine, {n: _quartiles(n, each) for n, each in data["ns"].items()})


def _quartiles(name: str, values: Any) -> Quartiles:
    if not (
        type(values) is list
        and len(values) == 3
        and all(type(each) in (int, float) for each in values)
        and 0 < values[0] <= values[1] <= values[2] < float("inf")
    ):
        raise ValueError(f"{name!r}: {values!r} are no quartiles")
    return Quartiles(*map(float, values))


#: The fields of a line, each with its type.
_FIELDS = {
    "op": str,
    "inputs": list,
    "outputs": list,
    "attrs": dict,
    "isa": str,
    "cpu": str,
    "threads": int,
    "version": str,
    "ns": dict,
}


# -- writing ---------------------------------------------------------------------------------------


def append_measurements(path: str | os.PathLike[str], measured: Sequence[Measurement]) -> None:
    """Add measurements to a file; it is made if it does not exist.

    Other processes may do the same at the same time: a lock on ``path`` with ``.lock`` added, a
    file that stays, lets one of them write after the other. A file in which most lines are
    superseded is replaced by one without these, and without damaged lines.

    Raises
    ------
    InputError
        If the file has lines, but not one that is a measurement: it is left as it is.
    OSError
        If the file cannot be written.
    """
    path = os.path.abspath(path)
    with _locked(f"{path}.lock"):
        stored = _parse_file(path)[0] if os.path.exists(path) else []
        latest = {each[:2]: each for each in (*stored, *measured)}
        superseded = len(stored) + len(measured) - len(latest)
        if superseded > max(_SUPERSEDED, len(latest)):
            replace_file(path, map(_line, latest.values()))
            return
        with open(path, "a+b") as file:
            if file.tell() and _last_byte(file) != b"\n":  # of a process that was killed
                file.write(b"\n")
            file.write(b"".join(map(_line, measured)))


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last


def _line(measured: Measurement) -> bytes:
    node, machine, ns = measured
    data = {
        "op": node.op,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "attrs": json.loads(node.attrs),
        **machine._asdict(),
        "ns": ns,
    }
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock on a file, which is made if it does not exist."""
    with open(path, "ab") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            while True:
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # tries for ten seconds
                    break
                except OSError as error:
                    if error.errno not in (13, 36):  # another process has it
                        raise
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file releases it
