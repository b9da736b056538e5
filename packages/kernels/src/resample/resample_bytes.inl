/*
 * Sums of bytes with whole weights of at most 16 bits: of rows, and of columns of one byte each.
 *
 * Vectors compute columns in parts: up to RESAMPLE_PART next columns, each in a lane of 4 bytes. A
 * step of a part adds two taps of each of its columns. It loads 16 bytes of x, moves the two bytes
 * of each lane into it, and multiplies them. So interleaved channels need no gathers: the taps of a
 * few pixels lie beside each other. RESAMPLE_PARTS parts form a chunk: vector v has parts v,
 * 4 + v, 8 + v..., so that packing the four vectors orders the columns.
 *
 * Where vectors can pick 16-bit elements and the taps of V_LEN columns lie within RESAMPLE_WORDS
 * elements, rows are widened to words first. A step then picks two taps of each column from two
 * loads; vector v of a chunk has its columns V_LEN * v and on.
 */

enum {
    RESAMPLE_PART = 4,                                     /* most columns of a part */
    RESAMPLE_PARTS = V_LEN,                                /* parts of a chunk */
    RESAMPLE_VECTORS = 4,                                  /* vectors of a chunk */
    RESAMPLE_LOAD = 16,                                    /* bytes that a step of a part loads */
    RESAMPLE_HALF = 16,                                    /* words in half of a vector */
    RESAMPLE_WORDS = 64,                                   /* words that a step picks from */
    RESAMPLE_CHUNK_BYTES = RESAMPLE_PARTS * RESAMPLE_PART, /* most columns of a chunk */
};

/* A step of a chunk. */
typedef struct resample_step {
    int32_t at[RESAMPLE_VECTORS][V_LEN / 4]; /* the byte of the row that each part loads from */
    int32_t taken[RESAMPLE_VECTORS][V_LEN];  /* for vi_shuffle_8: two taps of each lane */
    int32_t weight[RESAMPLE_VECTORS][V_LEN]; /* their weights, 16 bits each */
} resample_step;

V_INLINE uint8_t resample_byte(int32_t sum, int64_t shift) {
    sum >>= shift; /* then in two steps, which compilers make vector instructions of */
    sum = sum < 0 ? 0 : sum;
    return (uint8_t)(sum > UINT8_MAX ? UINT8_MAX : sum);
}

/* Returns two weights of 16 bits as one number, the first in its lower bits. */
V_INLINE int32_t resample_pair(int32_t first, int32_t second) {
    return (int32_t)(((uint32_t)first & 0xffff) | (uint32_t)second << 16);
}

/* ---- rows ---- */

static void resample_sum_few(uint8_t *restrict y, const resample_work *w, int64_t taps,
                             int64_t shift, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int32_t sum = 1 << shift >> 1;
        for (int64_t k = 0; k < taps; k++)
            sum += w->weights[k] * w->taken[k][i];
        y[i] = resample_byte(sum, shift);
    }
}

/* Sums as many elements as a vector has bytes, two rows at a time. */
V_INLINE void resample_sum_vector(uint8_t *y, const resample_work *w, int64_t taps, int64_t shift,
                                  int64_t i) {
    const vi zero = vi_set1(0);
    vi sum[RESAMPLE_VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < RESAMPLE_VECTORS; v++)
        sum[v] = vi_set1(1 << shift >> 1);
    for (int64_t k = 0; k < taps; k += 2) {
        const bool two = k + 1 < taps;
        const vi weight = vi_set1(resample_pair(w->weights[k], two ? w->weights[k + 1] : 0));
        const vi a = vi_load_parts(w->taken[k] + i, 16);
        const vi b = two ? vi_load_parts(w->taken[k + 1] + i, 16) : zero;
        const vi low = vi_zip_low_8(a, b), high = vi_zip_high_8(a, b);
        sum[0] = vi_add(sum[0], vi_madd_16(vi_zip_low_8(low, zero), weight));
        sum[1] = vi_add(sum[1], vi_madd_16(vi_zip_high_8(low, zero), weight));
        sum[2] = vi_add(sum[2], vi_madd_16(vi_zip_low_8(high, zero), weight));
        sum[3] = vi_add(sum[3], vi_madd_16(vi_zip_high_8(high, zero), weight));
    }
#pragma GCC unroll 16
    for (int v = 0; v < RESAMPLE_VECTORS; v++)
        sum[v] = vi_sar_by(sum[v], (int)shift);
    const vi bytes = vi_pack_bytes(sum[0], sum[1], sum[2], sum[3]);
    memcpy(y + i, &bytes, sizeof bytes);
}

/* Sums rows or pixels of n bytes. The last vector may compute some bytes again. */
static void resample_sum_bytes(const resample_work *w, uint8_t *y, int64_t taps, int64_t shift,
                               int64_t n) {
    const int64_t step = sizeof(vi);
    if (n < step) {
        resample_sum_few(y, w, taps, shift, n);
        return;
    }
    for (int64_t i = 0; i < n; i += step)
        resample_sum_vector(y, w, taps, shift, i64_min(i, n - step));
}

/* ---- columns ---- */

/* Returns how many of at most n columns one part can hold; 0 if two taps of one column are too far
 * apart. */
static int64_t resample_part(const resample_axis *axis, const int32_t *index, int64_t n) {
    n = i64_min(n, RESAMPLE_PART);
    for (int64_t k = 0; k < axis->taps; k += 2, index += 2 * axis->entries) {
        const int32_t *other = k + 1 < axis->taps ? index + axis->entries : index;
        int64_t low = index[0], high = other[0], j = 0;
        for (; j < n; j++) {
            low = i64_min(low, index[j]);
            high = i64_max(high, other[j]);
            if (high - low >= RESAMPLE_LOAD)
                break;
        }
        n = j;
    }
    return n;
}

/* Returns how many chunks the columns begin to end - 1 need; 0 if vectors cannot compute them. */
static int64_t resample_chunks(const resample_axis *axis, const int32_t *table, int64_t begin,
                               int64_t end) {
    int64_t parts = 0;
    for (int64_t c = begin; c < end; parts++) {
        const int64_t n = resample_part(axis, table + axis->at + c, end - c);
        if (n == 0)
            return 0;
        c += n;
    }
    return i64_ceil_div(parts, RESAMPLE_PARTS);
}

/* Returns the number of 4-byte values that `count` chunks need. */
V_INLINE int64_t resample_chunk_places(const resample_axis *axis, int64_t count) {
    const int64_t step = sizeof(resample_step) / sizeof(int32_t);
    return count * (RESAMPLE_PARTS + i64_ceil_div(axis->taps, 2) * step);
}

/* Prepares the columns begin to end - 1. low[part] is the part's first column, end - begin of a
 * part without columns; from has the steps of each chunk. */
static void resample_begin_bytes(const resample_work *w, int64_t begin, int64_t end) {
    const resample_axis *axis = &w->s->columns;
    const int64_t steps = i64_ceil_div(axis->taps, 2);
    resample_step *step = (resample_step *)(void *)w->from;
    memset(step, 0, (size_t)(w->s->chunks * steps) * sizeof *step);
    int64_t c = begin;
    for (int64_t part = 0; part < w->s->chunks * RESAMPLE_PARTS; part++) {
        const int32_t *index = w->table + axis->at + c;
        const int64_t n = resample_part(axis, index, end - c);
        const int64_t v = part % RESAMPLE_VECTORS, p = part % RESAMPLE_PARTS / RESAMPLE_VECTORS;
        resample_step *to = step + part / RESAMPLE_PARTS * steps;
        w->low[part] = (int32_t)(c - begin);
        for (int64_t k = 0; k < axis->taps; k += 2, index += 2 * axis->entries, to++) {
            const bool two = k + 1 < axis->taps;
            int32_t at = (int32_t)(axis->old - RESAMPLE_LOAD);
            for (int64_t j = 0; j < n; j++)
                at = index[j] < at ? index[j] : at;
            to->at[v][p] = at;
            for (int64_t j = 0; j < n; j++) {
                const int32_t *weight = index + axis->taps * axis->entries + j;
                const int32_t other = two ? index[axis->entries + j] - at : VI_NO_BYTE;
                to->taken[v][4 * p + j] = (index[j] - at) | VI_NO_BYTE << 8 | other << 16 |
                                          (int32_t)((uint32_t)VI_NO_BYTE << 24);
                to->weight[v][4 * p + j] = resample_pair(*weight, two ? weight[axis->entries] : 0);
            }
        }
        c += n;
    }
}

/* Stores one row of a chunk. first: as low of resample_begin_bytes. */
V_INLINE void resample_store_chunk(uint8_t *y, vi bytes, const int32_t *first, int64_t n) {
    const int64_t last = first[RESAMPLE_PARTS - 1] + RESAMPLE_PART;
    if (last <= n && last - first[0] == RESAMPLE_CHUNK_BYTES) {
        memcpy(y + first[0], &bytes, sizeof bytes);
        return;
    }
    uint8_t each[RESAMPLE_CHUNK_BYTES]; /* a part's unused lanes are columns of the next */
    memcpy(each, &bytes, sizeof each);
    for (int64_t p = 0; p < RESAMPLE_PARTS && first[p] < n; p++)
        for (int64_t j = 0; j < i64_min(RESAMPLE_PART, n - first[p]); j++)
            y[first[p] + j] = each[p * RESAMPLE_PART + j];
}

/* Computes n columns of one byte each of one or two rows: the steps are loaded once. */
V_INLINE void resample_byte_vectors(const resample_work *w, uint8_t *const *y,
                                    const uint8_t *const *x, int64_t n, const int rows) {
    const int64_t shift = w->s->columns.shift, steps = i64_ceil_div(w->s->columns.taps, 2);
    const resample_step *step = (const resample_step *)(const void *)w->from;
    const int32_t *first = w->low;
    for (int64_t chunk = 0; chunk < w->s->chunks; chunk++, first += RESAMPLE_PARTS) {
        vi sum[2][RESAMPLE_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < RESAMPLE_VECTORS; v++)
            sum[0][v] = sum[1][v] = vi_set1(1 << shift >> 1);
        for (int64_t k = 0; k < steps; k++, step++)
#pragma GCC unroll 16
            for (int v = 0; v < RESAMPLE_VECTORS; v++) {
                const vi taken = vi_load(step->taken[v]), weight = vi_load(step->weight[v]);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) {
                    const vi bytes = vi_shuffle_8(vi_load_parts_at(x[r], step->at[v]), taken);
                    sum[r][v] = vi_add(sum[r][v], vi_madd_16(bytes, weight));
                }
            }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
            for (int v = 0; v < RESAMPLE_VECTORS; v++)
                sum[r][v] = vi_sar_by(sum[r][v], (int)shift);
            resample_store_chunk(y[r], vi_pack_bytes(sum[r][0], sum[r][1], sum[r][2], sum[r][3]),
                                 first, n);
        }
    }
}

/* Returns the bytes of a row of words, which a step may load beyond its end. */
V_INLINE size_t resample_word_bytes(const resample_axis *axis) {
    return (size_t)(i64_ceil_div(axis->old, RESAMPLE_WORDS) + 1) * RESAMPLE_WORDS * 2;
}

#ifdef VI_PICK_16
/* Finds elements low to high - 1 that hold the two taps from `index` on of V_LEN columns. */
V_INLINE void resample_reach(const int32_t *index, const int32_t *other, int64_t *low,
                             int64_t *high) {
    *low = index[0];
    *high = 0;
    for (int64_t j = 0; j < V_LEN; j++) {
        *low = i64_min(*low, i64_min(index[j], other[j]));
        *high = i64_max(*high, i64_max(index[j], other[j]) + 1);
    }
    *low &= -RESAMPLE_HALF; /* so that half of the loads lie in one line of the cache */
}

/* Returns whether every step of all columns can pick its taps. */
static bool resample_fits_words(const resample_axis *axis, const int32_t *table) {
    const int32_t *index = table + axis->at;
    for (int64_t k = 0; k < axis->taps; k += 2, index += 2 * axis->entries)
        for (int64_t c = 0; c < axis->new; c += V_LEN) {
            int64_t low, high;
            resample_reach(index + c, index + c + (k + 1 < axis->taps ? axis->entries : 0), &low,
                           &high);
            if (high - low > RESAMPLE_WORDS)
                return false;
        }
    return true;
}

/* Prepares the columns begin to end - 1: from has the steps of each chunk, at[v][0] the first word
 * that a vector loads. */
static void resample_begin_words(resample_work *w, int64_t begin, int64_t end) {
    const resample_axis *axis = &w->s->columns;
    const int64_t steps = i64_ceil_div(axis->taps, 2);
    resample_step *step = (resample_step *)(void *)w->from;
    memset(step, 0, (size_t)(w->s->chunks * steps) * sizeof *step);
    w->first_word = axis->old;
    w->last_word = 0;
    for (int64_t c = begin; c < end; c += V_LEN) {
        const int64_t chunk = (c - begin) / RESAMPLE_CHUNK_BYTES;
        const int64_t v = (c - begin) % RESAMPLE_CHUNK_BYTES / V_LEN;
        const int32_t *index = w->table + axis->at + c;
        resample_step *to = step + chunk * steps;
        for (int64_t k = 0; k < axis->taps; k += 2, index += 2 * axis->entries, to++) {
            const bool two = k + 1 < axis->taps;
            const int32_t *other = index + (two ? axis->entries : 0);
            int64_t low, high;
            resample_reach(index, other, &low, &high);
            w->first_word = i64_min(w->first_word, low);
            w->last_word = i64_max(w->last_word, high);
            to->at[v][0] = (int32_t)low;
            for (int64_t j = 0; j < V_LEN; j++) {
                const int32_t *weight = index + axis->taps * axis->entries + j;
                to->taken[v][j] = resample_pair(index[j] - (int32_t)low, other[j] - (int32_t)low);
                to->weight[v][j] = resample_pair(*weight, two ? weight[axis->entries] : 0);
            }
        }
    }
}

/* Computes n columns of one byte each of one or two rows. */
V_INLINE void resample_word_vectors(const resample_work *w, uint8_t *const *y,
                                    const uint8_t *const *x, int64_t n, const int rows) {
    static const int32_t packed[V_LEN] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const int64_t shift = w->s->columns.shift, steps = i64_ceil_div(w->s->columns.taps, 2);
    const resample_step *step = (const resample_step *)(const void *)w->from;
    const vi order = vi_load(packed); /* packing takes a part of each vector in turn */
    for (int r = 0; r < rows; r++) {
        const uint8_t *restrict from = x[r];
        uint16_t *restrict to = w->words[r];
        for (int64_t i = w->first_word; i < w->last_word; i++)
            to[i] = from[i];
    }
    for (int64_t c = 0; c < n; c += RESAMPLE_CHUNK_BYTES) {
        vi sum[2][RESAMPLE_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < RESAMPLE_VECTORS; v++)
            sum[0][v] = sum[1][v] = vi_set1(1 << shift >> 1);
        for (int64_t k = 0; k < steps; k++, step++)
#pragma GCC unroll 16
            for (int v = 0; v < RESAMPLE_VECTORS; v++) {
                const vi taken = vi_load(step->taken[v]);
                /* volatile: loads bound this loop, and each row would load it again */
                const vi weight = *(const volatile vi *)(const void *)step->weight[v];
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) {
                    const int32_t *from = (const void *)(w->words[r] + step->at[v][0]);
                    const vi words = VI_PICK_16(vi_load(from), vi_load(from + V_LEN), taken);
                    sum[r][v] = vi_add(sum[r][v], vi_madd_16(words, weight));
                }
            }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
            for (int v = 0; v < RESAMPLE_VECTORS; v++)
                sum[r][v] = vi_sar_by(sum[r][v], (int)shift);
            const vi bytes = vi_pack_bytes(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
            const vf ordered = v_permute(v_as_float(bytes), order);
            if (n - c < RESAMPLE_CHUNK_BYTES)
                memcpy(y[r] + c, &ordered, (size_t)(n - c));
            else
                memcpy(y[r] + c, &ordered, sizeof ordered);
        }
    }
}
#else
V_INLINE bool resample_fits_words(const resample_axis *axis, const int32_t *table) {
    (void)axis, (void)table;
    return false;
}
V_INLINE void resample_begin_words(resample_work *w, int64_t begin, int64_t end) {
    (void)w, (void)begin, (void)end;
}
V_INLINE void resample_word_vectors(const resample_work *w, uint8_t *const *y,
                                    const uint8_t *const *x, int64_t n, const int rows) {
    (void)w, (void)y, (void)x, (void)n, (void)rows;
}
#endif

static void resample_byte_row(const resample_work *w, uint8_t *y, const uint8_t *x, int64_t n) {
    if (w->s->by_words)
        resample_word_vectors(w, &y, &x, n, 1);
    else
        resample_byte_vectors(w, &y, &x, n, 1);
}

static void resample_byte_rows(const resample_work *w, uint8_t *const *y, const uint8_t *const *x,
                               int64_t n) {
    if (w->s->by_words)
        resample_word_vectors(w, y, x, n, 2);
    else
        resample_byte_vectors(w, y, x, n, 2);
}

static void resample_bytes(const resample_work *w, uint8_t *restrict y, const uint8_t *restrict x,
                           int64_t begin, int64_t end) {
    const resample_axis *axis = &w->s->columns;
    const int64_t entries = axis->entries;
    for (int64_t c = begin; c < end; c++) {
        const int32_t *index = w->table + axis->at + c, *weight = index + axis->taps * entries;
        int32_t sum = 1 << axis->shift >> 1;
        for (int64_t k = 0; k < axis->taps; k++)
            sum += weight[k * entries] * x[index[k * entries]];
        y[c - begin] = resample_byte(sum, axis->shift);
    }
}
