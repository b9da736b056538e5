# cython: language_level=3
"""Where blocks of memory lie that are not needed at the same time.

- :class:`Precedence`: which blocks nobody needs any more when another is needed first.
- :func:`assign_offsets`: offsets of blocks, some of which may share bytes.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memmove

from taper_runtime.executor._kernels cimport Buffer
from taper_runtime.executor.taper cimport TAPER_ALIGNMENT


cdef class Precedence:
    """Which of some blocks come before which, where that is no total order.

    Parameters
    ----------
    before : sequence of int
        Per block, bits: those that nobody needs any more when the block is needed first.
    """

    def __init__(self, before):
        cdef Py_ssize_t i
        self.row_bytes = (len(before) + 7) // 8
        self.bits = Buffer(len(before) * self.row_bytes)
        for i, row in enumerate(before):
            packed = row.to_bytes(self.row_bytes, "little")
            memcpy(self.bits.data + i * self.row_bytes, <const char *>packed, self.row_bytes)

    cdef bint has(self, Py_ssize_t earlier, Py_ssize_t later) noexcept:
        """Whether one block comes before another."""
        cdef const uint8_t *row = <const uint8_t *>self.bits.data + later * self.row_bytes
        return row[earlier >> 3] >> (earlier & 7) & 1


cdef struct Block:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset
    Py_ssize_t index


def assign_offsets(blocks, Precedence precedence=None):
    """Return offsets of blocks that do not overlap where they are needed at the same time.

    First fit in order of birth; where that takes more than is live at some step, first fit largest
    first too, and the smaller of both is kept: neither is better on every graph.

    Parameters
    ----------
    blocks : sequence of (birth, death, nbytes)
        The first and the last step at which each is needed, and its bytes.
    precedence : Precedence, optional
        Which blocks come before which. Without it: those that die before the other is born.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = 0
    cdef Buffer memory = Buffer(len(blocks) * sizeof(Block))
    cdef Buffer placed = Buffer(len(blocks) * sizeof(Block))
    cdef Buffer first = Buffer(len(blocks) * sizeof(int64_t))
    cdef Block *block = <Block *>memory.data
    cdef int64_t *offset = <int64_t *>first.data
    cdef int64_t live = 0
    cdef int64_t total, least
    for i, (birth, death, nbytes) in enumerate(blocks):
        offset[i] = 0
        if nbytes:
            block[count] = Block(birth, death, aligned(nbytes), 0, i)
            count += 1
    qsort(block, count, sizeof(Block), _by_birth)
    total = _first_fit(block, count, <Block *>placed.data, precedence, True, &live)
    for i in range(count):
        offset[block[i].index] = block[i].offset
    if total > live or precedence is not None:
        qsort(block, count, sizeof(Block), _by_size)
        least = _first_fit(block, count, <Block *>placed.data, precedence, False, &live)
        if least < total:
            total = least
            for i in range(count):
                offset[block[i].index] = block[i].offset
    return [offset[i] for i in range(len(blocks))], total


cdef int64_t _first_fit(
    Block *blocks, Py_ssize_t count, Block *placed, Precedence precedence, bint by_birth,
    int64_t *live
) noexcept:
    """Place blocks in this order, each as low as it fits; returns the end of the highest.

    ``placed`` holds those that a later one may meet, by offset: where the order is by birth and
    total, none that is dead. ``live`` is then the most bytes that are in it at a time.
    """
    cdef int64_t total = 0
    cdef int64_t held = 0
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t i, k, kept
    cdef Block *block
    live[0] = 0
    for i in range(count):
        block = &blocks[i]
        if by_birth and precedence is None:
            kept = 0
            for k in range(n):
                if placed[k].death < block.birth:
                    held -= placed[k].size
                else:
                    placed[kept] = placed[k]
                    kept += 1
            n = kept
            held += block.size
            live[0] = max(live[0], held)
        at = 0
        for k in range(n):
            if _meet(&placed[k], block, precedence):
                if at + block.size <= placed[k].offset:
                    break
                at = max(at, placed[k].offset + placed[k].size)
        block.offset = at
        total = max(total, at + block.size)
        k = n
        while k > 0 and placed[k - 1].offset > at:
            k -= 1
        memmove(placed + k + 1, placed + k, (n - k) * sizeof(Block))
        placed[k] = block[0]
        n += 1
    return total


cdef inline bint _meet(Block *a, Block *b, Precedence precedence) noexcept:
    """Whether both may be needed at the same time."""
    if precedence is None:
        return a.birth <= b.death and b.birth <= a.death
    return not (precedence.has(a.index, b.index) or precedence.has(b.index, a.index))


cdef int _by_birth(const void *a, const void *b) noexcept nogil:
    """By birth, of one birth the largest first, else as given."""
    return _order(
        (<Block *>a).birth - (<Block *>b).birth,
        (<Block *>b).size - (<Block *>a).size,
        (<Block *>a).index - (<Block *>b).index,
    )


cdef int _by_size(const void *a, const void *b) noexcept nogil:
    """Largest first, of one size by birth, else as given."""
    return _order(
        (<Block *>b).size - (<Block *>a).size,
        (<Block *>a).birth - (<Block *>b).birth,
        (<Block *>a).index - (<Block *>b).index,
    )


cdef int _order(int64_t first, int64_t second, int64_t third) noexcept nogil:
    """The sign of the first that is not 0."""
    cdef int64_t key = first if first else second if second else third
    return (key > 0) - (key < 0)


cdef int64_t aligned(int64_t size) noexcept:
    return (size + TAPER_ALIGNMENT - 1) // TAPER_ALIGNMENT * TAPER_ALIGNMENT
