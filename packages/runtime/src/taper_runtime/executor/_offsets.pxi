"""Assign offsets in an arena to live ranges; a part of ``_program.pyx``.

- :func:`assign_offsets`: the offsets of live ranges, some of which may share bytes.
- :class:`Precedence`: which of them are dead when another is first needed.
"""
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy, memmove

from taper_runtime.native._kernels cimport Buffer
from taper_runtime.native.taper cimport *

from taper_runtime.base.loading import look


# The most pairs of live ranges that placing them in one order compares: it takes a second or less.
# Models need thousands; a file in which thousands of tensors live at once would need billions.
cdef int64_t _MAX_PAIRS = 1 << 22


cdef class Precedence:
    """Partial order of ranges: which of them come before which.

    Parameters
    ----------
    before : sequence of int
        Per range, as bits: the ranges that are dead when it is first needed.
    """

    def __cinit__(self, before):
        cdef Py_ssize_t i
        self.row_bytes = (len(before) + 7) // 8
        self.bits = Buffer(len(before) * self.row_bytes)
        for i, row in enumerate(before):
            packed = row.to_bytes(self.row_bytes, "little")
            memcpy(self.bits.data + i * self.row_bytes, <const char *>packed, self.row_bytes)

    cdef bint has(self, Py_ssize_t earlier, Py_ssize_t later) noexcept:
        """Return whether one range comes before another."""
        cdef const uint8_t *row = <const uint8_t *>self.bits.data + later * self.row_bytes
        return row[earlier >> 3] >> (earlier & 7) & 1


cdef struct Range:
    int64_t birth
    int64_t death
    int64_t size
    int64_t offset
    int64_t live  # bytes that are live at its birth; later, the most that are live while it is
    Py_ssize_t index


ctypedef int (*compare)(const void *, const void *) noexcept nogil


def assign_offsets(ranges, Precedence precedence=None):
    """Return offsets of ranges that do not overlap where they are needed at the same time.

    The algorithm is first fit in order of birth. Where the result is larger than the bytes live at
    any step, two more orders are tried, because none is best on every graph: largest first, and by
    the most bytes that are live during a range, so that the fullest steps are packed first (greedy
    by breadth: Pisarchyk and Lee, arXiv 2001.03288). The latter is not tried with a
    ``precedence``. The smallest result is kept. Beyond :data:`_MAX_PAIRS` the remaining ranges are
    placed above all others.

    Parameters
    ----------
    ranges : sequence of (birth, death, nbytes)
        The first and the last step that need each range, and its bytes.
    precedence : Precedence, optional
        Which ranges come before which. Without it: ranges that die before the other's birth.

    Returns
    -------
    offsets : list of int
        Multiples of TAPER_ALIGNMENT.
    total : int
        Bytes in all.
    """
    cdef Py_ssize_t count = 0
    cdef Buffer memory = Buffer(len(ranges) * sizeof(Range))
    cdef Buffer placed = Buffer(len(ranges) * sizeof(Range *))
    cdef Buffer first = Buffer(len(ranges) * sizeof(int64_t))
    cdef Range *item = <Range *>memory.data
    cdef int64_t *offset = <int64_t *>first.data
    cdef int64_t live = 0  # unknown where ranges have a precedence
    cdef int64_t total
    for i, (birth, death, nbytes) in enumerate(ranges):
        offset[i] = 0
        if nbytes:
            item[count] = Range(birth, death, aligned(nbytes), 0, 0, i)
            count += 1
    total = _place(item, count, _by_birth, <Range **>placed.data, precedence, offset, INT64_MAX)
    for i in range(count):
        live = max(live, item[i].live)
    if total > live:
        _find_peaks(item, count)
        total = _place(item, count, _by_size, <Range **>placed.data, precedence, offset, total)
    if total > live and precedence is None:
        total = _place(item, count, _by_peak, <Range **>placed.data, None, offset, total)
    return [offset[i] for i in range(len(ranges))], total


cdef int64_t _place(
    Range *ranges, Py_ssize_t count, compare order, Range **placed, Precedence precedence,
    int64_t *offset, int64_t total
) except -1:
    """Place ranges in an order; return the total bytes, or ``total`` if that is smaller.

    The offsets are kept, in the order in which the ranges were given, if the total is smaller.
    """
    cdef Py_ssize_t i
    cdef int64_t least
    qsort(ranges, count, sizeof(Range), order)
    least = _first_fit(ranges, count, placed, precedence, order == _by_birth)
    if least < total:
        for i in range(count):
            offset[ranges[i].index] = ranges[i].offset
    return min(least, total)


cdef int _find_peaks(Range *ranges, Py_ssize_t count) except -1:
    """Turn ``live`` of ranges in order of birth into the most that is live while each is needed.

    The live bytes grow only at births.
    """
    cdef Py_ssize_t i, k
    cdef int64_t pairs = 0
    for i in range(count):
        if i % _BETWEEN_LOOKS == 0:
            look()
        for k in range(i + 1, count):
            pairs += 1
            if ranges[k].birth > ranges[i].death or pairs > _MAX_PAIRS:
                break
            ranges[i].live = max(ranges[i].live, ranges[k].live)
    return 0


cdef int64_t _first_fit(
    Range *ranges, Py_ssize_t count, Range **placed, Precedence precedence, bint by_birth
) except -1:
    """Place ranges in this order, each as low as it fits; return the end of the highest.

    ``placed`` holds the ranges that a later one may overlap in time, by offset. Where the order is
    by birth and total, it holds no dead range, and its bytes are then ``live`` of the newest.
    """
    cdef int64_t total = 0
    cdef int64_t held = 0
    cdef int64_t pairs = 0
    cdef Py_ssize_t n = 0
    cdef Py_ssize_t i, k, kept
    cdef Range *item
    for i in range(count):
        if i % _BETWEEN_LOOKS == 0:
            look()
        item = &ranges[i]
        pairs += n
        if pairs > _MAX_PAIRS:
            item.offset = total
            total += item.size
            continue
        if by_birth and precedence is None:
            kept = 0
            for k in range(n):
                if placed[k].death < item.birth:
                    held -= placed[k].size
                else:
                    placed[kept] = placed[k]
                    kept += 1
            n = kept
            held += item.size
            item.live = held
        at = 0
        for k in range(n):
            if _meet(placed[k], item, precedence):
                if at + item.size <= placed[k].offset:
                    break
                at = max(at, placed[k].offset + placed[k].size)
        item.offset = at
        total = max(total, at + item.size)
        k = n
        while k > 0 and placed[k - 1].offset > at:
            k -= 1
        memmove(placed + k + 1, placed + k, (n - k) * sizeof(Range *))
        placed[k] = item
        n += 1
    return total


cdef inline bint _meet(Range *a, Range *b, Precedence precedence) noexcept:
    """Return whether both may be needed at the same time."""
    if precedence is None:
        return a.birth <= b.death and b.birth <= a.death
    return not (precedence.has(a.index, b.index) or precedence.has(b.index, a.index))


cdef int _by_birth(const void *a, const void *b) noexcept nogil:
    """Compare by birth; for the same birth the largest is first, else the order given holds."""
    return _order(
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>b).size - (<Range *>a).size,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _by_peak(const void *a, const void *b) noexcept nogil:
    """Compare by the fullest step first, then by birth, else the order given holds."""
    return _order(
        (<Range *>b).live - (<Range *>a).live,
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _by_size(const void *a, const void *b) noexcept nogil:
    """Compare by size, largest first, then by birth, else the order given holds."""
    return _order(
        (<Range *>b).size - (<Range *>a).size,
        (<Range *>a).birth - (<Range *>b).birth,
        (<Range *>a).index - (<Range *>b).index,
    )


cdef int _order(int64_t first, int64_t second, int64_t third) noexcept nogil:
    """Return the sign of the first number that is not 0."""
    cdef int64_t key = first if first else second if second else third
    return (key > 0) - (key < 0)


cdef int64_t aligned(int64_t size) noexcept:
    return (size + TAPER_ALIGNMENT - 1) // TAPER_ALIGNMENT * TAPER_ALIGNMENT
