"""Define the types of option fields, and check their values.

A check takes the field's name and a value; it returns the value to keep, or raises InputError.
"""

from __future__ import annotations

import os
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING, TypeVar

from taper_runtime.base.errors import InputError
from taper_runtime.base.file_limits import Limits, check_limits
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import is_one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Check = Callable[[str, object], object]

_Enum = TypeVar("_Enum", bound=IntEnum)

#: The most threads of the C library.
MAX_THREADS = 2**31 - 1

#: The device that always exists.
CPU_DEVICE = "cpu"

#: The ways to open a file.
LOAD_MODES = ("map", "copy")

#: The sources of packed weights: the file, or plain weights when a session is opened.
PACKING = ("stored", "at_open")

#: Where the weights of a session are.
ON_DELEGATE_FAILURE = ("error", "fallback", "forced_fallback", "forced_error")
WEIGHTS_MEMORY = ("mapped", "huge")

#: The types in which users get bfloat16, which numpy lacks.
BFLOAT16 = ("float32", "bits", "ml_dtypes")

#: The algorithms that lay out memory.
ALGORITHMS = ("bump", "greedy_by_size", "disjoint_groups", "best")

_LONGEST_INTERVAL_S = 86400.0
_LONGEST_TIMEOUT_S = 1e9


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels of optimization at load. A plan was optimized at export."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Modes of execution: in the plan's order, or each node as soon as its operands are ready."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """ONNX Runtime's orders of nodes. A plan has the order for which memory was planned."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class MemoryPlanning(NamedTuple):
    """Options for the layout of tensors in memory.

    ``enabled`` applies to all tensors. The other fields apply to tensors whose sizes are computed
    in a run and that are used in a later segment.

    Attributes
    ----------
    enabled : bool
        Whether tensors that are not needed at the same time share memory. If not, results are the
        same and a run takes more memory.
    algorithm : str
        ``"bump"``, which shares nothing; ``"greedy_by_size"``; ``"disjoint_groups"``; or
        ``"best"``, the one with the smallest result.
    interval_s : float
        Seconds between two checks whether a tensor has become larger than ever before.
    deallocate_between_runs : bool
        Whether memory is returned to the system after each run.
    """

    enabled: bool = True
    algorithm: str = "best"
    interval_s: float = 5.0
    deallocate_between_runs: bool = True


def threads(name: str, value: object) -> int:
    """Check a number of threads; 0 is the default."""
    expected = f"a number of threads of at least 1 and at most {MAX_THREADS}, or 0 for the default"
    return _whole(name, value, 0, MAX_THREADS, expected)


def severity(name: str, value: object) -> int:
    """Check a severity of log messages; -1 is the default."""
    expected = "0 (verbose), 1 (info), 2 (warning), 3 (error), 4 (fatal), or -1 for the default"
    return _whole(name, value, -1, 4, expected)


def verbosity(name: str, value: object) -> int:
    """Check a number of at least 0."""
    return _whole(name, value, 0, MAX_THREADS, "a number of at least 0")


def _whole(name: str, value: object, low: int, high: int, expected: str) -> int:
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise InputError(f"{name}: expected {expected}, got {value!r}")
    return number


def flag(name: str, value: object) -> bool:
    """Check a bool, or 0 or 1."""
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise InputError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def text(name: str, value: object) -> str:
    """Check a string."""
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a string, got {type(value).__name__}")
    return value


def path(name: str, value: object) -> str | None:
    """Check a path, or None."""
    if value is None:
        return None
    found = os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else ""
    if not found:
        raise InputError(f"{name}: expected a path or None, got {value!r}")
    return found


def one_of(choices: Collection[str]) -> Check:
    """Return the check of a field that takes one of these strings."""

    def check(name: str, value: object) -> str:
        if not is_one_of(value, choices):
            raise InputError(
                f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}"
            )
        return value

    return check


def device(name: str, value: object) -> str:
    """Check the name of a device."""
    from taper_runtime.base.device import parse_device

    return str(parse_device(value))


def isa(name: str, value: object) -> str | None:
    """Check the name of an ISA level, or None."""
    return None if value is None else text(name, value)


def limits(name: str, value: object) -> Limits:
    """Check the limits of files."""
    return check_limits(value)


def seed(name: str, value: object) -> int | None:
    """Check a seed, or None."""
    # imported here because few plans need it
    from taper_runtime.base.random_state import check_seed

    return check_seed(value)


def member(kind: type[_Enum]) -> Check:
    """Return the check of a field that takes members of this enum."""

    def check(name: str, value: object) -> _Enum:
        if not isinstance(value, kind):
            raise InputError(f"{name}: expected a member of {kind.__name__}, got {value!r}")
        return value

    return check


def mode(name: str, value: object) -> ExecutionMode:
    """Check an execution mode or its name."""
    modes = {"sequential": ExecutionMode.ORT_SEQUENTIAL, "parallel": ExecutionMode.ORT_PARALLEL}
    if isinstance(value, str) and value in modes:
        return modes[value]
    if not isinstance(value, ExecutionMode):
        raise InputError(
            f"{name}: expected a member of ExecutionMode, 'sequential' or 'parallel', got {value!r}"
        )
    return value


def planning(name: str, value: object) -> MemoryPlanning:
    """Check the fields of memory planning."""
    if not isinstance(value, MemoryPlanning):
        raise InputError(f"{name}: expected a SessionOptions.MemoryPlanning, got {value!r}")
    for field in ("enabled", "deallocate_between_runs"):
        flag(f"{name}.{field}", getattr(value, field))
    if value.algorithm not in ALGORITHMS:
        raise InputError(
            f"{name}.algorithm: expected one of {', '.join(ALGORITHMS)}, got {value.algorithm!r}"
        )
    seconds = value.interval_s
    if type(seconds) not in (int, float) or not 0 < seconds < _LONGEST_INTERVAL_S:
        raise InputError(f"{name}.interval_s: expected seconds, more than 0, got {seconds!r}")
    return value


def runs(name: str, value: object) -> int:
    """Check a number of at least 1."""
    return _whole(name, value, 1, MAX_THREADS, "a number of at least 1")


def memory_budget(name: str, value: object) -> int | None:
    """Check a number of bytes from 1 to 2**63 - 1, or None."""
    if value is not None and (type(value) is not int or not 1 <= value < 1 << 63):
        raise InputError(f"{name}: expected bytes, an int from 1 to 2**63 - 1, got {value!r}")
    return value


def frames(name: str, value: object) -> int:
    """Check a number of at least 0."""
    return _whole(name, value, 0, MAX_THREADS, "a number of at least 0")


def interval(name: str, value: object) -> float:
    """Check the seconds between two checks of tensors' sizes."""
    return _seconds(name, value, _LONGEST_INTERVAL_S)


def timeout(name: str, value: object) -> float | None:
    """Check the seconds that a run may take, or None."""
    return None if value is None else _seconds(name, value, _LONGEST_TIMEOUT_S)


def _seconds(name: str, value: object, most: float) -> float:
    if type(value) not in (int, float) or not 0 < value <= most:  # type: ignore[operator]
        raise InputError(f"{name}: expected seconds, more than 0, at most {most:g}, got {value!r}")
    return float(value)  # type: ignore[arg-type]
