/*
 * FFT, RFFT, IRFFT: Fourier transforms along one axis, in float32. The call's table depends on the
 * length (taper_runtime/ops/fft.py makes it): it has roots of unity, the factors of the four-step
 * transform, and for lengths with large prime factors the chirp and its spectrum.
 *
 * Many transforms are computed at once, one in each lane (lanes.inl), or one after the other with
 * vectors inside (line.inl). prepare() chooses by the shape which way leaves fewer lanes idle.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "fft/kernels.inc"
#include "isa/isa.h"
#include "simd/simd.h"

#include "fft/passes.inl"
#include "fft/lanes.inl"
#include "fft/line.inl"

TAPER_DEFINE_ATTRS(fft)
TAPER_DEFINE_ATTRS(rfft)
TAPER_DEFINE_ATTRS(irfft)

enum {
    FFT_MAX_LENGTH = 1 << 26,
    FFT_LANES_FLOATS = 1 << 18, /* floats of both buffers of lanes: 1 MB, which L2 holds */
    FFT_COST = 8,               /* of a number in a vector, in elements of a TASK_COST */
};

/* Which side is real. */
enum fft_kind { FFT_COMPLEX, FFT_TO_COMPLEX, FFT_TO_REAL };

struct fft_state {
    fft_length length;
    enum fft_kind kind;
    bool inverse; /* of complex numbers */
    bool halved;  /* real numbers of an even length, two to a complex one */
    bool lines;   /* one transform after the other */
    float scale;
    int64_t n;                    /* of the transform */
    int64_t outer, inner;         /* as in [outer][n][inner] */
    int64_t input, output;        /* floats of a transform */
    int64_t tiles, tiles_per_row; /* tiles_per_row: 0 where lanes are rows */
    int64_t per_task;
    int64_t buffer; /* floats of each of two */
};

/* Returns the largest divisor from 4 up to the square root; 1 if there is none. */
static int64_t fft_split(int64_t n) {
    int64_t root = 1;
    while ((root + 1) * (root + 1) <= n)
        root++;
    for (; root > 3; root--)
        if (n % root == 0)
            return root;
    return 1;
}

/* Returns the square root of the length of a convolution: a multiple of 4 with factors 2, 3, 5, 7.
 */
static int64_t fft_padded_root(int64_t length) {
    for (int64_t root = 4;; root += 4) {
        int64_t rest = root;
        if (root * root < 2 * length - 1)
            continue;
        for (int64_t factor = 2; factor <= 7; factor++)
            while (rest % factor == 0)
                rest /= factor;
        if (rest == 1)
            return root;
    }
}

/* Returns how to transform `length` numbers with the roots of n; *rows: rows of the table. */
static fft_length fft_plan(int64_t n, int64_t length, int64_t *rows) {
    fft_length t = {.n = length, .first = 1, .step = n / length};
    *rows = n;
    if (fft_is_smooth(length)) {
        t.first = fft_split(length);
        t.factors = *rows;
        *rows += t.first > 1 ? length : 0;
        return t;
    }
    t.padded_first = fft_padded_root(length);
    t.padded = t.padded_first * t.padded_first;
    t.chirp = *rows;
    t.spectrum = t.chirp + length;
    *rows = t.spectrum + 3 * t.padded;
    return t;
}

/* Returns whether transforms one after the other (lines) take less time than one in each lane, by
 * the vectors that either way computes. */
static bool fft_takes_lines(const fft_length *t, int64_t rows) {
    const fft_length padded = fft_padded_length(t), *l = t->padded ? &padded : t;
    if (l->first == 1)
        return false;
    const int64_t n1 = l->first, n2 = l->n / l->first;
    const double of_line = (double)(V_LEN * (n1 * fft_vectors(n2) + n2 * fft_vectors(n1))) / 2;
    const double of_lanes = (double)(l->n * V_LEN) / (double)i64_min(rows, V_LEN);
    const bool large = 4 * V_LEN * l->n > FFT_LANES_FLOATS;
    /* The matrix is transposed, and copied once more. */
    return 1.5 * of_line < of_lanes * (large ? 2 : 1);
}

static bool fft_find_scale(const char *norm, int64_t n, float *scale) {
    const double divisor = strcmp(norm, "none") == 0     ? 1
                           : strcmp(norm, "root") == 0   ? sqrt((double)n)
                           : strcmp(norm, "length") == 0 ? (double)n
                                                         : 0;
    *scale = (float)(1 / divisor);
    return divisor > 0;
}

/* x, y: shapes without the axis of real and imaginary parts, which exists where `parts` is set. */
static taper_status fft_prepare(const taper_call *call, int64_t axis, enum fft_kind kind,
                                int64_t size, const char *norm, bool inverse, taper_work *work) {
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    struct fft_state *s = call->state;
    if (call->n_inputs != 1 || !call->table || !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(y, TAPER_FLOAT32, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    const int32_t rank = x->rank - (kind != FFT_TO_COMPLEX);
    if (rank < 1 || axis < 0 || axis >= rank || y->rank != rank + (kind != FFT_TO_REAL) ||
        (kind != FFT_TO_COMPLEX && x->shape[rank] != 2) ||
        (kind != FFT_TO_REAL && y->shape[rank] != 2))
        return TAPER_UNSUPPORTED;
    *s = (struct fft_state){.kind = kind, .inverse = inverse};
    s->n = kind == FFT_TO_REAL ? size : x->shape[axis];
    s->outer = tensor_count(x, 0, (int32_t)axis);
    s->inner = tensor_count(x, (int32_t)axis + 1, rank);
    const int64_t half = s->n / 2 + 1, taken = kind == FFT_TO_REAL ? half : s->n;
    const int64_t given = kind == FFT_TO_COMPLEX ? half : s->n;
    if (s->n < 1 || s->n > FFT_MAX_LENGTH || x->shape[axis] != taken || y->shape[axis] != given)
        return TAPER_UNSUPPORTED;
    for (int32_t d = 0; d < rank; d++)
        if (d != axis && x->shape[d] != y->shape[d])
            return TAPER_UNSUPPORTED;
    if (!fft_find_scale(norm, s->n, &s->scale))
        return TAPER_UNSUPPORTED;
    s->halved = kind != FFT_COMPLEX && s->n % 2 == 0;
    int64_t rows;
    s->length = fft_plan(s->n, s->halved ? s->n / 2 : s->n, &rows);
    if (!tensor_is(call->table, TAPER_FLOAT32, 2 * rows))
        return TAPER_UNSUPPORTED;
    s->input = kind == FFT_TO_COMPLEX ? taken : 2 * taken;
    s->output = kind == FFT_TO_REAL ? given : 2 * given;
    s->lines = s->inner == 1 && fft_takes_lines(&s->length, s->outer);
    const int64_t most = i64_max(s->length.n, s->length.padded);
    if (s->lines) {
        const fft_length padded = fft_padded_length(&s->length);
        s->buffer = fft_line_floats(s->length.padded ? &padded : &s->length);
        s->tiles = s->outer;
        s->per_task = rows_per_task(FFT_COST * fft_vectors(most));
        /* Two buffers, the numbers of a convolution, and those before or behind the transform. */
        work->scratch_bytes =
            (size_t)(2 * s->buffer + 2 * s->length.padded + 2 * (s->n + 2)) * sizeof(float);
    } else {
        s->buffer = 2 * V_LEN * (most + 1);
        s->tiles_per_row = s->inner == 1 ? 0 : fft_vectors(s->inner);
        s->tiles = s->inner == 1 ? fft_vectors(s->outer) : s->outer * s->tiles_per_row;
        s->per_task = rows_per_task(FFT_COST * most);
        work->scratch_bytes = (size_t)(2 * s->buffer) * sizeof(float);
    }
    work->tasks = tensor_numel(y) ? i64_ceil_div(s->tiles, s->per_task) : 0;
    return TAPER_OK;
}

/* A tile of transforms in lanes. */
static void fft_run_tile(const struct fft_state *s, float *y, const float *x, const float *table,
                         fft_tile in, fft_tile out, float *a, float *b) {
    const fft_length *t = &s->length;
    const int64_t h = t->n;
    const fft_roots roots = {table, 1};
    if (s->kind == FFT_COMPLEX) {
        fft_load_numbers(&in, a, x, h, s->inverse);
        fft_store_numbers(&out, y, fft_lanes(t, table, a, b), h, s->inverse, s->scale);
    } else if (s->kind == FFT_TO_COMPLEX && s->halved) {
        fft_load_floats(&in, a, x, 2 * h, V_LEN, 0);
        float *z = fft_lanes(t, table, a, b), *unfolded = z == a ? b : a;
        fft_unfold_lanes(unfolded, z, h, roots);
        fft_store_numbers(&out, y, unfolded, h + 1, false, s->scale);
    } else if (s->kind == FFT_TO_COMPLEX) {
        fft_load_floats(&in, a, x, h, 2 * V_LEN, 0);
        for (int64_t i = 0; i < h; i++)
            v_store(a + V_LEN * (2 * i + 1), v_zero());
        fft_store_numbers(&out, y, fft_lanes(t, table, a, b), h / 2 + 1, false, s->scale);
    } else if (s->halved) {
        fft_load_numbers(&in, a, x, h + 1, false);
        fft_fold_lanes(b, a, h, roots);
        fft_swap_lanes(b, h);
        fft_store_floats(&out, y, fft_lanes(t, table, b, a), 2 * h, V_LEN, 1, s->scale);
    } else {
        fft_load_numbers(&in, a, x, h / 2 + 1, false);
        v_store(a + V_LEN, v_zero());
        for (int64_t k = 1; k <= h / 2; k++) {
            const fft_vec v = fft_load(a + 2 * V_LEN * k);
            fft_store(a + 2 * V_LEN * (h - k), (fft_vec){v.re, v_neg(v.im)});
        }
        fft_swap_lanes(a, h);
        /* The real parts, which are the imaginary parts where the two are swapped. */
        float *z = fft_lanes(t, table, a, b);
        fft_store_floats(&out, y, z + V_LEN, h, 2 * V_LEN, 0, s->scale);
    }
}

static void fft_run_line(const struct fft_state *s, float *y, const float *x, const float *table,
                         float *scratch) {
    const fft_length *t = &s->length;
    const int64_t h = t->n;
    float *a = scratch, *b = a + s->buffer, *line = b + s->buffer, *more = line + 2 * t->padded;
    if (s->kind == FFT_COMPLEX) {
        fft_any_line(t, table, y, x, s->inverse, s->scale, line, a, b);
    } else if (s->kind == FFT_TO_COMPLEX && s->halved) {
        fft_any_line(t, table, more, x, false, 1.0f, line, a, b);
        fft_unfold_line(y, more, h, table, s->scale);
    } else if (s->kind == FFT_TO_COMPLEX) {
        for (int64_t i = 0; i < h; i++) {
            more[2 * i] = x[i];
            more[2 * i + 1] = 0.0f;
        }
        fft_any_line(t, table, more, more, false, s->scale, line, a, b);
        for (int64_t i = 0; i < s->output; i++)
            y[i] = more[i];
    } else if (s->halved) {
        fft_fold_line(more, x, h, table);
        fft_any_line(t, table, y, more, true, s->scale, line, a, b);
    } else {
        more[0] = x[0];
        more[1] = 0.0f;
        for (int64_t k = 1; k <= h / 2; k++) {
            more[2 * k] = more[2 * (h - k)] = x[2 * k];
            more[2 * k + 1] = x[2 * k + 1];
            more[2 * (h - k) + 1] = -x[2 * k + 1];
        }
        fft_any_line(t, table, more, more, true, s->scale, line, a, b);
        for (int64_t i = 0; i < h; i++)
            y[i] = more[2 * i];
    }
}

/* Returns where the transforms of a tile are in x or y; each has `floats` floats, which are real or
 * complex numbers. */
static fft_tile fft_tile_of(const struct fft_state *s, int64_t count, int64_t floats) {
    if (s->inner == 1)
        return (fft_tile){.count = count, .lane = floats, .step = 1};
    return (fft_tile){.count = count, .lane = 0, .step = s->inner};
}

static taper_status fft_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct fft_state *s = call->state;
    const float *x = call->inputs[0].data, *table = call->table->data;
    float *y = call->output->data, *a = scratch, *b = a + s->buffer;
    for (int64_t i = begin * s->per_task; i < i64_min(end * s->per_task, s->tiles); i++) {
        if (s->lines) {
            fft_run_line(s, y + i * s->output, x + i * s->input, table, scratch);
            continue;
        }
        int64_t count, from, to; /* lanes; floats */
        if (s->inner == 1) {
            count = i64_min(V_LEN, s->outer - i * V_LEN);
            from = i * V_LEN * s->input;
            to = i * V_LEN * s->output;
        } else {
            const int64_t row = i / s->tiles_per_row;
            const int64_t column = i % s->tiles_per_row * V_LEN;
            count = i64_min(V_LEN, s->inner - column);
            from = row * s->input * s->inner + column * (s->kind == FFT_TO_COMPLEX ? 1 : 2);
            to = row * s->output * s->inner + column * (s->kind == FFT_TO_REAL ? 1 : 2);
        }
        fft_run_tile(s, y + to, x + from, table, fft_tile_of(s, count, s->input),
                     fft_tile_of(s, count, s->output), a, b);
    }
    return TAPER_OK;
}

static taper_status f32_fft_prepare(const taper_call *call, taper_work *work) {
    const struct fft_attrs *attrs = call->attrs;
    return fft_prepare(call, attrs->axis, FFT_COMPLEX, 0, attrs->norm, attrs->inverse, work);
}
static taper_status f32_fft_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    return fft_run(call, begin, end, scratch);
}
static taper_status f32_rfft_prepare(const taper_call *call, taper_work *work) {
    const struct rfft_attrs *attrs = call->attrs;
    return fft_prepare(call, attrs->axis, FFT_TO_COMPLEX, 0, attrs->norm, false, work);
}
static taper_status f32_rfft_run(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    return fft_run(call, begin, end, scratch);
}
static taper_status f32_irfft_prepare(const taper_call *call, taper_work *work) {
    const struct irfft_attrs *attrs = call->attrs;
    return fft_prepare(call, attrs->axis, FFT_TO_REAL, attrs->size, attrs->norm, true, work);
}
static taper_status f32_irfft_run(const taper_call *call, int64_t begin, int64_t end,
                                  void *scratch) {
    return fft_run(call, begin, end, scratch);
}

#define TAPER_KERNEL_ROWS
static const taper_kernel fft_kernels[] = {
#include "fft/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_fft);
const taper_family TAPER_ISA_SYM(taper_fft) = {TAPER_ROWS(fft_kernels)};
