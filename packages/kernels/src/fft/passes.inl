/*
 * Passes of a transform of many columns at once. A buffer is [n][cols][2][V_LEN]: for each number
 * of the transform and each vector of columns, the real parts of the columns and their imaginary
 * parts. So no pass moves anything within a vector, and passes of all radices have the same form.
 *
 * A pass of radix r takes [r][m][s] numbers to [m][r][s] (Stockham's form, decimation in
 * frequency): after all passes, the numbers are in order. s is then the product of the radices
 * before, times the vectors of columns.
 */

enum { FFT_MAX_RADIX = 31 };

typedef struct fft_vec {
    vf re, im;
} fft_vec;

/* Roots of unity, exp(-2 pi i k / n) for the length n of a transform: every `step`-th number of the
 * table. */
typedef struct fft_roots {
    const float *data;
    int64_t step;
} fft_roots;

V_INLINE fft_vec fft_load(const float *x) { return (fft_vec){v_load(x), v_load(x + V_LEN)}; }
V_INLINE void fft_store(float *y, fft_vec v) {
    v_store(y, v.re);
    v_store(y + V_LEN, v.im);
}
V_INLINE fft_vec fft_add(fft_vec a, fft_vec b) {
    return (fft_vec){v_add(a.re, b.re), v_add(a.im, b.im)};
}
V_INLINE fft_vec fft_sub(fft_vec a, fft_vec b) {
    return (fft_vec){v_sub(a.re, b.re), v_sub(a.im, b.im)};
}
/* -i a */
V_INLINE fft_vec fft_turn(fft_vec a) { return (fft_vec){a.im, v_neg(a.re)}; }

/* One factor for all columns, and its negated imaginary part. */
typedef struct fft_factor {
    vf re, im, minus;
} fft_factor;

V_INLINE fft_factor fft_factor_at(const float *number) {
    return (fft_factor){v_set1(number[0]), v_set1(number[1]), v_set1(-number[1])};
}
V_INLINE fft_factor fft_root(fft_roots roots, int64_t k) {
    return fft_factor_at(roots.data + 2 * k * roots.step);
}
V_INLINE fft_vec fft_mul(fft_vec a, fft_factor w) {
    return (fft_vec){v_fma(a.im, w.minus, v_mul(a.re, w.re)), v_fma(a.im, w.re, v_mul(a.re, w.im))};
}

/* n = 2 m numbers of a transform whose roots are those of n. */
static void fft_pass2(float *y, const float *x, int64_t m, int64_t s, fft_roots roots) {
    const int64_t run = 2 * V_LEN * s;
    for (int64_t p = 0; p < m; p++, x += run, y += 2 * run) {
        const fft_factor w = fft_root(roots, p);
        for (int64_t q = 0; q < run; q += 2 * V_LEN) {
            const fft_vec a = fft_load(x + q), b = fft_load(x + m * run + q);
            fft_store(y + q, fft_add(a, b));
            fft_store(y + run + q, fft_mul(fft_sub(a, b), w));
        }
    }
}

static void fft_pass4(float *y, const float *x, int64_t m, int64_t s, fft_roots roots) {
    const int64_t run = 2 * V_LEN * s;
    for (int64_t p = 0; p < m; p++, x += run, y += 4 * run) {
        const fft_factor w1 = fft_root(roots, p), w2 = fft_root(roots, 2 * p);
        const fft_factor w3 = fft_root(roots, 3 * p);
        for (int64_t q = 0; q < run; q += 2 * V_LEN) {
            const fft_vec a = fft_load(x + q), b = fft_load(x + m * run + q);
            const fft_vec c = fft_load(x + 2 * m * run + q), d = fft_load(x + 3 * m * run + q);
            const fft_vec even = fft_add(a, c), odd = fft_add(b, d);
            const fft_vec low = fft_sub(a, c), high = fft_turn(fft_sub(b, d));
            fft_store(y + q, fft_add(even, odd));
            fft_store(y + run + q, fft_mul(fft_add(low, high), w1));
            fft_store(y + 2 * run + q, fft_mul(fft_sub(even, odd), w2));
            fft_store(y + 3 * run + q, fft_mul(fft_sub(low, high), w3));
        }
    }
}

/* An odd prime radix: with t = x[j] + x[r - j], u = x[j] - x[r - j] and the roots c - i s of r,
 * y[k] and y[r - k] are x[0] + sum(c t) -+ i sum(s u). */
V_INLINE void fft_pass_odd(const int64_t r, float *y, const float *x, int64_t m, int64_t s,
                           fft_roots roots) {
    const int64_t run = 2 * V_LEN * s, half = (r - 1) / 2;
    for (int64_t p = 0; p < m; p++, x += run, y += r * run)
        for (int64_t q = 0; q < run; q += 2 * V_LEN) {
            const fft_vec first = fft_load(x + q);
            fft_vec sums[FFT_MAX_RADIX / 2 + 1], differences[FFT_MAX_RADIX / 2 + 1], all = first;
            for (int64_t j = 1; j <= half; j++) {
                const fft_vec a = fft_load(x + j * m * run + q);
                const fft_vec b = fft_load(x + (r - j) * m * run + q);
                sums[j] = fft_add(a, b);
                differences[j] = fft_sub(a, b);
                all = fft_add(all, sums[j]);
            }
            fft_store(y + q, all);
            for (int64_t k = 1; k <= half; k++) {
                fft_vec even = first, odd = {v_zero(), v_zero()};
                for (int64_t j = 1; j <= half; j++) {
                    const float *w = roots.data + 2 * (j * k % r * m) * roots.step;
                    const vf c = v_set1(w[0]), minus = v_set1(w[1]); /* -s */
                    even.re = v_fma(sums[j].re, c, even.re);
                    even.im = v_fma(sums[j].im, c, even.im);
                    odd.re = v_fma(differences[j].re, minus, odd.re);
                    odd.im = v_fma(differences[j].im, minus, odd.im);
                }
                const fft_vec turned = {v_neg(odd.im), odd.re}; /* i odd */
                fft_store(y + k * run + q, fft_mul(fft_add(even, turned), fft_root(roots, k * p)));
                fft_store(y + (r - k) * run + q,
                          fft_mul(fft_sub(even, turned), fft_root(roots, (r - k) * p)));
            }
        }
}

static void fft_pass3(float *y, const float *x, int64_t m, int64_t s, fft_roots roots) {
    fft_pass_odd(3, y, x, m, s, roots);
}
static void fft_pass5(float *y, const float *x, int64_t m, int64_t s, fft_roots roots) {
    fft_pass_odd(5, y, x, m, s, roots);
}
static void fft_pass7(float *y, const float *x, int64_t m, int64_t s, fft_roots roots) {
    fft_pass_odd(7, y, x, m, s, roots);
}
static void fft_pass_any(int64_t r, float *y, const float *x, int64_t m, int64_t s,
                         fft_roots roots) {
    fft_pass_odd(r, y, x, m, s, roots);
}

/* Returns the smallest radix of a pass for n > 1; 0: there is none. */
static int64_t fft_radix(int64_t n) {
    if (n % 4 == 0)
        return 4;
    for (int64_t r = 2; r <= FFT_MAX_RADIX; r++)
        if (n % r == 0)
            return r;
    return 0;
}

static bool fft_is_smooth(int64_t n) {
    while (n > 1) {
        const int64_t r = fft_radix(n);
        if (r == 0)
            return false;
        n /= r;
    }
    return true;
}

/* Transforms `n` numbers in each of `cols` vectors of columns. Buffer a holds them, and b is as
 * large; returns the one of the two that has the result. */
static float *fft_passes(int64_t n, int64_t cols, fft_roots roots, float *a, float *b) {
    int64_t s = cols;
    for (int64_t left = n; left > 1;) {
        const int64_t r = fft_radix(left), m = left / r;
        const fft_roots here = {roots.data, roots.step * (n / left)};
        if (r == 4)
            fft_pass4(b, a, m, s, here);
        else if (r == 2)
            fft_pass2(b, a, m, s, here);
        else if (r == 3)
            fft_pass3(b, a, m, s, here);
        else if (r == 5)
            fft_pass5(b, a, m, s, here);
        else if (r == 7)
            fft_pass7(b, a, m, s, here);
        else
            fft_pass_any(r, b, a, m, s, here);
        float *done = b;
        b = a;
        a = done;
        left = m;
        s *= r;
    }
    return a;
}
