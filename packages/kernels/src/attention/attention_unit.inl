/* One block of a head's rows against all keys: the code that both variants share. */

typedef struct attention_unit {
    const struct attention_state *s;
    const float *q_data; /* of the tensors */
    const char *k_data, *v_data;
    const void *mask_data;
    const float *k_scale, *v_scale;
    float *out_data;
    float *q, *values, *scores, *sums, *max, *total, *bias, *widened; /* scratch: see the state */

    int64_t batch;
    int64_t head;
    int64_t first_row; /* of the head's rows */
    int64_t rows;
    int64_t live_first, live_last; /* no row attends to keys outside of these */
    int64_t first_key; /* the present block of keys, and where these and their values are */
    int64_t block_keys;
    bool begun;                      /* whether an earlier block has been added up */
    const char *stored_k, *stored_v; /* as they are stored; the next two are floats */
    const char *next_k;              /* the keys that are read after the block, or NULL */
    const float *block_k;
    const float *block_v;
} attention_unit;

/* Returns how many of the block's keys row r attends to: they are a prefix, from which the mask may
 * exclude some. Sums over a prefix, rounded up to whole LIVE_KEYS, have the same bits as sums over
 * the block. */
static int64_t attention_reach(const attention_unit *u, int64_t r) {
    const int64_t reach = u->first_row + r + u->s->diagonal + 1 - u->first_key;
    const int64_t last = i64_ceil_div(u->live_last - u->first_key, LIVE_KEYS) * LIVE_KEYS;
    const int64_t live = i64_min(last, u->block_keys);
    return u->s->causal ? i64_max(0, i64_min(reach, live)) : live;
}

/* Returns row r of the mask, from its first key on. */
static const void *attention_mask_row(const attention_unit *u, int64_t r) {
    const struct attention_state *s = u->s;
    const int64_t at =
        u->batch * s->mask.batch + u->head * s->mask.head + (u->first_row + r) * s->mask.row;
    return (const char *)u->mask_data + at * (s->mask_is_bool ? 1 : (int64_t)sizeof(float));
}

/* Returns whether a row of a mask excludes the n keys from `at` on; n is a multiple of 16 and a
 * constant. */
V_INLINE bool attention_all_dead(const void *row, bool is_bool, int64_t at, const int n) {
    if (is_bool) {
        uint64_t live = 0;
        for (int i = 0; i < n; i += 8) {
            uint64_t flags;
            memcpy(&flags, (const uint8_t *)row + at + i, sizeof flags);
            live |= flags;
        }
        return live == 0;
    }
    const float *bias = (const float *)row + at;
    bool dead = true;
    for (int i = 0; i < n; i++)
        dead &= bias[i] == -INFINITY;
    return dead;
}

/* Moves `end` down, in steps of n, while a row of a mask excludes the keys before it. */
V_INLINE int64_t attention_skip_down(const void *row, bool is_bool, int64_t end, int64_t last,
                                     const int n) {
    while (end - n >= last && end >= n && attention_all_dead(row, is_bool, end - n, n))
        end -= n;
    return end;
}

/* Moves `begin` up, in steps of n, while a row of a mask excludes the keys from it on. */
V_INLINE int64_t attention_skip_up(const void *row, bool is_bool, int64_t begin, int64_t first,
                                   const int n) {
    while (begin + n <= first && attention_all_dead(row, is_bool, begin, n))
        begin += n;
    return begin;
}

/*
 * Finds the keys [live_first, live_last) to which some row of the unit attends. A cache may be
 * longer than its written part, and an attention window may be shorter than the cache: keys that
 * the mask excludes at the ends have weights of 0, and are not read.
 */
static void attention_find_live(attention_unit *u) {
    const struct attention_state *s = u->s;
    u->live_first = 0;
    u->live_last = s->keys;
    if (!s->masked || s->mask.col != 1)
        return;
    int64_t first = s->keys, last = 0;
    const int64_t rows = s->mask.row ? u->rows : i64_min(u->rows, 1);
    for (int64_t r = rows - 1; r >= 0; r--) { /* the last row mostly attends most */
        const void *row = attention_mask_row(u, r);
        const bool is_bool = s->mask_is_bool;
        int64_t end = attention_skip_down(row, is_bool, s->keys, last, 128);
        end = attention_skip_down(row, is_bool, end, last, 16);
        last = i64_max(last, end);
        int64_t begin = attention_skip_up(row, is_bool, 0, i64_min(first, last), 128);
        begin = attention_skip_up(row, is_bool, begin, i64_min(first, last), 16);
        first = i64_min(first, begin);
    }
    u->live_last = last;
    u->live_first = i64_min(first, last);
}

/* Returns the numbers that are added to row r's scores of the block's first `keys` keys: in the
 * mask, or converted into `converted`. */
static const float *attention_bias(const attention_unit *u, int64_t r, float *converted,
                                   int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t col = s->mask.col;
    const void *row = attention_mask_row(u, r);
    const float *numbers = (const float *)row + u->first_key * col;
    const uint8_t *flags = (const uint8_t *)row + u->first_key * col;
    if (!s->mask_is_bool && col == 1)
        return numbers;
    if (!s->mask_is_bool)
        for (int64_t j = 0; j < keys; j++)
            converted[j] = numbers[j * col];
    else if (col == 1)
        for (int64_t j = 0; j < keys; j++)
            converted[j] = flags[j] ? 0.0f : -INFINITY;
    else
        for (int64_t j = 0; j < keys; j++)
            converted[j] = flags[j * col] ? 0.0f : -INFINITY;
    return converted;
}

static void attention_scale(float *to, const float *from, float factor, int64_t n) {
    const vf f = v_set1(factor);
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN)
        v_store(to + i, v_mul(v_load(from + i), f));
    if (i < n)
        v_store_n(to + i, v_mul(v_load_n(from + i, n - i), f), n - i);
}

/* sums of rows [r, r + rows) += weights * values of the block's first `keys` keys; for the first
 * block, =. Row i's weight of key j is at weights[i * row_stride + j * key_stride]. */
static void attention_sum_values(const attention_unit *u, const float *weights, int64_t row_stride,
                                 int64_t key_stride, int64_t r, int64_t rows, int64_t keys) {
    const struct attention_state *s = u->s;
    const gemm_block sum = {.a = weights,
                            .a_row_stride = row_stride,
                            .a_k_stride = key_stride,
                            .b = u->block_v,
                            .b_panel_stride = GEMM_NR * s->v_read.col,
                            .b_k_stride = s->v_read.row,
                            .b_col_stride = s->v_read.col,
                            .packed = u->values,
                            .k = keys,
                            .c = u->sums + r * s->dv,
                            .ldc = s->dv,
                            .alpha = 1.0f,
                            .b_form = s->v_read.col == 1 ? GEMM_B_ROWS : GEMM_B_ANY,
                            .accumulate = u->begun};
    GEMM.block(&sum, rows, s->dv);
}

/* A block of keys or of values as it is stored: rows [rows][cols]. */
typedef struct attention_stored {
    const char *data;
    const attention_strides *stride;
    const float *scale; /* of each row; int8 only */
    int64_t scale_stride;
    int64_t cols;
} attention_stored;

/* Widens rows of 16-bit floats. */
static void attention_widen_halves(float *to, const attention_stored *from, int64_t rows,
                                   int32_t dtype) {
    const uint16_t *row = (const uint16_t *)(const void *)from->data;
    const int64_t cols = from->cols, col = from->stride->col;
    for (int64_t r = 0; r < rows; r++, row += from->stride->row, to += cols)
        for (int64_t c = 0, n; c < cols; c += n) {
            n = i64_min(V_LEN, cols - c);
            uint16_t part[V_LEN] = {0};
            const uint16_t *at = row + c;
            if (n < V_LEN || col != 1) {
                for (int64_t i = 0; i < n; i++)
                    part[i] = row[(c + i) * col];
                at = part;
            }
            const vf x = dtype == TAPER_FLOAT16 ? v_load_f16(at) : v_load_bf16(at);
            if (n == V_LEN)
                v_store(to + c, x);
            else
                v_store_n(to + c, x, n);
        }
}

/* Widens rows of int8, and multiplies each by its scale. */
static void attention_widen_bytes(float *to, const attention_stored *from, int64_t rows) {
    const int8_t *row = (const int8_t *)from->data;
    const int64_t cols = from->cols, col = from->stride->col;
    for (int64_t r = 0; r < rows; r++, row += from->stride->row, to += cols) {
        const float scale = from->scale[r * from->scale_stride];
        int64_t c = 0;
        if (col == 1)
            for (; c + V_LEN <= cols; c += V_LEN)
                v_store(to + c, v_mul(v_load_i8(row + c), v_set1(scale)));
        for (; c < cols; c++)
            to[c] = (float)row[c * col] * scale;
    }
}

static void attention_widen(const struct attention_state *s, float *to,
                            const attention_stored *from, int64_t rows) {
    if (s->stored == TAPER_INT8)
        attention_widen_bytes(to, from, rows);
    else
        attention_widen_halves(to, from, rows, s->stored);
}

/* Makes keys [first, first + n) the present block. */
static void attention_set_keys(attention_unit *u, int64_t first, int64_t n) {
    u->first_key = first;
    u->block_keys = n;
}

/* Returns the scales of a head's keys or values from the block's first one on. */
static const float *attention_scales(const attention_unit *u, const float *scales,
                                     const attention_strides *stride, int64_t head) {
    return scales + u->batch * stride->batch + head * stride->head + u->first_key * stride->row;
}

/* Returns where the keys of a head are stored, from `key` on; heads are those of all batches. */
static const char *attention_keys_at(const attention_unit *u, int64_t head, int64_t key) {
    const struct attention_state *s = u->s;
    const int64_t at =
        head / s->heads * s->k.batch + head % s->heads / s->group * s->k.head + key * s->k.row;
    return u->k_data + at * (int64_t)taper_dtype_size(s->stored);
}

/* Makes the block's first `keys` keys and their values readable. */
static void attention_read_keys(attention_unit *u, int64_t keys) {
    const struct attention_state *s = u->s;
    const int64_t head = u->head / s->group, size = (int64_t)taper_dtype_size(s->stored);
    const char *const k = attention_keys_at(u, u->batch * s->heads + u->head, u->first_key);
    const char *const v =
        u->v_data + (u->batch * s->v.batch + head * s->v.head + u->first_key * s->v.row) * size;
    u->stored_k = k;
    u->stored_v = v;
    u->block_k = (const float *)(const void *)k;
    u->block_v = (const float *)(const void *)v;
    if (s->stored == TAPER_FLOAT32 || s->few_rows)
        return;
    attention_stored block_k = {.data = k, .stride = &s->k, .cols = s->d};
    attention_stored block_v = {.data = v, .stride = &s->v, .cols = s->dv};
    if (s->stored == TAPER_INT8) {
        block_k.scale = attention_scales(u, u->k_scale, &s->k_scale, head);
        block_v.scale = attention_scales(u, u->v_scale, &s->v_scale, head);
        block_k.scale_stride = s->k_scale.row;
        block_v.scale_stride = s->v_scale.row;
    }
    float *const values = u->widened + s->block_keys * s->d;
    attention_widen(s, u->widened, &block_k, keys);
    attention_widen(s, values, &block_v, keys);
    u->block_k = u->widened;
    u->block_v = values;
}

static const float *attention_q(const attention_unit *u, int64_t r) {
    const attention_strides *q = &u->s->q;
    return u->q_data + u->batch * q->batch + u->head * q->head + (u->first_row + r) * q->row;
}

/* Writes the rows' weighted means, or the output of a row that attends to no key. */
static void attention_write(const attention_unit *u) {
    const struct attention_state *s = u->s;
    float *out =
        u->out_data + u->batch * s->out.batch + u->head * s->out.head + u->first_row * s->out.row;
    for (int64_t r = 0; r < u->rows; r++, out += s->out.row)
        if (u->total[r] == 0.0f)
            for (int64_t i = 0; i < s->dv; i++)
                out[i] = s->nothing;
        else
            attention_scale(out, u->sums + r * s->dv, 1.0f / u->total[r], s->dv);
}
