/*
 * One long transform with vectors inside (the four-step method): n = n1 n2 numbers are n1 rows of
 * n2 columns. The columns are transformed, each number is multiplied by a factor, the matrix is
 * transposed, and its columns, which were rows, are transformed.
 */

static int64_t fft_vectors(int64_t n) { return i64_ceil_div(n, V_LEN); }

/* Returns the floats of each of the two buffers that fft_line needs. */
static int64_t fft_line_floats(const fft_length *t) {
    const int64_t n1 = t->first, n2 = t->n / t->first;
    return 2 * V_LEN * i64_max(n1 * fft_vectors(n2), n2 * fft_vectors(n1));
}

/* y: [n2][n1], the transpose of x: [n1][n2] times the factors. */
static void fft_turn_matrix(float *y, const float *x, int64_t n1, int64_t n2,
                            const float *factors) {
    const int64_t wide = fft_vectors(n2), high = fft_vectors(n1);
    const fft_shuffle f = fft_shuffles();
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < wide; j++) {
            const int64_t columns = i64_min(V_LEN, n2 - j * V_LEN);
            vf re[V_LEN], im[V_LEN];
#pragma GCC unroll 16
            for (int64_t l = 0; l < V_LEN; l++) {
                const int64_t row = i * V_LEN + l;
                re[l] = im[l] = v_zero();
                if (row >= n1)
                    continue;
                const fft_vec a = fft_load(x + 2 * V_LEN * (row * wide + j));
                const fft_vec w = fft_take(&f, factors + 2 * (row * n2 + j * V_LEN), columns);
                re[l] = v_fma(a.im, v_neg(w.im), v_mul(a.re, w.re));
                im[l] = v_fma(a.im, w.re, v_mul(a.re, w.im));
            }
            v_transpose(re);
            v_transpose(im);
            for (int64_t l = 0; l < columns; l++)
                fft_store(y + 2 * V_LEN * ((j * V_LEN + l) * high + i), (fft_vec){re[l], im[l]});
        }
}

/* Transforms the numbers at x into those at y, times a scale. With `swap` the real and imaginary
 * parts of both are swapped: that gives the inverse. Numbers from `given` up to n are zero. x and y
 * may be the same. a, b: buffers of fft_line_floats. */
static void fft_line(const fft_length *t, const float *table, float *y, const float *x,
                     int64_t given, bool swap, float scale, float *a, float *b) {
    const int64_t n1 = t->first, n2 = t->n / t->first;
    const int64_t wide = fft_vectors(n2), high = fft_vectors(n1);
    const float *roots = table + 2 * t->roots;
    const fft_shuffle f = fft_shuffles();
    for (int64_t i = 0; i < n1; i++)
        for (int64_t j = 0; j < wide; j++) {
            const int64_t place = i * n2 + j * V_LEN;
            const int64_t n = i64_min(i64_min(V_LEN, n2 - j * V_LEN), given - place);
            const fft_vec v =
                n > 0 ? fft_take(&f, x + 2 * place, n) : (fft_vec){v_zero(), v_zero()};
            fft_store(a + 2 * V_LEN * (i * wide + j), fft_swapped(v, swap));
        }
    float *columns = fft_passes(n1, wide, (fft_roots){roots, t->step * n2}, a, b);
    float *other = columns == a ? b : a;
    fft_turn_matrix(other, columns, n1, n2, table + 2 * t->factors);
    float *done = fft_passes(n2, high, (fft_roots){roots, t->step * n1}, other, columns);
    const vf factor = v_set1(scale);
    for (int64_t i = 0; i < n2; i++)
        for (int64_t j = 0; j < high; j++) {
            const fft_vec v = fft_swapped(fft_load(done + 2 * V_LEN * (i * high + j)), swap);
            fft_put(&f, y + 2 * (i * n1 + j * V_LEN),
                    (fft_vec){v_mul(v.re, factor), v_mul(v.im, factor)},
                    i64_min(V_LEN, n1 - j * V_LEN));
        }
}

/* Computes y[i] = x[i] times number i of the table; the parts of x and of y are swapped where the
 * caller asks for it. */
static void fft_scale_line(float *y, const float *x, const float *numbers, int64_t n, bool swap_in,
                           bool swap_out, float scale) {
    const fft_shuffle f = fft_shuffles();
    const vf factor = v_set1(scale);
    for (int64_t i = 0; i < n; i += V_LEN) {
        const int64_t count = i64_min(V_LEN, n - i);
        const fft_vec v = fft_swapped(fft_take(&f, x + 2 * i, count), swap_in);
        const fft_vec w = fft_take(&f, numbers + 2 * i, count);
        const fft_vec product = {v_fma(v.im, v_neg(w.im), v_mul(v.re, w.re)),
                                 v_fma(v.im, w.re, v_mul(v.re, w.im))};
        fft_put(
            &f, y + 2 * i,
            fft_swapped((fft_vec){v_mul(product.re, factor), v_mul(product.im, factor)}, swap_out),
            count);
    }
}

/* fft_line for any length; line: memory for t->padded numbers. */
static void fft_any_line(const fft_length *t, const float *table, float *y, const float *x,
                         bool swap, float scale, float *line, float *a, float *b) {
    if (t->padded == 0) {
        fft_line(t, table, y, x, t->n, swap, scale, a, b);
        return;
    }
    const fft_length padded = fft_padded_length(t);
    const float *chirp = table + 2 * t->chirp;
    fft_scale_line(line, x, chirp, t->n, swap, false, 1.0f);
    fft_line(&padded, table, line, line, t->n, false, 1.0f, a, b);
    fft_scale_line(line, line, table + 2 * t->spectrum, t->padded, false, false, 1.0f);
    fft_line(&padded, table, line, line, t->padded, true, 1.0f, a, b);
    fft_scale_line(y, line, chirp, t->n, false, swap, scale);
}

/* These do what fft_unfold_lanes and fft_fold_lanes do. */
static void fft_unfold_line(float *y, const float *z, int64_t h, const float *roots, float scale) {
    const float half = 0.5f * scale;
    for (int64_t k = 0; k <= h; k++) {
        const float *a = z + 2 * (k < h ? k : 0), *b = z + 2 * (k > 0 ? h - k : 0);
        const float wr = k < h ? roots[2 * k] : -1.0f, wi = k < h ? roots[2 * k + 1] : 0.0f;
        const float odd_re = a[1] + b[1], odd_im = b[0] - a[0];
        y[2 * k] = half * (a[0] + b[0] + (odd_re * wr - odd_im * wi));
        y[2 * k + 1] = half * (a[1] - b[1] + (odd_re * wi + odd_im * wr));
    }
}

static void fft_fold_line(float *z, const float *y, int64_t h, const float *roots) {
    for (int64_t k = 0; k < h; k++) {
        const float *a = y + 2 * k, *b = y + 2 * (h - k);
        const float ai = k == 0 ? 0.0f : a[1], bi = k == 0 ? 0.0f : b[1];
        const float re = a[0] - b[0], im = ai + bi, wr = roots[2 * k], wi = -roots[2 * k + 1];
        z[2 * k] = a[0] + b[0] - (re * wi + im * wr);
        z[2 * k + 1] = ai - bi + (re * wr - im * wi);
    }
}
