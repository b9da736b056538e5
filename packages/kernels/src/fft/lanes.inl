/*
 * Copies between memory and the buffers of passes.inl. In memory the real and imaginary parts of a
 * number are adjacent. For an inverse transform the two parts are swapped on the way in and out.
 */

/* Lane numbers that split vectors of pairs, and join them. */
typedef struct fft_shuffle {
    vi even, odd, low, high; /* 2 i, 2 i + 1 modulo V_LEN; i / 2, i / 2 + V_LEN / 2 */
    vm first_half, evens;
} fft_shuffle;

static fft_shuffle fft_shuffles(void) {
    int32_t even[V_LEN], odd[V_LEN], low[V_LEN], high[V_LEN];
    float half[V_LEN], parity[V_LEN];
    for (int32_t i = 0; i < V_LEN; i++) {
        even[i] = 2 * i % V_LEN;
        odd[i] = (2 * i + 1) % V_LEN;
        low[i] = i / 2;
        high[i] = i / 2 + V_LEN / 2;
        half[i] = i < V_LEN / 2 ? -1.0f : 1.0f;
        parity[i] = i % 2 == 0 ? -1.0f : 1.0f;
    }
    return (fft_shuffle){vi_load(even),
                         vi_load(odd),
                         vi_load(low),
                         vi_load(high),
                         v_lt(v_load(half), v_zero()),
                         v_lt(v_load(parity), v_zero())};
}

/* Loads the first n numbers, at most V_LEN, from x on; other lanes are zero. */
V_INLINE fft_vec fft_take(const fft_shuffle *f, const float *x, int64_t n) {
    vf a, b;
    if (n >= V_LEN) {
        a = v_load(x);
        b = v_load(x + V_LEN);
    } else {
        a = v_load_n(x, i64_min(2 * n, V_LEN));
        b = 2 * n > V_LEN ? v_load_n(x + V_LEN, 2 * n - V_LEN) : v_zero();
    }
    return (fft_vec){v_select(f->first_half, v_permute(a, f->even), v_permute(b, f->even)),
                     v_select(f->first_half, v_permute(a, f->odd), v_permute(b, f->odd))};
}

V_INLINE void fft_put(const fft_shuffle *f, float *y, fft_vec v, int64_t n) {
    const vf a = v_select(f->evens, v_permute(v.re, f->low), v_permute(v.im, f->low));
    const vf b = v_select(f->evens, v_permute(v.re, f->high), v_permute(v.im, f->high));
    if (n >= V_LEN) {
        v_store(y, a);
        v_store(y + V_LEN, b);
    } else {
        v_store_n(y, a, i64_min(2 * n, V_LEN));
        if (2 * n > V_LEN)
            v_store_n(y + V_LEN, b, 2 * n - V_LEN);
    }
}

V_INLINE fft_vec fft_swapped(fft_vec v, bool swap) { return swap ? (fft_vec){v.im, v.re} : v; }

/* ---- many transforms at once, one in each lane ---- */

/* Where the transforms of a tile lie: lane i's begin at i * lane, with floats, or numbers, `step`
 * apart. One of the two is 1. */
typedef struct fft_tile {
    int64_t count; /* lanes in use */
    int64_t lane;  /* floats; 0 where the lanes lie side by side */
    int64_t step;  /* in floats, or in numbers */
} fft_tile;

/* Loads `rows` floats of each lane, one per row: row i goes to row i ^ swap of buf. */
static void fft_load_floats(const fft_tile *t, float *buf, const float *x, int64_t rows,
                            int64_t pitch, int64_t swap) {
    if (t->lane == 0) {
        for (int64_t i = 0; i < rows; i++)
            v_store(buf + (i ^ swap) * pitch, v_load_n(x + i * t->step, t->count));
        return;
    }
    for (int64_t i = 0; i < rows; i += V_LEN) {
        const int64_t n = i64_min(V_LEN, rows - i);
        vf r[V_LEN];
#pragma GCC unroll 16
        for (int64_t l = 0; l < V_LEN; l++)
            r[l] = l >= t->count ? v_zero()
                   : n == V_LEN  ? v_load(x + l * t->lane + i)
                                 : v_load_n(x + l * t->lane + i, n);
        v_transpose(r);
        for (int64_t j = 0; j < n; j++)
            v_store(buf + ((i + j) ^ swap) * pitch, r[j]);
    }
}

static void fft_store_floats(const fft_tile *t, float *y, const float *buf, int64_t rows,
                             int64_t pitch, int64_t swap, float scale) {
    const vf factor = v_set1(scale);
    if (t->lane == 0) {
        for (int64_t i = 0; i < rows; i++)
            v_store_n(y + i * t->step, v_mul(factor, v_load(buf + (i ^ swap) * pitch)), t->count);
        return;
    }
    for (int64_t i = 0; i < rows; i += V_LEN) {
        const int64_t n = i64_min(V_LEN, rows - i);
        vf r[V_LEN];
#pragma GCC unroll 16
        for (int64_t j = 0; j < V_LEN; j++)
            r[j] = j < n ? v_mul(factor, v_load(buf + ((i + j) ^ swap) * pitch)) : v_zero();
        v_transpose(r);
        for (int64_t l = 0; l < t->count; l++) {
            if (n == V_LEN)
                v_store(y + l * t->lane + i, r[l]);
            else
                v_store_n(y + l * t->lane + i, r[l], n);
        }
    }
}

/* Stores n complex numbers of each lane. */
static void fft_load_numbers(const fft_tile *t, float *buf, const float *x, int64_t n, bool swap) {
    if (t->lane != 0) {
        fft_load_floats(t, buf, x, 2 * n, V_LEN, swap);
        return;
    }
    const fft_shuffle f = fft_shuffles();
    for (int64_t i = 0; i < n; i++)
        fft_store(buf + 2 * V_LEN * i,
                  fft_swapped(fft_take(&f, x + 2 * i * t->step, t->count), swap));
}

static void fft_store_numbers(const fft_tile *t, float *y, const float *buf, int64_t n, bool swap,
                              float scale) {
    if (t->lane != 0) {
        fft_store_floats(t, y, buf, 2 * n, V_LEN, swap, scale);
        return;
    }
    const fft_shuffle f = fft_shuffles();
    const vf factor = v_set1(scale);
    for (int64_t i = 0; i < n; i++) {
        const fft_vec v = fft_swapped(fft_load(buf + 2 * V_LEN * i), swap);
        fft_put(&f, y + 2 * i * t->step, (fft_vec){v_mul(v.re, factor), v_mul(v.im, factor)},
                t->count);
    }
}

/* y[i] = x[i] times number i of the table, for all lanes. */
static void fft_scale_lanes(float *y, const float *x, const float *numbers, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        fft_store(y + 2 * V_LEN * i,
                  fft_mul(fft_load(x + 2 * V_LEN * i), fft_factor_at(numbers + 2 * i)));
}

static void fft_swap_lanes(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        fft_store(x + 2 * V_LEN * i, fft_swapped(fft_load(x + 2 * V_LEN * i), true));
}

/* How a length is transformed, and where its numbers are in the table (offsets in complex numbers).
 */
typedef struct fft_length {
    int64_t n;
    int64_t first;           /* of two factors, for four steps; 1: there are none */
    int64_t roots, step;     /* every step-th is a root of n */
    int64_t factors;         /* of four steps */
    int64_t padded;          /* of a convolution, for a length that is not smooth; 0: it is */
    int64_t padded_first;    /* the square root of it */
    int64_t chirp, spectrum; /* its own roots and factors follow on the latter */
} fft_length;

static fft_length fft_padded_length(const fft_length *t) {
    return (fft_length){.n = t->padded,
                        .first = t->padded_first,
                        .roots = t->spectrum + t->padded,
                        .step = 1,
                        .factors = t->spectrum + 2 * t->padded};
}

/* Transforms the numbers in each lane of a; the result is in the buffer returned. */
static float *fft_lanes(const fft_length *t, const float *table, float *a, float *b) {
    if (t->padded == 0)
        return fft_passes(t->n, 1, (fft_roots){table + 2 * t->roots, t->step}, a, b);
    const fft_length padded = fft_padded_length(t);
    const fft_roots roots = {table + 2 * padded.roots, 1};
    fft_scale_lanes(a, a, table + 2 * t->chirp, t->n);
    for (int64_t i = 2 * V_LEN * t->n; i < 2 * V_LEN * t->padded; i++)
        a[i] = 0.0f;
    float *x = fft_passes(t->padded, 1, roots, a, b), *y = x == a ? b : a;
    fft_scale_lanes(x, x, table + 2 * t->spectrum, t->padded);
    fft_swap_lanes(x, t->padded);
    float *z = fft_passes(t->padded, 1, roots, x, y);
    fft_swap_lanes(z, t->n);
    fft_scale_lanes(z, z, table + 2 * t->chirp, t->n);
    return z;
}

/* Computes the transform of 2 h real numbers from the transform of their h pairs: the transforms of
 * even and odd numbers differ in their symmetry. y has h + 1 numbers. roots: those of 2 h. */
static void fft_unfold_lanes(float *y, const float *z, int64_t h, fft_roots roots) {
    const vf half = v_set1(0.5f);
    for (int64_t k = 0; k <= h; k++) {
        const fft_vec a = fft_load(z + 2 * V_LEN * (k % h));
        const fft_vec b = fft_load(z + 2 * V_LEN * ((h - k) % h));
        const fft_vec even = {v_mul(half, v_add(a.re, b.re)), v_mul(half, v_sub(a.im, b.im))};
        /* (a - conj b) / 2i */
        const fft_vec odd = {v_mul(half, v_add(a.im, b.im)), v_mul(half, v_sub(b.re, a.re))};
        fft_factor w = fft_root(roots, k % h);
        if (k == h)
            w = (fft_factor){v_set1(-1.0f), v_zero(), v_zero()};
        fft_store(y + 2 * V_LEN * k, fft_add(even, fft_mul(odd, w)));
    }
}

/* Computes the inverse of this, times two: h numbers from h + 1. The imaginary parts of the first
 * and last number are not read. */
static void fft_fold_lanes(float *z, const float *y, int64_t h, fft_roots roots) {
    for (int64_t k = 0; k < h; k++) {
        fft_vec a = fft_load(y + 2 * V_LEN * k), b = fft_load(y + 2 * V_LEN * (h - k));
        if (k == 0)
            a.im = b.im = v_zero();
        const fft_vec sum = {v_add(a.re, b.re), v_sub(a.im, b.im)};
        const fft_vec difference = {v_sub(a.re, b.re), v_add(a.im, b.im)};
        const fft_factor w = fft_root(roots, k);
        const fft_factor conjugate = {w.re, w.minus, w.im};
        const fft_vec odd = fft_mul(difference, conjugate); /* times i */
        fft_store(z + 2 * V_LEN * k, (fft_vec){v_sub(sum.re, odd.im), v_add(sum.im, odd.re)});
    }
}
