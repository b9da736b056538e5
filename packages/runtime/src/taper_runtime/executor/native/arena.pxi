# Where blocks of memory lie that are needed at different steps.
from libc.stdint cimport int64_t


cdef struct Block:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset


def assign_offsets(blocks):
    """Return offsets of blocks that do not overlap where they are needed at the same step.

    First fit in order of birth, and first fit largest first: neither is better on every graph, so
    both are tried and the smaller kept.

    Parameters
    ----------
    blocks : sequence of (birth, death, nbytes)
        The first and the last step at which each is needed, and its bytes.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = len(blocks)
    cdef Buffer memory = Buffer(count * sizeof(Block))
    cdef Buffer placed = Buffer(count * sizeof(Block *))
    cdef Block *block = <Block *>memory.data
    cdef Py_ssize_t i
    by_birth, by_size = [], []
    for i, (birth, death, nbytes) in enumerate(blocks):
        block[i].birth, block[i].death, block[i].size = birth, death, _aligned(nbytes)
        if nbytes:
            by_birth.append((birth, -block[i].size, i))
            by_size.append((-block[i].size, birth, i))
    best = None
    for order in (sorted(by_birth), sorted(by_size)):
        total = _first_fit(block, [i for _, _, i in order], <Block **>placed.data)
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
