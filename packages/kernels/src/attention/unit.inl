/* One block of query rows against all keys. */

typedef struct attention_unit {
    const struct attention_state *s;
    const float *q_data, *k_data, *v_data; /* of the tensors */
    const void *mask_data;
    float *out_data;
    float *q, *keys, *values, *scores, *sums, *max, *total, *bias; /* scratch: see the state */

    int64_t batch;
    int64_t kv_head;
    int64_t first_row; /* in the group's rows */
    int64_t rows;
    int64_t packed_head;   /* whose keys and values are in scratch, when they are one block; or -1 */
    int64_t first_key;     /* the block of keys at hand */
    int64_t block_keys;
    const void *bias_from; /* the mask row that bias holds for these keys, or NULL */
} attention_unit;

static attention_unit attention_bind(const taper_call *call, float *scratch) {
    const struct attention_state *s = call->state;
    return (attention_unit){.s = s,
                            .q_data = call->inputs[0].data,
                            .k_data = call->inputs[1].data,
                            .v_data = call->inputs[2].data,
                            .mask_data = s->masked ? call->inputs[3].data : NULL,
                            .out_data = call->output->data,
                            .q = scratch + s->at.q,
                            .keys = scratch + s->at.keys,
                            .values = scratch + s->at.values,
                            .scores = scratch + s->at.scores,
                            .sums = scratch + s->at.sums,
                            .max = scratch + s->at.max,
                            .total = scratch + s->at.total,
                            .bias = scratch + s->at.bias,
                            .packed_head = -1};
}

/* The query head and query of the unit's row r. */
static int64_t attention_head(const attention_unit *u, int64_t r) {
    return u->kv_head * u->s->group + (u->first_row + r) / u->s->lq;
}
static int64_t attention_query(const attention_unit *u, int64_t r) {
    return (u->first_row + r) % u->s->lq;
}

/* How many of the block's keys row r attends, a prefix of them. */
static int64_t attention_reach(const attention_unit *u, int64_t r) {
    if (!u->s->causal)
        return u->block_keys;
    const int64_t keys = attention_query(u, r) + u->s->diagonal + 1 - u->first_key;
    return i64_max(0, i64_min(keys, u->block_keys));
}

/* What is added to the scores of row r: a pointer into the mask, or its keys converted. */
static const float *attention_bias(attention_unit *u, int64_t r) {
    const struct attention_state *s = u->s;
    const int64_t offset = u->batch * s->mask.batch + attention_head(u, r) * s->mask.head +
                           attention_query(u, r) * s->mask.row + u->first_key * s->mask.col;
    const float *numbers = (const float *)u->mask_data + offset;
    const uint8_t *flags = (const uint8_t *)u->mask_data + offset;
    if (!s->mask_is_bool && s->mask.col == 1)
        return numbers;
    const void *from = s->mask_is_bool ? (const void *)flags : numbers;
    if (u->bias_from == from)
        return u->bias;
    u->bias_from = from;
    if (!s->mask_is_bool)
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = numbers[j * s->mask.col];
    else if (s->mask.col == 1)
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = flags[j] ? 0.0f : -INFINITY;
    else
        for (int64_t j = 0; j < u->block_keys; j++)
            u->bias[j] = flags[j * s->mask.col] ? 0.0f : -INFINITY;
    return u->bias;
}

/* scores += bias; the largest of them, NaN aside. */
static float attention_add_bias(float *scores, const float *bias, int64_t n) {
    vf max[2] = {v_set1(-INFINITY), v_set1(-INFINITY)};
    int64_t j = 0;
    for (; j + 2 * V_LEN <= n; j += 2 * V_LEN)
        for (int c = 0; c < 2; c++) {
            const int64_t at = j + c * V_LEN;
            const vf x = v_add(v_load(scores + at), v_load(bias + at));
            v_store(scores + at, x);
            max[c] = v_max(x, max[c]);
        }
    for (int64_t lanes; j < n; j += lanes) {
        lanes = i64_min(V_LEN, n - j);
        const vf x = v_add(v_load_fill(scores + j, lanes, v_set1(-INFINITY)),
                           v_load_n(bias + j, lanes));
        v_store_n(scores + j, x, lanes);
        max[0] = v_max(x, max[0]);
    }
    return v_hmax(v_max(max[0], max[1]));
}

static void attention_scale(float *to, const float *from, float factor, int64_t n) {
    const vf f = v_set1(factor);
    int64_t i = 0;
    for (; i + V_LEN <= n; i += V_LEN)
        v_store(to + i, v_mul(v_load(from + i), f));
    if (i < n)
        v_store_n(to + i, v_mul(v_load_n(from + i, n - i), f), n - i);
}

/* Turns the scores of row r into weights, 0 from reach to keys, and brings the row's maximum, total
 * and sums up to date with them. */
static void attention_weights(attention_unit *u, int64_t r, float *scores, int64_t keys) {
    const int64_t reach = attention_reach(u, r), dv = u->s->dv;
    if (reach < keys)
        memset(scores + reach, 0, (size_t)(keys - reach) * sizeof *scores);
    if (reach == 0)
        return;
    const float block_max = u->mask_data ? attention_add_bias(scores, attention_bias(u, r), reach)
                                         : row_fold_block(ROW_MAX_NUMBER, scores, reach);
    const float old_max = u->max[r], max = block_max > old_max ? block_max : old_max;
    /* While all scores are -inf any finite number will do in place of the maximum. */
    const float center = max == -INFINITY ? 0.0f : max;
    const float total = (float)softmax_exp_row(true, scores, scores, center, reach);
    u->max[r] = max;
    if (u->first_key == 0) {
        u->total[r] = total;
    } else if (max == old_max) {
        u->total[r] += total;
    } else {
        float lanes[V_LEN];
        v_store(lanes, v_exp_nonpositive(v_set1(old_max - center)));
        u->total[r] = u->total[r] * lanes[0] + total;
        attention_scale(u->sums + r * dv, u->sums + r * dv, lanes[0], dv);
    }
}

/* Rows [r, r + rows) of the unit against the block of keys. */
static void attention_strip(attention_unit *u, int64_t r, int64_t rows) {
    const struct attention_state *s = u->s;
    const int64_t score_stride = s->block_keys + 16;
    int64_t keys = 0; /* that any of the rows attends */
    for (int64_t i = 0; i < rows; i++)
        keys = i64_max(keys, attention_reach(u, r + i));
    if (keys == 0)
        return;
    if (s->dot) {
        const dot_block dot = {.a = u->q + r * s->d,
                               .a_row_stride = s->d,
                               .b = u->keys,
                               .b_col_stride = s->k.row,
                               .k = s->d,
                               .c = u->scores,
                               .ldc = score_stride,
                               .alpha = s->scale};
        dot_block_run(&dot, rows, keys);
    } else {
        gemm_f32_block(rows, keys, s->d, u->q + r * s->d, s->d, 1, u->keys, s->scale, u->scores,
                       score_stride, false);
    }
    for (int64_t i = 0; i < rows; i++)
        attention_weights(u, r + i, u->scores + i * score_stride, keys);
    const gemm_block values = {...};
    gemm_block_run(&values, rows, s->dv);
}
