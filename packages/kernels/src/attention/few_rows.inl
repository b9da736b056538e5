/* Few rows: computes scores [rows][keys] by dot products with keys that are read in place, softmax
 * along each row, and sums of values that are read in place, in the order of memory. Packing keys,
 * or vectors across rows, would cost more than they save. Narrow keys and values are widened in
 * registers; scales of int8 are factors of scores and of weights. */

enum {
    FEW_MR = V_REGISTERS == 32 ? 4 : 3, /* rows whose sums are in registers */
    FEW_NV = 4, /* vectors of a row of values: 12 sums, 3 weights, 1 value */
    /* Bytes from what is read to what is prefetched into L2: the next pages, of which the CPU's own
     * prefetchers know nothing. */
    FEW_AHEAD = 8192,
    FEW_KEYS = 32, /* keys whose values are in L1 for all sums */
    LINE = 64,     /* bytes that are prefetched together */
};

/* Bytes from the rows of a block of keys or values to what is prefetched while they are read: later
 * rows of the block, then what is read after it. Behind the block lies what is read much later, or
 * memory that was never written, where a prefetch costs as much as one that is of use. */
typedef struct few_ahead {
    int64_t split; /* the first row whose `behind` counts, not its `own` */
    int64_t own, behind;
} few_ahead;

/* Of `keys` rows at `from`, `size` bytes long and `row` bytes apart. next: what is read after them,
 * or NULL. */
static few_ahead few_find_ahead(const char *from, const char *next, int64_t keys, int64_t size,
                                int64_t row) {
    const int64_t rows = FEW_AHEAD / i64_max(1, size);
    const int64_t split = i64_max(0, keys - rows) / FEW_KEYS * FEW_KEYS;
    const intptr_t at = (intptr_t)from + split * row;
    return (few_ahead){split, (keys - split) * row, next ? (intptr_t)next - at : 0};
}

/* Prefetches rows of `size` bytes, `row` bytes apart. */
static void few_fetch(const char *at, int64_t row, int64_t size, int64_t rows) {
    for (; rows > 0; rows--, at += row)
        for (int64_t i = 0; i < size; i += LINE)
            __builtin_prefetch(at + i, 0, 2);
}

/* Computes scores += bias; returns the largest score, ignoring NaN. */
static float few_add_bias(float *scores, const float *bias, int64_t n) {
    vf max = v_set1(-INFINITY);
    for (int64_t j = 0, lanes; j < n; j += lanes) {
        lanes = i64_min(V_LEN, n - j);
        const vf fill = v_set1(-INFINITY);
        const vf x = v_add(v_load_fill(scores + j, lanes, fill), v_load_n(bias + j, lanes));
        v_store_n(scores + j, x, lanes);
        max = v_max(x, max);
    }
    return v_hmax(max);
}

/* Turns row r's scores into weights, and updates its maximum, total and sums with them. bias: what
 * is added to the scores of every row, or NULL where each has its own. */
static void few_weights(attention_unit *u, int64_t r, float *scores, int64_t keys,
                        const float *bias) {
    const struct attention_state *s = u->s;
    const int64_t reach = attention_reach(u, r);
    if (reach < keys)
        memset(scores + reach, 0, (size_t)(keys - reach) * sizeof *scores);
    if (reach == 0)
        return;
    if (s->masked && !bias)
        bias = attention_bias(u, r, u->bias, reach);
    const float block_max =
        bias ? few_add_bias(scores, bias, reach) : row_fold_block(ROW_MAX_NUMBER, scores, reach);
    const float old_max = u->max[r], max = block_max > old_max ? block_max : old_max;
    /* If all scores are -inf, any finite number can replace the maximum. */
    const float center = max == -INFINITY ? 0.0f : max;
    if (max != old_max && u->begun) {
        float shrink[V_LEN];
        v_store(shrink, v_exp_nonpositive(v_set1(old_max - center)));
        u->total[r] *= shrink[0];
        attention_scale(u->sums + r * s->dv, u->sums + r * s->dv, shrink[0], s->dv);
    }
    u->max[r] = max;
    u->total[r] += (float)softmax_exp_row(true, scores, scores, center, reach);
}

static void few_start(const attention_unit *u) {
    const struct attention_state *s = u->s;
    GEMM.copy(u->q, s->d, attention_q(u, 0), s->q.row, s->q.col, u->rows, s->d);
}

/* Multiplies n numbers by those at scale[i * stride]. */
static void few_scale(float *x, const float *scale, int64_t stride, int64_t n) {
    int64_t i = 0;
    for (; stride == 1 && i + V_LEN <= n; i += V_LEN)
        v_store(x + i, v_mul(v_load(x + i), v_load(scale + i)));
    for (; i < n; i++)
        x[i] *= scale[i * stride];
}

/* `lanes` columns of `vectors` vectors of sums [rows][dv] += weights [rows][keys] * values. stored,
 * rows and vectors are constants wherever this is inlined. */
V_INLINE void few_sum_tile(const int32_t stored, const int rows, const int vectors, float *sums,
                           int64_t dv, int64_t lanes, const float *weights, int64_t stride,
                           const char *values, int64_t value_stride, int64_t keys, bool add,
                           int64_t ahead) {
    vf sum[FEW_MR][FEW_NV];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[i][v] = add ? v_load_n(sums + i * dv + v * V_LEN, lanes) : v_zero();
    for (int64_t j = 0; j < keys; j++, values += value_stride) {
        vf weight[FEW_MR];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            weight[i] = v_set1(weights[i * stride + j]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const int64_t at = v * V_LEN * v_stored_size(stored);
            if (at % LINE == 0)
                __builtin_prefetch(values + at + ahead, 0, 2);
            const vf value = lanes < V_LEN ? v_load_stored_n(stored, values, 0, lanes)
                                           : v_load_stored(stored, values, v * V_LEN);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++)
                sum[i][v] = v_fma(weight[i], value, sum[i][v]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            v_store_n(sums + i * dv + v * V_LEN, sum[i][v], lanes);
}

V_INLINE void few_sum_rows(const int32_t stored, const int rows, float *sums, int64_t dv,
                           const float *weights, int64_t stride, const char *values,
                           int64_t value_stride, int64_t keys, bool add, int64_t ahead) {
    const int64_t size = v_stored_size(stored);
    int64_t c = 0;
    for (; c + FEW_NV * V_LEN <= dv; c += FEW_NV * V_LEN)
        few_sum_tile(stored, rows, FEW_NV, sums + c, dv, V_LEN, weights, stride, values + c * size,
                     value_stride, keys, add, ahead);
    for (; c < dv; c += V_LEN)
        few_sum_tile(stored, rows, 1, sums + c, dv, i64_min(V_LEN, dv - c), weights, stride,
                     values + c * size, value_stride, keys, add, ahead);
}

/* sums [rows][dv] += weights [rows][keys] * values of the block; for the first block, =. */
V_INLINE void few_sum_values(const attention_unit *u, const int32_t stored, const float *weights,
                             int64_t stride, int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t tiles = i64_ceil_div(u->rows, FEW_MR), size = v_stored_size(stored);
    const int64_t row = s->v.row * size;
    const few_ahead after = few_find_ahead(u->stored_v, u->next_k, keys, s->dv * size, row);
    for (int64_t j = 0, n; j < keys; j += n) {
        n = i64_min(FEW_KEYS, keys - j);
        const char *const values = u->stored_v + j * row;
        const int64_t ahead = j < after.split ? after.own : after.behind;
        for (int64_t t = 0, r = 0, rows; t < tiles; t++, r += rows) {
            rows = (u->rows + t) / tiles;
            float *const sums = u->sums + r * s->dv;
            const float *const w = weights + r * stride + j;
            const bool add = u->begun || j > 0;
            if (rows == 1)
                few_sum_rows(stored, 1, sums, s->dv, w, stride, values, row, n, add, ahead);
            else if (rows == 2)
                few_sum_rows(stored, 2, sums, s->dv, w, stride, values, row, n, add, ahead);
            else if (rows == 3)
                few_sum_rows(stored, 3, sums, s->dv, w, stride, values, row, n, add, ahead);
            else
                few_sum_rows(stored, FEW_MR, sums, s->dv, w, stride, values, row, n, add, ahead);
        }
    }
}

V_INLINE void few_block_of(attention_unit *u, const int32_t stored, int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t stride = s->block_keys + SCORE_PAD, head = u->head / s->group;
    const int64_t size = v_stored_size(stored), row = s->k.row * size;
    const few_ahead after = few_find_ahead(u->stored_k, u->stored_v, keys, s->d * size, row);
    for (int64_t j = 0, n; j < keys; j += n) {
        n = i64_min(DOT_NR, keys - j);
        const char *const at = u->stored_k + j * row;
        few_fetch(at + (j < after.split ? after.own : after.behind), row, s->d * size, n);
        const dot_block scores = {.a = u->q,
                                  .a_row_stride = s->d,
                                  .b = at,
                                  .b_col_stride = s->k.row,
                                  .k = s->d,
                                  .c = u->scores + j,
                                  .ldc = stride,
                                  .alpha = s->scale};
        dot_block_run(&scores, stored, u->rows, n);
    }
    const bool shared = s->masked && s->mask.row == 0;
    const float *const bias = shared ? attention_bias(u, 0, u->bias, keys) : NULL;
    for (int64_t r = 0; r < u->rows; r++) {
        float *const weights = u->scores + r * stride;
        if (stored == TAPER_INT8)
            few_scale(weights, attention_scales(u, u->k_scale, &s->k_scale, head), s->k_scale.row,
                      keys);
        few_weights(u, r, weights, keys, bias);
        if (stored == TAPER_INT8)
            few_scale(weights, attention_scales(u, u->v_scale, &s->v_scale, head), s->v_scale.row,
                      keys);
    }
    few_sum_values(u, stored, u->scores, stride, keys);
}

/* One function for each type, so that loads need not look it up. */
static void few_block_f32(attention_unit *u, int64_t keys) { few_block_of(u, TAPER_FLOAT32, keys); }
static void few_block_f16(attention_unit *u, int64_t keys) { few_block_of(u, TAPER_FLOAT16, keys); }
static void few_block_bf16(attention_unit *u, int64_t keys) {
    few_block_of(u, TAPER_BFLOAT16, keys);
}
static void few_block_i8(attention_unit *u, int64_t keys) { few_block_of(u, TAPER_INT8, keys); }

static void few_block(attention_unit *u, int64_t keys) {
    switch (u->s->stored) {
    case TAPER_FLOAT16:
        few_block_f16(u, keys);
        break;
    case TAPER_BFLOAT16:
        few_block_bf16(u, keys);
        break;
    case TAPER_INT8:
        few_block_i8(u, keys);
        break;
    default:
        few_block_f32(u, keys);
    }
}
