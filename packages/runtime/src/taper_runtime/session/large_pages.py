"""Copy the weights of a session into large pages, of which a CPU keeps more addresses at hand."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.buffers import address, read_only
from taper_runtime.base.checks import ALIGNMENT
from taper_runtime.base.errors import InputError

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

_PAGE = 2 << 20  # bytes of a large page, of x86-64 and of aarch64 with small pages of 4 KiB


def in_large_pages(plan: Plan) -> Plan:
    """Return a plan whose constants lie in memory of the process for which large pages are asked.

    States stay where they are. The system gives large pages as far as it has them.

    Raises
    ------
    InputError
        If the system has no such request.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        raise InputError("weights_memory: expected 'mapped', for this system has no large pages")
    names = [name for name in plan.constants if name not in plan.states]
    arrays = {id(plan.constants[name]): plan.constants[name] for name in names}
    starts, size = {}, 0
    for key, array in arrays.items():
        starts[key] = size
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    # not shared with processes that are forked: the system has settings of its own for that
    memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -address(memory) % _PAGE
    memory.madvise(advice)
    moved = {}
    for key, array in arrays.items():
        copy = np.frombuffer(memory, array.dtype, array.size, first + starts[key])
        copy = copy.reshape(array.shape)
        copy[...] = array
        moved[key] = read_only(copy)
    constants = {**plan.constants, **{name: moved[id(plan.constants[name])] for name in names}}
    return plan._replace(constants=constants)


def copied_bytes(plan: Plan) -> tuple[int, int]:
    """Return the bytes that :func:`in_large_pages` copied, and those of them in large pages."""
    arrays = {id(a): a for name, a in plan.constants.items() if name not in plan.states}
    places = [array.ctypes.data for array in arrays.values() if array.nbytes]
    large, within = 0, False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as file:
        for line in file:
            key, _, rest = line.partition(" ")
            if key == "AnonHugePages:":
                large += within * int(rest.split()[0]) * 1024
            elif not key.endswith(":"):
                low, high = (int(part, 16) for part in key.split("-"))
                within = any(low <= place < high for place in places)
    return sum(array.nbytes for array in arrays.values()), large
