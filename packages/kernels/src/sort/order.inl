/*
 * Finds the first `count` places of one line in the order of its keys; equal keys are in the order
 * of their places. Included once per width of the keys, with
 *
 *     NAME(x)             x with the width
 *     KEY, ENTRY          a key; a key and its place
 *     ENTRY_OF(key, i), ENTRY_KEY(e), ENTRY_PLACE(e)
 *
 * Where `count` is very small, the entries are kept in order and each new one is inserted.
 * Otherwise they are collected in a buffer, in the order of their places. Whenever it is full, and
 * at the end, it is cut to the first `count`; after a cut only keys below the limit of those that
 * stay are added, because an equal key has a later place. What stays at the end is sorted.
 */

/* Inserts into a[0..n], behind equal entries. */
static inline void NAME(sort_insert)(ENTRY *a, int64_t n, ENTRY e) {
    for (; n > 0 && ENTRY_KEY(e) < ENTRY_KEY(a[n - 1]); n--)
        a[n] = a[n - 1];
    a[n] = e;
}

/* Sorts n <= SORT_FEW entries into `to`, and keeps equal ones in order. An entry's place is the
 * number of smaller keys, which vectors count, behind the equal entries before it. */
static void NAME(sort_few)(const ENTRY *a, ENTRY *to, int64_t n) {
    KEY keys[SORT_FEW];
    int32_t equal[SORT_FEW]; /* entries so far, by the number of smaller keys */
    const int64_t whole = (n + SORT_LANES - 1) / SORT_LANES * SORT_LANES;
    for (int64_t i = 0; i < n; i++)
        keys[i] = ENTRY_KEY(a[i]);
    for (int64_t i = n; i < whole; i++)
        keys[i] = (KEY)-1; /* smaller than none */
    memset(equal, 0, sizeof equal);
    for (int64_t i = 0; i < n; i++) {
        KEY smaller = 0;
        for (int64_t j = 0; j < whole; j++)
            smaller += keys[j] < keys[i];
        to[(int64_t)smaller + equal[smaller]++] = a[i];
    }
}

/* Sorts, and keeps equal entries in order; spare is as large as a. Goes digit by digit from the
 * lowest, and skips digits that all entries share. Returns the buffer with the sorted entries: a or
 * spare. */
static ENTRY *NAME(sort_entries)(ENTRY *a, ENTRY *spare, int64_t n, uint32_t *counts) {
    enum { KEY_BITS = 8 * sizeof(KEY) };
    if (n <= SORT_FEW) {
        NAME(sort_few)(a, spare, n);
        return spare;
    }
    const int bits = n < SORT_MANY ? 8 : SORT_DIGIT;
    const int digits = (KEY_BITS + bits - 1) / bits;
    const int64_t values = INT64_C(1) << bits;
    const KEY mask = (KEY)(values - 1);
    memset(counts, 0, (size_t)(digits * values) * sizeof *counts);
    for (int64_t i = 0; i < n; i++) {
        KEY key = ENTRY_KEY(a[i]);
        for (int d = 0; d < digits; d++, key >>= bits)
            counts[d * values + (int64_t)(key & mask)]++;
    }
    for (int d = 0; d < digits; d++) {
        uint32_t *at = counts + d * values;
        const int shift = d * bits;
        if (at[ENTRY_KEY(a[0]) >> shift & mask] == n)
            continue;
        uint32_t sum = 0;
        for (int64_t v = 0; v < values; v++) {
            const uint32_t of_value = at[v];
            at[v] = sum;
            sum += of_value;
        }
        for (int64_t i = 0; i < n; i++)
            spare[at[ENTRY_KEY(a[i]) >> shift & mask]++] = a[i];
        ENTRY *sorted = spare;
        spare = a;
        a = sorted;
    }
    return a;
}

/* Keeps the first `count` of n entries in the order of their keys, 0 < count < n, and leaves them
 * in the order of their places. Goes digit by digit from the highest, and counts the entries that
 * share the digits so far with the last one to keep. Returns a key that none of those kept is
 * above. */
static KEY NAME(sort_cut)(ENTRY *a, int64_t n, int64_t count, uint32_t *counts) {
    enum { DIGIT = 8, VALUES = 1 << DIGIT };
    KEY limit = 0; /* the digits so far */
    int shift = 8 * sizeof(KEY);
    int64_t left = count; /* to keep of the entries that share them */
    bool all = false;
    for (KEY shared = 0; shift > 0 && !all; shared |= (KEY)(VALUES - 1) << shift) {
        int64_t digit = 0;
        shift -= DIGIT;
        memset(counts, 0, VALUES * sizeof *counts);
        for (int64_t i = 0; i < n; i++) {
            const KEY key = ENTRY_KEY(a[i]);
            counts[key >> shift & (VALUES - 1)] += ((key ^ limit) & shared) == 0;
        }
        for (; counts[digit] < left; digit++)
            left -= counts[digit];
        limit |= (KEY)digit << shift;
        all = counts[digit] == left;
    }
    limit |= ((KEY)1 << shift) - 1;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) { /* no branch, which would be mispredicted */
        const KEY key = ENTRY_KEY(a[i]);
        const bool last = key == limit;
        a[kept] = a[i];
        kept += key < limit || (last && (all || left > 0));
        left -= last;
    }
    return limit;
}

static void NAME(sort_line)(const struct argsort_state *s, const void *x, int64_t *y,
                            void *scratch) {
    uint32_t *counts = scratch;
    ENTRY *a = (ENTRY *)((char *)scratch + SORT_COUNTS_BYTES), *spare = a + s->capacity;
    KEY keys[SORT_BLOCK], limit = 0;
    const KEY flip = s->descending ? (KEY)-1 : 0;
    int64_t n = 0; /* in the buffer */
    bool limited = false;
    for (int64_t begin = 0; begin < s->n; begin += SORT_BLOCK) {
        const int64_t block = i64_min(SORT_BLOCK, s->n - begin);
        s->NAME(keys)(keys, (const char *)x + begin * s->step * s->size, s->step, block, flip);
        if (limited) {
            KEY least = (KEY)-1;
            for (int64_t i = 0; i < block; i++)
                least = keys[i] < least ? keys[i] : least;
            if (least >= limit)
                continue;
        }
        for (int64_t i = 0; i < block; i++) {
            if (limited && keys[i] >= limit)
                continue;
            if (s->count <= SORT_KEPT) {
                n -= n == s->count; /* the last entry is dropped */
                NAME(sort_insert)(a, n++, ENTRY_OF(keys[i], begin + i));
                limited = n == s->count;
                limit = ENTRY_KEY(a[n - 1]);
                continue;
            }
            a[n++] = ENTRY_OF(keys[i], begin + i);
            if (n == s->capacity && n > s->count) {
                limit = NAME(sort_cut)(a, n, s->count, counts);
                n = s->count;
                limited = true;
            }
        }
    }
    if (s->count > SORT_KEPT) {
        if (n > s->count)
            NAME(sort_cut)(a, n, s->count, counts);
        a = NAME(sort_entries)(a, spare, s->count, counts);
    }
    for (int64_t i = 0; i < s->count; i++)
        y[i * s->inner] = (int64_t)ENTRY_PLACE(a[i]);
}

#undef NAME
#undef KEY
#undef ENTRY
#undef ENTRY_OF
#undef ENTRY_KEY
#undef ENTRY_PLACE
