"""Define the limits of plans, and check single values for all checkers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.sizes import MAX_SIZE, Size, bounds, is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.base.dtypes import DType

#: The alignment in bytes of everything in the arena, and of constants whose size is a multiple of
#: it: one cache line, and the widest vector.
ALIGNMENT = 64

#: The most dims of an array in numpy 1.
MAX_RANK = 32

#: The most bytes of one tensor or view, as :func:`.counted_bytes` counts them: more than a process
#: can address. So every element count, byte stride and offset inside a tensor fits a signed 64-bit
#: integer.
MAX_TENSOR_BYTES = 2**48

MAX_ARENA_BYTES = 2**40

#: The name that a safetensors header reserves.
METADATA_NAME = "__metadata__"

#: The prefix of samples, which are stored beside the constants in the file.
SAMPLE_PREFIX = "sample/"

#: The prefix of weights that are not constants themselves, which are stored beside the constants.
WEIGHT_PREFIX = "weight/"

#: The most nested arrays and objects in attrs, trees and metadata.
MAX_DEPTH = 100

#: The most nested blocks.
MAX_BLOCK_DEPTH = 16

#: The most items of a list in an attr. Its op checks them without a stop, in tens of milliseconds.
MAX_ATTR_ITEMS = 2**16


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def describe(value: object) -> str:
    """Return ``value`` for an error message: short, printable, never recursive."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an array"
    if (
        type(value) is int and not _LEAST <= value <= _LARGEST
    ):  # may have more digits than Python prints
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def tensor_field(name: object) -> str:
    """Return the path of a tensor in a plan file."""
    return f"plan.tensors[{name!r}]"


def fail(field: str, expected: str, got: object) -> NoReturn:
    """Raise :class:`PlanFormatError` with the expected and the actual value."""
    raise PlanFormatError(field, f"{expected}, got {describe(got)}")


#: The least and the largest integer of 64 bits.
_LEAST, _LARGEST = -(2**63), 2**63 - 1


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a 64-bit integer; a bool is not."""
    return type(value) is int and _LEAST <= value <= _LARGEST


def is_size(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is a 64-bit integer of at least 0."""
    return type(value) is int and 0 <= value <= _LARGEST


def check_text(value: object, field: str) -> None:
    """Check that ``value`` is a string that UTF-8 can encode, without lone surrogates."""
    if type(value) is not str:
        fail(field, "expected a string", value)
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        fail(field, "expected a string without lone surrogates", value)


def parse_object(text: object) -> dict[str, Any] | None:
    """Return a JSON object as plain data; None if ``text`` is anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_attr_items(value: object, field: str) -> None:
    """Check that a list in an attr has at most :data:`MAX_ATTR_ITEMS` items."""
    if isinstance(value, (list, tuple)) and len(value) > MAX_ATTR_ITEMS:
        fail(field, f"expected at most {MAX_ATTR_ITEMS} items", len(value))


def check_name(name: object, field: str) -> None:
    """Check that ``name`` is an identifier of at most 100 characters."""
    if not (type(name) is str and name.isascii() and name.isidentifier() and len(name) <= 100):
        fail(field, "expected a name of at most 100 letters, digits and _", name)


#: The type of the limits of a size variable.
_LIMITS = [int, int], [int, Size]


def is_check(limits: tuple[int, int]) -> bool:
    """Return whether the range of a computed size has one value.

    Then the model asserts that the size has this value.
    """
    return limits[0] == limits[1]


def check_variable(name: object, limits: object, *, is_computed: bool = False) -> None:
    """Check the name and the range of a size variable; a computed one may have one value."""
    field = f"plan.sizes[{name!r}]"
    if type(name) is not str or not is_name(name):
        fail(field, "expected a name of letters, digits and _", name)
    if type(limits) is not tuple or [type(limit) for limit in limits] not in _LIMITS:
        fail(field, "expected the least and the largest size", limits)
    low, high = limits
    if type(high) is Size:  # larger values are refused in a run
        high = min(bounds(high)[1], MAX_SIZE)
    if not 0 <= low < high + is_computed <= MAX_SIZE + is_computed:
        raise PlanFormatError(
            field,
            f"expected 0 <= least {'<=' if is_computed else '<'} largest <= {MAX_SIZE}, "
            f"got {describe(low)} and {describe(high)}",
        )


def check_type(
    dtype: object, shape: object, field: str, dtypes: Mapping[str, DType] = DTYPES
) -> None:
    """Check that ``dtype`` is one of ``dtypes`` and ``shape`` a tuple of sizes within the limits.

    The bytes of a shape with size variables are checked at their minimum, and again in a run.
    """
    if type(dtype) is not str or dtype not in dtypes:
        fail(f"{field}.dtype", f"expected one of {', '.join(dtypes)}", dtype)
    if type(shape) is not tuple:
        fail(f"{field}.shape", "expected an array of sizes", shape)
    if len(shape) > MAX_RANK:
        fail(f"{field}.shape", f"expected at most {MAX_RANK} dims", len(shape))
    nbytes = dtypes[dtype].size
    for size in shape:
        if type(size) is int and 0 <= size <= MAX_TENSOR_BYTES:
            nbytes *= size or 1
        elif is_size(size):
            fail(f"{field}.shape", f"expected at most {MAX_TENSOR_BYTES} bytes", size)
        elif type(size) is not Size:
            fail(f"{field}.shape", "expected sizes >= 0", size)
        elif bounds(size)[0] < 0:
            fail(f"{field}.shape", "expected a size expression of at least 0", str(size))
        else:
            nbytes *= size
    if bounds(nbytes)[0] > MAX_TENSOR_BYTES:
        fail(f"{field}.shape", f"expected at most {MAX_TENSOR_BYTES} bytes", nbytes)
