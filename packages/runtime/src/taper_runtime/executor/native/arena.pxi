# Where blocks of memory lie that are needed at different steps.
from libc.stdint cimport int64_t


cdef struct Block:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset


def lay_out(births, deaths, sizes):
    """Offsets of blocks that must not overlap where they are needed at the same step.

    First fit in order of birth, and first fit largest first: neither is better on every graph, so
    both are tried and the smaller kept.

    Parameters
    ----------
    births, deaths : sequence of int
        The first and the last step at which a block is needed.
    sizes : sequence of int
        Bytes, multiples of TAPER_ALIGNMENT.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = len(sizes)
    cdef Buffer blocks = Buffer(count * sizeof(Block))
    cdef Buffer placed = Buffer(count * sizeof(Block *))
    cdef Block *block = <Block *>blocks.data
    cdef Py_ssize_t i
    for i in range(count):
        block[i].birth, block[i].death, block[i].size = births[i], deaths[i], sizes[i]
    indices = [i for i in range(count) if block[i].size]
    best = None
    for key in (
        lambda i: (births[i], -sizes[i]),
        lambda i: (-sizes[i], births[i]),
    ):
        total = _first_fit(block, sorted(indices, key=key), <Block **>placed.data)
        if best is None or total < best[1]:
            best = [block[i].offset for i in range(count)], total
    return best


cdef int64_t _first_fit(Block *blocks, list order, Block **placed) except -1:
    """Place blocks in this order, each as low as it fits; returns the end of the highest."""
    cdef int64_t total = 0
    cdef int64_t at
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i, k
    cdef Block *block
    for i in order:
        block = &blocks[i]
        at = 0
        for k in range(count):  # by offset
            if placed[k].birth <= block.death and block.birth <= placed[k].death:
                if at + block.size <= placed[k].offset:
                    break
                at = max(at, placed[k].offset + placed[k].size)
        block.offset = at
        total = max(total, at + block.size)
        k = count
        while k > 0 and placed[k - 1].offset > at:
            placed[k] = placed[k - 1]
            k -= 1
        placed[k] = block
        count += 1
    return total


cdef int64_t _aligned(int64_t size) noexcept:
    return (size + TAPER_ALIGNMENT - 1) // TAPER_ALIGNMENT * TAPER_ALIGNMENT
